"""Inputs and results of the embedder, and its protocol for the rest of the service."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.estimators import Identity

Row = NDArray[np.float32]


@dataclass(frozen=True)
class Item:
    """One sample of a request: an image file's bytes, a caption, or both.

    `problem` is (status, error) of a picture that could not be read from the request, such as broken base64; `text_problem` is
    the same for a caption.
    """

    image: bytes | None = None
    text: str | None = None
    problem: tuple[str, str] | None = None
    text_problem: tuple[str, str] | None = None


@dataclass
class Embedded:
    """A sample as a row of the table: status and error, unit embeddings (d,) or None, and the cosine.

    `status` and `error` are for the pair, `image_status` and `text_status` for each part alone, and so are their errors.
    """

    status: str = "ok"
    error: str | None = None
    image: Row | None = None
    text: Row | None = None
    similarity: float | None = None
    image_sha256: bytes | None = None
    text_sha256: bytes | None = None
    image_status: str = "ok"
    image_error: str | None = None
    text_status: str = "ok"
    text_error: str | None = None
    text_truncated: bool = False  # longer than the model's context


class Embedder(Protocol):
    """The protocol of embedders: `LocalEmbedder` runs an encoder process per device, tests use a fake."""

    @property
    def identity(self) -> Identity: ...
    @property
    def dimensions(self) -> int: ...

    async def start(self) -> None:
        """Start loading the model; return before it is ready."""
        ...

    async def stop(self) -> None:
        """Finish the admitted items within `drain_seconds`, then end all processes."""
        ...

    async def embed(self, items: Sequence[Item], client: str = "") -> list[Embedded]:
        """Embed items, and return their results in order; `client` gets its fair share of the work.

        Raises ApiError 413, 429, 503 or 504; a bad item is a status, never an error.
        """
        ...

    async def embed_texts(self, texts: Sequence[str]) -> Row:
        """Embed the service's own texts (class prompts) to unit rows (N, d); these may wait but are never refused."""
        ...

    def ready(self) -> list[str]:
        """List the reasons why it cannot work at the moment; empty if it can."""
        ...
