"""The rows of a finished run that are nearest to new ones: exact, and in an order that depends on nothing but the rows."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from noisegate.pipeline.runs.rows import unit_rows
from noisegate.pipeline.system.array_types import Float32, Index

__all__ = ["RunSearch"]


MEMORY = 1 << 30  # bytes of float32 rows that one search holds; larger runs are read again for each search
SPARE = 8  # candidates beyond those wanted, so that a short tie at the cut is seen at once
ROUNDING = np.float32(1e-5)  # two ways to multiply the same unit rows differ by less
GATHERED = 1 << 23  # numbers copied at a time


class RunSearch:
    """Finds rows by cosine; rows without a direction (failed samples are rows of zeros) are never found.

    `read(i)` gives block i, (n_i, d) float32, of `sizes[i]` rows. They are held as unit rows where all of them take at
    most `memory` bytes; otherwise each search reads the blocks from their float16 files, so that memory stays flat.
    faiss proposes candidates; their cosines are then taken row by row in float64. So equal rows tie exactly, whatever
    is searched at the same time, and ties come in the order of the rows, as in `find_neighbours`.
    """

    def __init__(self, read: Callable[[int], Float32], sizes: Sequence[int], width: int, memory: int = MEMORY) -> None:
        self._read = read
        self._starts = np.cumsum([0, *sizes])
        self.width = width
        self._held: tuple[Index, Float32] | None = None
        if len(self) * width * 4 <= memory:
            self._held = self._hold()

    def __len__(self) -> int:
        return int(self._starts[-1])

    def nearest(self, queries: Float32, k: int, leave_out: Index | None = None) -> tuple[Index, Float32]:
        """(Q, k) row numbers, -1 for none, and cosines, NaN there, nearest first.

        queries: (Q, d); those without a direction find nothing. leave_out: (Q,) one row that each query must not
        find, -1 for none.
        """
        unit, valid = unit_rows(queries)
        asked = np.flatnonzero(valid)
        rows = np.full((len(unit), k), -1, np.int64)
        cosines = np.full((len(unit), k), np.nan, np.float32)
        near, cosine = self._candidates(unit[asked], k + 1)  # one may be left out
        for i, query in enumerate(asked):
            chosen = near[i] >= 0 if leave_out is None else (near[i] >= 0) & (near[i] != leave_out[query])
            place = np.flatnonzero(chosen)[:k]
            rows[query, : len(place)], cosines[query, : len(place)] = near[i, place], cosine[i, place]
        return rows, cosines

    def take(self, rows: Index) -> Float32:
        """(R, d) unit rows by their numbers, zeros for those without a direction and for -1."""
        result = np.zeros((len(rows), self.width), np.float32)
        for numbers, unit in self.chunks():
            if len(numbers):
                place = np.minimum(np.searchsorted(numbers, rows), len(numbers) - 1)
                here = numbers[place] == rows
                result[here] = unit[place[here]]
        return result

    def _candidates(self, queries: Float32, wanted: int) -> tuple[Index, Float32]:
        """(Q, wanted) rows and cosines in their final order, -1 and -inf where there are no more."""
        import faiss

        best = np.full((len(queries), wanted), -1, np.int64), np.full((len(queries), wanted), -np.inf, np.float32)
        hidden = np.full(len(queries), -np.inf, np.float32)  # no row that faiss kept back is nearer than this
        for numbers, rows in self.chunks():
            count = min(wanted + SPARE, len(rows))
            if not len(queries) or not count:
                continue
            about, place = faiss.knn(queries, rows, count, metric=faiss.METRIC_INNER_PRODUCT)
            if count < len(rows):
                hidden = np.maximum(hidden, about[:, -1])
            best = _merge(best, (numbers[place], _cosines(queries, rows, place)), wanted)
        tied = np.isfinite(hidden) & (hidden >= best[1][:, -1] - ROUNDING)
        for i in np.flatnonzero(tied):  # the tie may go on beyond the candidates
            listed, cosine = self._all_from(queries[i : i + 1], best[1][i, -1] - ROUNDING)
            order = np.lexsort((listed, -cosine))[:wanted]
            best[0][i], best[1][i] = listed[order], cosine[order]
        return best

    def _all_from(self, query: Float32, least: np.float32) -> tuple[Index, Float32]:
        """Every row whose cosine with the query (1, d) is about `least` or more."""
        listed, cosines = [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
        for numbers, rows in self.chunks():
            place = np.flatnonzero(rows @ query[0] >= least)
            step = max(1, GATHERED // self.width)
            for part in (place[i : i + step] for i in range(0, len(place), step)):
                listed.append(numbers[part])
                cosines.append(_cosines(query, rows, part[None])[0])
        return np.concatenate(listed), np.concatenate(cosines)

    def chunks(self) -> Iterator[tuple[Index, Float32]]:
        """(row numbers, unit rows), valid ones only, in order."""
        if self._held is not None:
            yield self._held
            return
        for i, start in enumerate(self._starts[:-1]):
            unit, valid = unit_rows(self._read(i))
            yield start + np.flatnonzero(valid), unit[valid]

    def _hold(self) -> tuple[Index, Float32]:
        matrix, numbers = np.empty((len(self), self.width), np.float32), np.empty(len(self), np.int64)
        end = 0
        for found, rows in self.chunks():
            matrix[end : end + len(rows)], numbers[end : end + len(rows)] = rows, found
            end += len(rows)
        return numbers[:end], matrix[:end]


def _cosines(queries: Float32, rows: Float32, place: Index) -> Float32:
    """(Q, c) cosines of unit queries with the unit rows at `place` (Q, c); equal rows get equal ones."""
    result = np.empty(place.shape, np.float32)
    step = max(1, GATHERED // max(1, place.shape[1] * rows.shape[1]))
    for i in range(0, len(queries), step):
        part = slice(i, i + step)
        products = rows[place[part]].astype(np.float64) * queries[part, None, :]
        result[part] = np.clip(products.sum(axis=2), -1, 1)
    return result


def _merge(a: tuple[Index, Float32], b: tuple[Index, Float32], wanted: int) -> tuple[Index, Float32]:
    rows, cosines = np.concatenate([a[0], b[0]], axis=1), np.concatenate([a[1], b[1]], axis=1)
    order = np.lexsort((rows, -cosines), axis=1)[:, :wanted]
    return np.take_along_axis(rows, order, axis=1), np.take_along_axis(cosines, order, axis=1)
