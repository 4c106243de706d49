"""The rows of a run that are nearest to new ones: exact, whatever else is searched at the same time."""

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from noisegate.pipeline.runs.rows import Rows, take_unit, unit_rows
from noisegate.pipeline.system.array_types import Float32, Index, Mask

from .exact import nearest_in_blocks

HELD_BYTES = 1 << 30  # of unit rows that one query holds; larger runs are read again for each search

ROWS_READ = 16_384  # at a time


class RowQuery:
    """Unit rows to search by cosine, in the order of `find_neighbours`; rows without a direction are never found.

    Unit rows are held in memory where they take at most `memory` bytes; otherwise each search reads them from disk.
    Every cosine is measured by itself, so equal rows tie exactly and come in the order of their numbers.
    """

    def __init__(self, rows: Rows, memory: int = HELD_BYTES) -> None:
        self._rows, self.width = rows, rows.width
        self._held: tuple[Index, Float32] | None = None
        if len(rows) * rows.width * 4 <= memory:
            held, numbers, count = np.empty((len(rows), rows.width), np.float32), np.empty(len(rows), np.int64), 0
            for some, unit in self._blocks():
                held[count : count + len(unit)], numbers[count : count + len(unit)] = unit, some
                count += len(unit)
            self._held = numbers[:count], held[:count]

    @cached_property
    def has_direction(self) -> Mask:
        """(N,) which rows can be found."""
        result = np.zeros(len(self._rows), np.bool_)
        for numbers, _ in self._blocks():
            result[numbers] = True
        return result

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, rows: Index) -> Float32:
        """(R, d) the unit rows with these ascending numbers, zeros for those without a direction."""
        if self._held is None:
            return take_unit(self._rows, rows)
        numbers, unit = self._held
        taken = np.zeros((len(rows), self.width), np.float32)
        place = np.searchsorted(numbers, rows)
        place[place == len(numbers)] = 0
        here = numbers[place] == rows if len(numbers) else np.zeros(len(rows), np.bool_)
        taken[here] = unit[place[here]]
        return taken

    def chunks(self, size: int) -> Iterator[tuple[int, Float32]]:
        """(number of the first row, at most `size` unit rows) in order."""
        for start in range(0, len(self), size):
            yield start, self.take(np.arange(start, min(start + size, len(self))))

    def nearest(self, queries: Float32, k: int, leave_out: Index | None = None) -> tuple[Index, Float32]:
        """(Q, k) row numbers, -1 for none, and cosines, NaN there, nearest first.

        queries: (Q, d); those without a direction find nothing. leave_out: (Q,) one row that each query must not
        find, -1 for none.
        """
        import faiss

        unit, valid = unit_rows(queries)
        asked = np.flatnonzero(valid)
        near, cosine = nearest_in_blocks(faiss, self._blocks(), unit[asked], k + 1, measured=True)
        left_out = np.full(len(asked), -1) if leave_out is None else leave_out[asked]
        dropped = (near == left_out[:, None]) & (near >= 0)
        dropped[~dropped.any(axis=1), -1] = True  # the list has one entry more than asked for
        rows, cosines = np.full((len(unit), k), -1, np.int64), np.full((len(unit), k), np.nan, np.float32)
        rows[asked] = near[~dropped].reshape(-1, k)
        cosines[asked] = np.where(rows[asked] >= 0, cosine[~dropped].reshape(-1, k), np.nan)
        return rows, cosines

    def _blocks(self) -> Iterator[tuple[Index, Float32]]:
        """Yield (row numbers, unit rows) of the rows with a direction, in order."""
        if self._held is not None:
            yield self._held
            return
        for start, block in self._rows.chunks(ROWS_READ):
            unit, valid = unit_rows(block)
            yield start + np.flatnonzero(valid), unit[valid]
