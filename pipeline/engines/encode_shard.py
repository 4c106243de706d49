"""One shard on its way through the encoder: batches in, columns and embeddings out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators.base import Estimator
from noisegate.pipeline.pairs.scorer import encode_samples
from noisegate.pipeline.runs.embeddings import read_embeddings
from noisegate.pipeline.shards.stream import Chunk
from noisegate.pipeline.shards.workers import Decoded

__all__ = ["EncodedShard"]

Rows = NDArray[np.float32]
_KEPT = ("key", "index", "status", "error", "label", "image_sha256", "text_sha256", "flags")


class EncodedShard:
    """What is known so far of the shard that is being encoded; batches begin and end with it."""

    def __init__(self, model: Estimator) -> None:
        self._model = model
        self._texts_seen: dict[str, Rows] = {}
        self._waiting: list[Decoded] = []
        self._images: list[Rows] = []
        self._texts: list[Rows] = []
        self._similarity: list[Rows] = []
        self.samples: list[Decoded] = []
        self.position = 0

    def add(self, chunk: Chunk) -> None:
        """Take some samples; a batch is encoded whenever one is full."""
        self.position = chunk.position
        for sample in chunk.samples:
            self._waiting.append(sample)
            if len(self._waiting) == self._model.batch_size:
                self._encode()

    def finish(self) -> None:
        """Encode what is left."""
        if self._waiting:
            self._encode()

    def _encode(self) -> None:
        batch, self._waiting = self._waiting, []
        found = encode_samples(self._model, batch, self._texts_seen)
        self._images.append(found.images)
        self._texts.append(found.texts)
        self._similarity.append(found.similarity)
        for sample in batch:
            sample.pixels = None
        self.samples += batch

    @property
    def images(self) -> Rows:
        """(N, d), rows of zeros where there is no picture."""
        return _stack(self._images)

    @property
    def texts(self) -> Rows:
        """(N, d), rows of zeros where there is no text."""
        return _stack(self._texts)

    @property
    def similarity(self) -> Rows:
        """(N,) cosines, NaN where there is no pair."""
        return np.concatenate(self._similarity or [np.zeros(0, np.float32)])

    def put_into(self, table: Path, embeddings: Path) -> None:
        """Take all other rows from an earlier encoding of the same shard, of which these samples are a part."""
        old = pq.read_table(table)
        again = {sample.index: i for i, sample in enumerate(self.samples)}
        rows, retried = list(again), self.samples
        images = _replaced(read_embeddings(embeddings, "image"), rows, self.images)
        texts = _replaced(read_embeddings(embeddings, "text"), rows, self.texts)
        similarity = old["similarity"].to_numpy().astype(np.float32)
        similarity[rows] = self.similarity
        self.samples = [
            retried[again[row]] if row in again else Decoded(**{**values, "flags": tuple(values["flags"] or ())})
            for row, values in enumerate(old.select(_KEPT).to_pylist())
        ]
        self._images, self._texts, self._similarity = [images], [texts], [similarity]

    def columns(self) -> dict[str, Any]:
        """The table's columns that are known before β is; only a sample that is `ok` has a similarity."""
        ok = np.array([sample.status == "ok" for sample in self.samples], dtype=bool)
        return {
            **{name: [getattr(sample, name) for sample in self.samples] for name in _KEPT},
            "error": [_printable(sample.error) for sample in self.samples],
            "flags": [list(sample.flags) for sample in self.samples],
            "similarity": np.where(ok, self.similarity, np.float32(np.nan)),
        }


def _replaced(old: Rows, rows: Sequence[int], new: Rows) -> Rows:
    if new.shape[1]:
        old = old if old.shape[1] else np.zeros((len(old), new.shape[1]), np.float32)
        old[rows] = new
    return old


def _stack(parts: Sequence[Rows]) -> Rows:
    """One matrix; a batch without any embedding (width 0) takes the width of the others."""
    widths = {part.shape[1] for part in parts} - {0}
    if len(widths) > 1:
        raise ConfigError(
            f"the model gives embeddings of {' and '.join(map(str, sorted(widths)))} numbers; want one size"
        )
    width = max(widths, default=0)
    whole = [part if part.shape[1] == width else np.zeros((len(part), width), np.float32) for part in parts]
    return np.concatenate(whole) if whole else np.zeros((0, 0), np.float32)


def _printable(error: str | None) -> str | None:
    """Names inside a tar may hold bytes that are no UTF-8, which a table cannot store."""
    return None if error is None else error.encode("utf-8", "replace").decode()
