"""Text anchors of a run: embedded prompts of its classes, saved beside the tables so that later steps need no model."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from noisegate.pipeline.errors import ConfigError, TableError
from noisegate.pipeline.estimators.base import Estimator, normalise
from noisegate.pipeline.runs.arrays import open_array
from noisegate.pipeline.runs.table import RunFolder
from noisegate.pipeline.system.output_files import write_atomically

from .classes import ClassSet


@dataclass(frozen=True, eq=False)
class Anchors:
    """Unit text embeddings (A, d), the class of each (A,), and the classes' names in id order."""

    names: tuple[str, ...]
    embeddings: NDArray[np.float32]
    labels: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.embeddings.ndim != 2 or self.labels.shape != (len(self.embeddings),):
            shapes = self.embeddings.shape, self.labels.shape
            raise ConfigError(
                f"anchors {shapes[0]} and anchor labels {shapes[1]} do not fit; give (A, d) and (A,)", "anchors", shapes
            )
        if not np.isin(self.labels, np.arange(len(self.names))).all():
            ends = int(self.labels.min()), int(self.labels.max())
            raise ConfigError(
                f"anchor labels run from {ends[0]} to {ends[1]} for {len(self.names)} classes; use 0 to "
                f"{len(self.names) - 1}",
                "anchor_labels",
                ends,
            )
        missing = np.flatnonzero(np.bincount(self.labels, minlength=len(self.names)) == 0)
        if len(missing) or not self.names:
            subject = f"class {missing[0]} has" if len(missing) else "there are"
            raise ConfigError(
                f"anchors: {subject} none; give at least one for each class", "anchors", missing[:1].tolist()
            )
        empty = np.flatnonzero(~self.embeddings.any(axis=1))
        if len(empty):
            raise ConfigError(
                f"anchors: row {empty[0]} is zero or not finite; give text embeddings with a direction",
                "anchors",
                int(empty[0]),
            )

    @property
    def digest(self) -> str:
        """First sixteen hex digits of the SHA-256 of names, vectors and classes."""
        parts = json.dumps(self.names).encode(), self.embeddings.tobytes(), self.labels.tobytes()
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]

    def save(self, path: Path) -> None:
        """Write one safetensors file with the names in its metadata."""
        arrays = {"anchors": self.embeddings, "labels": self.labels}
        write_atomically(path, save(arrays, metadata={"names": json.dumps(self.names)}))

    @classmethod
    def load(cls, path: Path) -> "Anchors":
        """Read what `save` wrote."""
        try:
            with safe_open(path, framework="numpy") as file:
                names = tuple(json.loads(file.metadata()["names"]))
                return cls(names, file.get_tensor("anchors"), file.get_tensor("labels"))
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise TableError.of("anchors", path, f"cannot be read: {error}") from error


def embed_anchors(estimator: Estimator, classes: ClassSet) -> Anchors:
    """Embed every prompt of every class; raise ConfigError if an embedding is zero or not finite."""
    embeddings = normalise(estimator.encode_texts(classes.anchors))
    empty = np.flatnonzero(~embeddings.any(axis=1))
    if len(empty):
        prompt = classes.anchors[int(empty[0])]
        raise ConfigError(f"classes: the model gives no embedding for the prompt {prompt!r}", "classes", prompt)
    return Anchors(classes.names, embeddings, np.array(classes.anchor_labels))


def read_anchors(vectors: Path, labels: Path, names: tuple[str, ...] = ()) -> Anchors:
    """Read anchors from `.npy` files, (A, d) vectors and (A,) classes; without `names` classes are named by their numbers."""
    rows = open_array(vectors, "anchors", 2)
    classes = np.asarray(open_array(labels, "anchor_labels", 1, kinds="iu"), np.int64)
    count = int(classes.max(initial=-1)) + 1
    if count > len(classes):
        raise ConfigError(
            f"anchor labels: {labels} names class {count - 1} in {len(classes)} rows; number them 0, 1, 2, …",
            "anchor_labels",
            count - 1,
        )
    return Anchors(names or tuple(map(str, range(count))), normalise(rows), classes)


def anchors_file(run: RunFolder) -> Path:
    """Return the file in which a run keeps its text anchors."""
    return run.path / "anchors.safetensors"
