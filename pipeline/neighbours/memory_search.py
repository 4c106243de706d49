"""Build the neighbour graph of rows in memory, by the exact or the inverted index, and search exactly for new rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from noisegate.pipeline.runs.rows import RowBlocks, Rows, take_unit, unit_rows
from noisegate.pipeline.system.array_types import Float32, Floats, Index, Mask
from noisegate.pipeline.system.machine import count_threads

from .distinct import NearestLists, find_distinct, write_lists
from .exact import ExactIndex, check_gpu_lists, gpu_numbers, nearest_in_blocks, read_blocks
from .graph import Neighbours
from .inverted import InvertedIndex, add_rows, most_probes, sample_for_recall, train_inverted, tune_probes
from .plan import QUERIES, check_k, choose_kind

HELD_BYTES = 1 << 30  # most bytes of unit rows held for queries; larger runs are read again for each search
ROWS_READ = 16_384  # at a time


def find_neighbours(
    embeddings: Floats | Sequence[Floats],
    k: int,
    *,
    include_self: bool = False,
    exact_limit: int = 1_000_000,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> Neighbours:
    """Find the k nearest rows of every row by cosine; equal similarities come in the order of their indices.

    embeddings: (N, d), any float type, or a sequence of row blocks. A row without a direction (see `unit_rows`) has an empty
    list (-1) and is in no list. Lists that are too short end in -1. k: at most N - 1 columns are returned (N with
    `include_self`). include_self: the first column is the row itself, so that k - 1 others follow. exact_limit: rows up to
    which the search is exact; beyond, an inverted file is probed until its recall on a
        sample of rows reaches 0.95, and the recall reached is returned.
    device: "cpu"; "cuda" or "cuda:1" with a GPU build of faiss; "auto" takes the GPUs where faiss has some.
    progress: called with (rows done, rows in all).

    Identical rows are searched once and listed by index, and an exact search computes nearly equal cosines again (see `exact`),
    so no list depends on how faiss orders them or on k. Memory: the distinct rows in float32 plus the result, 8 k bytes per
    row.

    >>> graph = find_neighbours(np.array([[1., 0.], [1., .1], [0., 1.], [1., 0.]]), k=2)
    >>> graph.indices.tolist()
    [[3, 1], [0, 3], [1, 0], [0, 1]]
    """
    import faiss

    check_k(k)
    gpus = gpu_numbers(device)
    rows = RowBlocks(embeddings)
    total = len(rows)
    others = min(k, total) - 1 if include_self else min(k, max(total - 1, 0))
    check_gpu_lists(gpus, others)
    distinct = find_distinct(rows)
    wanted = min(others + 1, len(distinct.first))
    kind = choose_kind("auto", total, len(distinct.first), exact_limit)
    index: ExactIndex | InvertedIndex
    recall = None
    if kind == "flat":
        index = ExactIndex(faiss, take_unit(rows, distinct.first), gpus)
    else:
        index, recall = _build_inverted(faiss, rows, distinct.first, wanted, gpus)
    columns = others + include_self
    indices = np.full((total, columns), -1, dtype=np.int32 if total < 2**31 else np.int64)
    similarities = np.full((total, columns), np.nan, dtype=np.float32)
    if include_self:
        indices[distinct.members, 0], similarities[distinct.members, 0] = distinct.members, 1
    done = total - len(distinct.members)
    for start in range(0, len(distinct.first), QUERIES):
        if isinstance(index, ExactIndex):
            queries = index.base[start : start + QUERIES]
        else:
            queries = take_unit(rows, distinct.first[start : start + QUERIES])
        nearest = index.nearest(queries, wanted)
        done += write_lists(distinct, start, nearest, indices[:, include_self:], similarities[:, include_self:])
        if progress is not None:
            progress(done, total)
    return Neighbours(indices, similarities, recall, kind)


def _build_inverted(
    faiss: Any, rows: RowBlocks, first: Index, wanted: int, gpus: Sequence[int]
) -> tuple[InvertedIndex, float]:
    """Train, fill and tune an inverted file of the rows `first` for lists of `wanted` entries; also return its recall."""

    def read(numbers: Index | slice) -> Float32:
        return take_unit(rows, first[numbers])

    trained = train_inverted(faiss, "ivf", len(first), rows.width, read, seed=0)
    add_rows(faiss, trained, read, len(first), count_threads())
    index = InvertedIndex(faiss, trained, gpus=gpus)
    sample = sample_for_recall(len(first), seed=0)
    queries = read(sample)
    truth = nearest_in_blocks(faiss, read_blocks(read, len(first)), queries, wanted, gpus=gpus)

    def search(probes: int) -> NearestLists:
        index.set_probes(probes)
        return index.nearest(queries, wanted)

    probing = tune_probes(search, sample, truth, most_probes(trained.nlist, gpus))
    index.set_probes(probing.probes)
    return index, probing.recall


class RowQuery:
    """Unit rows to search by cosine, in the order of `find_neighbours`; rows without a direction are never found.

    Unit rows are held in memory if they take at most `memory` bytes; otherwise each search reads them from disk. Every cosine
    is computed separately, so equal rows tie exactly and come in the order of their numbers.
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
        """Which rows can be found, (N,)."""
        result = np.zeros(len(self._rows), np.bool_)
        for numbers, _ in self._blocks():
            result[numbers] = True
        return result

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, rows: Index) -> Float32:
        """Read the unit rows with these ascending numbers, (R, d), zeros for rows without a direction."""
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
        """Yield (number of the first row, at most `size` unit rows) in order."""
        for start in range(0, len(self), size):
            yield start, self.take(np.arange(start, min(start + size, len(self))))

    def nearest(self, queries: Float32, k: int, leave_out: Index | None = None) -> tuple[Index, Float32]:
        """Find the k nearest rows, nearest first: row numbers (Q, k), -1 for none, and cosines, NaN for none.

        queries: (Q, d); queries without a direction find nothing. leave_out: (Q,) one row per query that is not returned, -1
        for none.
        """
        import faiss

        unit, valid = unit_rows(queries)
        asked = np.flatnonzero(valid)
        near, cosine = nearest_in_blocks(faiss, self._blocks(), unit[asked], k + 1, measured=True)
        left_out = np.full(len(asked), -1) if leave_out is None else leave_out[asked]
        dropped = (near == left_out[:, None]) & (near >= 0)
        dropped[~dropped.any(axis=1), -1] = True  # the list has one entry more than requested
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
