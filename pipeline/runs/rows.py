"""Embedding rows: read in blocks, made unit length, grouped where identical, ranked without ambiguity."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system.array_types import Float32, Floats, Index, Mask

ROWS_AT_ONCE = 16_384  # made unit length at a time


@runtime_checkable
class Rows(Protocol):
    """One (N, d) matrix of which a few rows are asked for at a time, so that it may be larger than the memory."""

    width: int

    def __len__(self) -> int: ...
    def chunks(self, size: int) -> Iterator[tuple[int, Floats]]:
        """(number of the first row, at most `size` rows) in order."""
        ...

    def take(self, rows: Index) -> Float32:
        """(R, d) float32: the given rows, whose numbers must ascend."""
        ...


Embeddings: TypeAlias = Rows | Floats | Sequence[Floats]
"""(N, d), whole, in blocks of rows, or on disk."""


def as_rows(embeddings: Embeddings, name: str = "embeddings") -> Rows:
    """What is given, to be asked for some rows at a time."""
    return embeddings if isinstance(embeddings, Rows) else RowBlocks(embeddings, name)


def gather(rows: Rows, numbers: Index) -> tuple[Float32, Index]:
    """The rows (U, d) that an array of any order and shape names, each read once, and where each number's row is."""
    named, place = np.unique(numbers, return_inverse=True)
    return rows.take(named), place.reshape(numbers.shape)


def take_unit(rows: Rows, numbers: Index) -> Float32:
    """(R, d) the rows with these ascending numbers, at unit length."""
    unit = np.empty((len(numbers), rows.width), np.float32)
    for start in range(0, len(numbers), ROWS_AT_ONCE):
        unit[start : start + ROWS_AT_ONCE] = unit_rows(rows.take(numbers[start : start + ROWS_AT_ONCE]))[0]
    return unit


class RowBlocks:
    """One (N, d) matrix, or a sequence of (n, d) blocks (memory maps will do) read as if it were one."""

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
    """(N, d) rows of length 1 in float32, and (N,) whether the row has a direction.

    A row with a norm below 1e-12, or with NaN or Inf, has none and becomes zeros.

    >>> unit, valid = unit_rows(np.array([[3.0, 4.0], [0.0, 0.0], [np.nan, 1.0]]))
    >>> unit[0].tolist(), valid.tolist()
    ([0.6000000238418579, 0.800000011920929], [True, False, False])
    """
    with np.errstate(invalid="ignore", over="ignore"):
        unit = np.array(rows, dtype=np.float32)
        norm = np.sqrt(np.einsum("ij,ij->i", unit, unit))
        over = np.flatnonzero(np.isinf(norm))  # of rows whose squares only are too large
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
    """One 16-byte digest per row: rows are identical where the digests are.

    >>> a, b, c = identical_rows(np.array([[1, 2], [1, 3], [1, 2]], dtype=np.float32))
    >>> a == c, a == b
    (True, False)
    """
    return [hashlib.blake2b(row, digest_size=16).digest() for row in np.ascontiguousarray(rows)]


def top_by_value(values: Float32, k: int) -> Index:
    """(R, k) columns of the k largest values of each row, largest first, the lower column first where values tie.

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
