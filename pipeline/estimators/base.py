"""The protocol of estimators, which encode pictures and texts into one space, and what their embeddings need."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from textwrap import shorten
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from noisegate.pipeline.errors import ConfigError

Pixels = NDArray[np.uint8]
JPEG_LIBRARY = "simplejpeg"  # decodes JPEGs for every decoder but Pillow


@dataclass(frozen=True)
class Identity:
    """Everything that a score depends on, apart from the sample and β.

    `weights` is the SHA-256 of all parameters, or the string of a user's own estimator. Scores of two estimators can be
    compared if their identities are equal.
    """

    model: str
    weights: str
    preprocess: str
    decoder: str
    dtype: str
    versions: tuple[tuple[str, str], ...]

    @property
    def digest(self) -> str:
        """Sixteen hex digits of the SHA-256 of all fields."""
        text = json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "versions": dict(self.versions)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Identity":
        """The inverse of `to_dict`."""
        return cls(**{**values, "versions": tuple(sorted(values["versions"].items()))})

    def with_decoder_of(self, other: "Identity") -> "Identity":
        """Copy the identity with the decoder of `other`."""
        mine, theirs = dict(self.versions), dict(other.versions)
        kept = {name: found for name, found in mine.items() if name != JPEG_LIBRARY}
        decoding = {JPEG_LIBRARY: theirs[JPEG_LIBRARY]} if JPEG_LIBRARY in theirs else {}
        return replace(self, decoder=other.decoder, versions=tuple(sorted((kept | decoding).items())))

    def differences(self, other: "Identity", versions: bool = True) -> list[str]:
        """Describe each field in which `other` differs in one line, for a message to the user.

        Without `versions`, versions of libraries may differ: embeddings are then equal up to rounding.
        """
        mine, theirs = self.to_dict(), other.to_dict()
        mine |= {f"version of {k}": v for k, v in mine.pop("versions").items()}
        theirs |= {f"version of {k}": v for k, v in theirs.pop("versions").items()}
        if not versions:
            mine, theirs = ({k: v for k, v in d.items() if not k.startswith("version of ")} for d in (mine, theirs))
        names = [*mine, *(name for name in theirs if name not in mine)]
        return [f"{n}: {mine.get(n)} there, {theirs.get(n)} now" for n in names if mine.get(n) != theirs.get(n)]


class Estimator(Protocol):
    """An image-text model. Embeddings are (N, d) float32 and need not be normalised.

    `preprocess` runs in the decode workers: it must be picklable and must not need torch. `encode_pixels` takes its result;
    `encode_images` does both steps.
    """

    @property
    def identity(self) -> Identity: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def preprocess(self) -> Callable[[Image.Image], Pixels]: ...

    def encode_pixels(self, pixels: Sequence[Pixels]) -> NDArray[np.float32]:
        """Embed preprocessed pictures."""

    def encode_images(self, images: Sequence[Image.Image]) -> NDArray[np.float32]:
        """Embed RGB pictures of any size."""

    def encode_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts; long ones are cut by the model's own tokenizer."""

    def encode_noise(self, count: int, rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Embed `count` random pictures and `count` random texts, for OSA's β (Eq. 4)."""


def library_versions(*packages: str, decoder: str) -> tuple[tuple[str, str], ...]:
    """Return the `versions` of an identity: those of `packages`, and of the JPEG decoder if it is not Pillow's."""
    more = () if decoder == "pillow" else (JPEG_LIBRARY,)
    return tuple((package, version(package)) for package in sorted((*packages, *more)))


def normalise(embeddings: NDArray[Any]) -> NDArray[np.float32]:
    """Scale rows to length one; rows that are not finite, or shorter than 1e-12, become zeros (invalid).

    >>> normalise(np.array([[3.0, 4.0], [0.0, 0.0], [np.nan, 1.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0], [0.0, 0.0]]
    """
    rows = np.asarray(embeddings, dtype=np.float64)
    if rows.ndim != 2:
        raise ConfigError.of("embeddings", rows.shape, "is no shape of a matrix; give (N, d)")
    finite = np.isfinite(rows).all(axis=1, keepdims=True)
    rows = np.where(finite, rows, 0.0)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: NDArray[np.float32] = np.where(length >= 1e-12, rows / np.maximum(length, 1e-12), 0.0).astype(np.float32)
    return unit


def own_temperature(estimator: Estimator) -> float | None:
    """Return τ of the softmax that the model was trained with, if the estimator knows it."""
    value = getattr(estimator, "temperature", None)
    return None if value is None or not 0 < value < 1 else round(float(value), 6)


SPECIAL_TOKENS = 4  # most special tokens that a tokenizer adds to a text; CLIP's adds two


def surely_fits(text: str, context: int) -> bool:
    """Whether a text fits into `context` tokens without counting them: an ASCII text has no more tokens than characters."""
    return len(text) <= context - SPECIAL_TOKENS and text.isascii()


def find_truncated(estimator: Estimator, texts: Sequence[str]) -> list[bool]:
    """Return whether the model's tokenizer cuts each text; all False if the estimator has no `find_truncated`."""
    own: Callable[[Sequence[str]], Sequence[bool]] | None = getattr(estimator, "find_truncated", None)
    return [bool(cut) for cut in own(texts)] if own is not None and texts else [False] * len(texts)


def invalid_embedding(part: str) -> str:
    """Make the error text of a sample whose embedding `normalise` has set to zeros; `part` is image or text."""
    return f"the {part} embedding is zero or not finite"


def row_cosines(images: NDArray[Any], texts: NDArray[Any]) -> NDArray[np.float32]:
    """Compute cosines (N,) of unit rows, pair by pair; NaN if either row is zeros (invalid, or missing).

    >>> row_cosines(np.array([[1.0, 0.0], [0.0, 0.0]]), np.eye(2)).tolist()
    [1.0, nan]
    """
    cosines = np.full(len(images), np.nan, np.float32)
    valid = np.flatnonzero(images.any(axis=1) & texts.any(axis=1))
    cosines[valid] = paired_cosines(images, texts, valid, valid)
    return cosines


def paired_cosines(
    left: NDArray[Any], right: NDArray[Any], rows: NDArray[np.int64], partners: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Compute cosines (M,) of unit rows `left[rows]` and `right[partners]`, in blocks so that memory stays constant.

    >>> paired_cosines(np.eye(2), np.eye(2), np.array([0, 1]), np.array([0, 0])).tolist()
    [1.0, 0.0]
    """
    cosines = np.empty(len(rows), np.float32)
    for start in range(0, len(rows), 2048):
        part = slice(start, start + 2048)
        products = np.einsum("nd,nd->n", left[rows[part]], right[partners[part]], dtype=np.float64)
        cosines[part] = np.clip(products, -1, 1)
    return cosines


def describe_error(error: Exception, width: int = 300) -> str:
    """Format type and message of another library's error in one line of at most `width` characters."""
    return shorten(f"{type(error).__name__}: {error}", width, placeholder=" …").rstrip(".")


def array_digest(arrays: dict[str, NDArray[Any]]) -> str:
    """Compute the SHA-256 of named arrays in name order: names, types, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.view(np.uint8).reshape(-1).data if array.size else b"")
    return digest.hexdigest()


LENGTH_STEP = 8  # tokens; a finer step saves little and makes many small batches


def length_batches(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Group texts of similar length, because a batch is padded to its longest text.

    Returns positions (0 … N-1) in batches of at most `batch_size`; the lengths in a batch round up to the same multiple of
    `LENGTH_STEP`.

    >>> length_batches([5, 70, 8, 9, 6], batch_size=2)
    [[0, 2], [4], [3], [1]]
    """
    groups: dict[int, list[int]] = {}
    for position, length in enumerate(lengths):
        groups.setdefault(-(-length // LENGTH_STEP), []).append(position)
    return [
        group[start : start + batch_size]
        for _, group in sorted(groups.items())
        for start in range(0, len(group), batch_size)
    ]
