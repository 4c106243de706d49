"""The embeddings of a run as one matrix that stays on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.system.array_types import Float32, Index

from .embeddings import map_embeddings
from .rows import unit_rows

__all__ = ["MappedRows"]

AT_ONCE = 16_384  # rows made unit length at a time
OPEN = os.sysconf("SC_OPEN_MAX") if hasattr(os, "sysconf") else 1024  # files at a time, of which each map is one


class MappedRows:
    """`image` or `text` of many embedding files, read as if they were one (N, d) matrix.

    Only files that are asked for are mapped, so that more of them may be there than a process can map.  A file in which
    nothing could be encoded has rows of no width; they read as zeros.
    """

    def __init__(self, files: Sequence[str], tensor: str, shapes: Sequence[tuple[int, int]] | None = None) -> None:
        self.files, self.tensor = list(files), tensor
        if shapes is None:
            shapes = [(len(rows), rows.shape[1]) for rows in (_map(file, tensor) for file in files)]
        self.shapes = list(shapes)
        self.width: int = max((shape[1] for shape in self.shapes), default=0)
        self.offsets = np.cumsum([0, *(shape[0] for shape in self.shapes)])

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def file(self, place: int) -> NDArray[Any]:
        """(n, d) rows of one file, as they are stored."""
        rows, width = self.shapes[place]
        return _map(self.files[place], self.tensor) if width else np.zeros((rows, self.width), np.float16)

    def take(self, rows: Index) -> Float32:
        """(R, d) the given rows, whose numbers must ascend."""
        taken = np.empty((len(rows), self.width), np.float32)
        if not len(rows):
            return taken
        first, last = np.searchsorted(self.offsets, [rows[0], rows[-1]], side="right") - 1
        ends = np.searchsorted(rows, self.offsets[first : last + 2])
        for place, begin, end in zip(range(first, last + 1), ends, ends[1:], strict=False):
            if end > begin:
                local = rows[begin:end] - self.offsets[place]
                whole = local[-1] - local[0] == len(local) - 1
                taken[begin:end] = self.file(place)[slice(local[0], local[-1] + 1) if whole else local]
        return taken

    def unit(self, rows: Index) -> Float32:
        """(R, d) as `take`, of length one."""
        made = np.empty((len(rows), self.width), np.float32)
        for start in range(0, len(rows), AT_ONCE):
            made[start : start + AT_ONCE] = unit_rows(self.take(rows[start : start + AT_ONCE]))[0]
        return made

    def gather(self, rows: Index) -> tuple[Float32, Index]:
        """Unit rows of the numbers in an array of any order and shape, each read once, and where each number's row is."""
        named, place = np.unique(rows, return_inverse=True)
        return self.unit(named), place.reshape(rows.shape)

    def chunks(self, size: int) -> Iterator[tuple[int, int, NDArray[Any]]]:
        """(file, number of the first row, at most `size` rows) in order."""
        for place in range(len(self.files)):
            block = self.file(place)
            for start in range(0, len(block), size):
                yield place, int(self.offsets[place]) + start, block[start : start + size]


@lru_cache(maxsize=max(64, min(8192, OPEN // 4)))
def _cached(file: str, tensor: str, stamp: tuple[int, int, int]) -> NDArray[Any]:
    return map_embeddings(Path(file), tensor)


def _map(file: str, tensor: str) -> NDArray[Any]:
    """A memory map that is kept while the file stays the same one."""
    try:
        found = Path(file).stat()
    except OSError:
        return map_embeddings(Path(file), tensor)  # says what is wrong
    return _cached(file, tensor, (found.st_ino, found.st_size, found.st_mtime_ns))
