"""Text anchors of a run: the embedded prompts of its classes, kept beside the tables so that no model is needed later."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from .classes import ClassSet
from .errors import ConfigError, TableError
from .estimators.base import Estimator, normalise
from .table import write_atomically

__all__ = ["Anchors", "embed_anchors"]


@dataclass(frozen=True, eq=False)
class Anchors:
    """Unit text embeddings (A, d), the class of each (A,), and the classes' names in id order."""

    names: tuple[str, ...]
    embeddings: NDArray[np.float32]
    labels: NDArray[np.int64]

    def __post_init__(self) -> None:
        if len(self.embeddings) != len(self.labels):
            raise ConfigError(f"anchors: {len(self.embeddings)} rows for {len(self.labels)} classes; give one for each")

    @property
    def digest(self) -> str:
        """Sixteen hex digits of names, vectors and classes."""
        parts = json.dumps(self.names).encode(), self.embeddings.tobytes(), self.labels.tobytes()
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]

    def save(self, path: Path) -> None:
        """One safetensors file with the names in its metadata."""
        arrays = {"anchors": self.embeddings, "labels": self.labels}
        write_atomically(path, save(arrays, metadata={"names": json.dumps(self.names)}))

    @classmethod
    def load(cls, path: Path) -> "Anchors":
        """The inverse of `save`."""
        try:
            with safe_open(path, framework="numpy") as file:
                names = tuple(json.loads(file.metadata()["names"]))
                return cls(names, file.get_tensor("anchors"), file.get_tensor("labels"))
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise TableError(f"anchors {path} cannot be read: {error}") from error


def embed_anchors(estimator: Estimator, classes: ClassSet) -> Anchors:
    """Embed every prompt of every class; a prompt without a direction raises ConfigError."""
    embeddings = normalise(estimator.encode_texts(classes.anchors))
    empty = np.flatnonzero(~embeddings.any(axis=1))
    if len(empty):
        raise ConfigError(f"classes: the model gives no embedding for the prompt {classes.anchors[int(empty[0])]!r}")
    return Anchors(classes.names, embeddings, np.array(classes.anchor_labels))
