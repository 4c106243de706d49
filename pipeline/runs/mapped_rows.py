"""The embeddings of a run as one matrix that stays on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from noisegate.pipeline.system.array_types import Float32, Index, Mask

from .embeddings import map_embeddings
from .table import RunFolder

OPEN_FILES = os.sysconf("SC_OPEN_MAX") if hasattr(os, "sysconf") else 1024  # a process may have; each map is one


class MappedRows:
    """One tensor (`image` or `text`) of many embedding files, read as if they were one (N, d) matrix; see `rows.Rows`.

    Rows that are not `ok` (N,) read as zeros, and so do those of a file in which nothing could be encoded, whose rows have
    no width. Files are mapped when they are read, so there may be more of them than a process can have open.
    """

    def __init__(
        self,
        files: Sequence[str],
        tensor: str,
        shapes: Sequence[tuple[int, int]] | None = None,
        ok: Mask | None = None,
    ) -> None:
        self.files, self.tensor, self.ok = list(files), tensor, ok
        if shapes is None:
            shapes = [(len(rows), rows.shape[1]) for rows in (_map(file, tensor) for file in files)]
        self.shapes = list(shapes)
        self.width: int = max((shape[1] for shape in self.shapes), default=0)
        self.offsets = np.cumsum([0, *(shape[0] for shape in self.shapes)])

    @classmethod
    def of_run(cls, run: RunFolder, stems: Sequence[str], tensor: Literal["image", "text"]) -> MappedRows:
        """The embeddings of these shards, with failed samples as rows of zeros."""
        ok = [pc.equal(run.read(stem, ["status"])["status"], "ok").to_numpy() for stem in stems]
        files = [str(run.embeddings(stem)) for stem in stems]
        return cls(files, tensor, ok=np.concatenate([np.zeros(0, np.bool_), *ok]))

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def take(self, rows: Index) -> Float32:
        """(R, d) the given rows, whose numbers must ascend."""
        taken = np.zeros((len(rows), self.width), np.float32)
        if not len(rows):
            return taken
        first, last = np.searchsorted(self.offsets, [rows[0], rows[-1]], side="right") - 1
        ends = np.searchsorted(rows, self.offsets[first : last + 2])
        for file, begin, end in zip(range(first, last + 1), ends, ends[1:], strict=False):
            if end > begin and self.shapes[file][1]:
                local = rows[begin:end] - self.offsets[file]
                whole = local[-1] - local[0] == len(local) - 1
                stored = _map(self.files[file], self.tensor)
                taken[begin:end] = stored[slice(local[0], local[-1] + 1) if whole else local]
        if self.ok is not None:
            taken[~self.ok[rows]] = 0
        return taken

    def chunks(self, size: int) -> Iterator[tuple[int, Float32]]:
        """(number of the first row, at most `size` rows) in order."""
        for start in range(0, len(self), size):
            yield start, self.take(np.arange(start, min(start + size, len(self))))


@lru_cache(maxsize=max(64, min(8192, OPEN_FILES // 4)))
def _map_once(file: str, tensor: str, version: tuple[int, int, int]) -> NDArray[Any]:
    return map_embeddings(Path(file), tensor)


def _map(file: str, tensor: str) -> NDArray[Any]:
    """Map a file, or reuse its map while the file stays the same."""
    try:
        stat = Path(file).stat()
    except OSError:
        return map_embeddings(Path(file), tensor)  # raises an error that says what is wrong
    return _map_once(file, tensor, (stat.st_ino, stat.st_size, stat.st_mtime_ns))
