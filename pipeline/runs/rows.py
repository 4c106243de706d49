"""Embedding rows of arrays or of a run's files: read in blocks, scaled to unit length, ranked with fixed ties."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system.array_types import Float32, Floats, Index, Mask

from .embeddings import map_embeddings
from .table import RunFolder

ROWS_AT_ONCE = 16_384  # rows scaled to unit length at a time
OPEN_FILES = os.sysconf("SC_OPEN_MAX") if hasattr(os, "sysconf") else 1024  # limit per process; each map is one


@runtime_checkable
class Rows(Protocol):
    """One (N, d) matrix that is read a few rows at a time, so that it may be larger than the memory."""

    width: int

    def __len__(self) -> int: ...
    def chunks(self, size: int) -> Iterator[tuple[int, Floats]]:
        """Yield (number of the first row, at most `size` rows) in order."""

    def take(self, rows: Index) -> Float32:
        """Read the given rows, (R, d) float32; their numbers must ascend."""


Embeddings: TypeAlias = Rows | Floats | Sequence[Floats]
"""(N, d), whole, in blocks of rows, or on disk."""


def as_rows(embeddings: Embeddings, name: str = "embeddings") -> Rows:
    """Wrap embeddings as rows that are read a few at a time."""
    return embeddings if isinstance(embeddings, Rows) else RowBlocks(embeddings, name)


def gather(rows: Rows, numbers: Index) -> tuple[Float32, Index]:
    """Read rows by numbers in any order and shape: distinct rows (U, d), and the place of each number in them."""
    named, place = np.unique(numbers, return_inverse=True)
    return rows.take(named), place.reshape(numbers.shape)


def take_unit(rows: Rows, numbers: Index) -> Float32:
    """Read the rows with these ascending numbers at unit length, (R, d)."""
    unit = np.empty((len(numbers), rows.width), np.float32)
    for start in range(0, len(numbers), ROWS_AT_ONCE):
        unit[start : start + ROWS_AT_ONCE] = unit_rows(rows.take(numbers[start : start + ROWS_AT_ONCE]))[0]
    return unit


class RowBlocks:
    """One (N, d) matrix, or a sequence of (n, d) blocks, such as memory maps, read as if they were one matrix."""

    def __init__(self, embeddings: Floats | Sequence[Floats], name: str = "embeddings"):
        self.blocks = [embeddings] if isinstance(embeddings, np.ndarray) else list(embeddings)
        widths = {block.shape[1:] for block in self.blocks}
        if len(widths) != 1 or len(next(iter(widths))) != 1:
            shapes = [block.shape for block in self.blocks[:3]]
            raise ConfigError(f"{name} has shapes {shapes}; give one (N, d) array or blocks of equal d", name, shapes)
        self.width: int = self.blocks[0].shape[1]
        self.offsets = np.cumsum([0, *(len(block) for block in self.blocks)])

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def chunks(self, size: int) -> Iterator[tuple[int, Floats]]:
        for offset, block in zip(self.offsets, self.blocks, strict=False):
            for start in range(0, len(block), size):
                yield int(offset) + start, block[start : start + size]

    def take(self, rows: Index) -> Float32:
        ends = np.searchsorted(rows, self.offsets)
        parts = [
            np.asarray(block[rows[a:b] - offset], dtype=np.float32)
            for block, offset, a, b in zip(self.blocks, self.offsets, ends, ends[1:], strict=False)
            if b > a
        ]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty((0, self.width), dtype=np.float32)


def unit_rows(rows: Floats) -> tuple[Float32, Mask]:
    """Scale rows to length 1 in float32, (N, d), and return whether each row has a direction, (N,).

    A row with a norm below 1e-12, or with NaN or Inf, has no direction and becomes zeros.

    >>> unit, valid = unit_rows(np.array([[3.0, 4.0], [0.0, 0.0], [np.nan, 1.0]]))
    >>> unit[0].tolist(), valid.tolist()
    ([0.6000000238418579, 0.800000011920929], [True, False, False])
    """
    with np.errstate(invalid="ignore", over="ignore"):
        unit = np.array(rows, dtype=np.float32)
        norm = np.sqrt(np.einsum("ij,ij->i", unit, unit))
        over = np.flatnonzero(np.isinf(norm))  # the squares overflow, the numbers may be finite
        if len(over):
            unit[over] /= np.abs(unit[over]).max(axis=1, keepdims=True)
            norm[over] = np.sqrt(np.einsum("ij,ij->i", unit[over], unit[over]))
    valid = np.isfinite(norm) & (norm >= 1e-12)
    norm[~valid] = 1
    unit /= norm[:, None]
    if not valid.all():
        unit[~valid] = 0
    unit += np.float32(0)  # -0.0 becomes 0.0: equal rows have equal bytes
    return unit, valid


def identical_rows(rows: Float32) -> list[bytes]:
    """Make one 16-byte digest per row: rows are identical if their digests are.

    >>> a, b, c = identical_rows(np.array([[1, 2], [1, 3], [1, 2]], dtype=np.float32))
    >>> a == c, a == b
    (True, False)
    """
    return [hashlib.blake2b(row, digest_size=16).digest() for row in np.ascontiguousarray(rows)]


def top_by_value(values: Float32, k: int) -> Index:
    """Return the columns of the k largest values of each row, (R, k), largest first; of equal values the lower column first.

    values: (R, M) without NaN, k <= M.

    >>> top_by_value(np.array([[.5, .9, .5, .5]], dtype=np.float32), 3).tolist()
    [[1, 0, 2]]
    """
    rows, columns = values.shape
    if k == 0:
        return np.empty((rows, 0), dtype=np.int64)
    least = np.partition(values, columns - k, axis=1)[:, columns - k, None]
    above, tied = values > least, values == least
    room = k - above.sum(axis=1, keepdims=True)
    chosen = above | (tied & (np.cumsum(tied, axis=1, dtype=np.int32) <= room))
    column = np.nonzero(chosen)[1].reshape(rows, k)
    order = np.argsort(-np.take_along_axis(values, column, axis=1), axis=1, kind="stable")
    return np.take_along_axis(column, order, axis=1)


class MappedRows:
    """One tensor (`image` or `text`) of many embedding files, read as one (N, d) matrix; see `rows.Rows`.

    Rows that are not `ok` (N,) read as zeros, and so do the rows of a file in which nothing could be encoded and whose width is
    0. Files are mapped when they are read, so there may be more files than a process can have open.
    """

    def __init__(
        self, files: Sequence[str], tensor: str, shapes: Sequence[tuple[int, int]] | None = None, ok: Mask | None = None
    ) -> None:
        self.files, self.tensor, self.ok = list(files), tensor, ok
        if shapes is None:
            shapes = [(len(rows), rows.shape[1]) for rows in (_map(file, tensor) for file in files)]
        self.shapes = list(shapes)
        self.width: int = max((shape[1] for shape in self.shapes), default=0)
        self.offsets = np.cumsum([0, *(shape[0] for shape in self.shapes)])

    @classmethod
    def of_run(cls, run: RunFolder, stems: Sequence[str], tensor: Literal["image", "text"]) -> MappedRows:
        """Open the embeddings of these shards, with failed samples as rows of zeros."""
        ok = [pc.equal(run.read(stem, ["status"])["status"], "ok").to_numpy() for stem in stems]
        files = [str(run.embeddings(stem)) for stem in stems]
        return cls(files, tensor, ok=np.concatenate([np.zeros(0, np.bool_), *ok]))

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def take(self, rows: Index) -> Float32:
        """Read the given rows, (R, d); their numbers must ascend."""
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
        """Yield (number of the first row, at most `size` rows) in order."""
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
        return map_embeddings(Path(file), tensor)  # raises an error that names the problem
    return _map_once(file, tensor, (stat.st_ino, stat.st_size, stat.st_mtime_ns))
