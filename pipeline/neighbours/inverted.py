"""Inverted-file search: rows are in cells, a search probes the few nearest cells, and its recall is measured."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from noisegate.pipeline.system.array_types import Float32, Index
from noisegate.pipeline.system.output_files import whole_path

from .distinct import NearestLists, order_ties
from .exact import GPU_LIMIT, SLACK, copy_to_gpus
from .plan import QUERIES, ROWS_FOR_CODES, ROWS_PER_CELL, Kind

REFINED = 4  # candidates of a compressed search for each entry of a list
RECALL = 0.95  # target recall; probes are doubled until it is reached
RECALL_SAMPLE = 1000  # rows on which recall is measured
FIRST_PROBES = 8
GAIN = 0.002  # recall that more probes must add to a compressed search; less means that compression loses the rest


class InvertedIndex:
    """A trained and filled faiss index; `refine(queries, numbers)` computes exact cosines if its rows are compressed."""

    def __init__(
        self,
        faiss: Any,
        index: Any,
        probes: int = FIRST_PROBES,
        refine: Callable[[Float32, Index], Float32] | None = None,
        gpus: Sequence[int] = (),
    ) -> None:
        self._faiss, self._index, self._refine = faiss, index, refine
        self._on_gpu: Any = copy_to_gpus(faiss, index, gpus) if gpus else None
        self.set_probes(probes)

    def set_probes(self, probes: int) -> None:
        """Set the number of cells to search for each query."""
        self._index.nprobe = self.probes = min(probes, self._index.nlist)
        if self._on_gpu is not None:
            space = self._faiss.GpuParameterSpace()
            space.set_index_parameter(self._on_gpu, "nprobe", min(probes, GPU_LIMIT))

    def find_cells(self, queries: Float32) -> NearestLists:
        """Find the cells to probe, (Q, probes), and their cosines; all parts of a search share the cells."""
        cosine, cells = self._index.quantizer.search(queries, self._index.nprobe)
        return cells, cosine

    def nearest(self, queries: Float32, k: int, cells: NearestLists | None = None) -> NearestLists:
        """List the k nearest rows of unit queries (Q, d); given `cells` are not searched again."""
        count = int(self._index.ntotal)
        if self._refine is None:
            number, cosine = _in_order(*self._search(queries, min(k + SLACK, count), cells))
            return number[:, :k], cosine[:, :k]
        number, _ = self._search(queries, min(REFINED * k, count), cells)
        cosine = self._refine(queries, number)
        cosine[number < 0] = -np.inf
        order = np.argsort(-cosine, axis=1, kind="stable")[:, :k]
        return _in_order(np.take_along_axis(number, order, axis=1), np.take_along_axis(cosine, order, axis=1))

    def _search(self, queries: Float32, k: int, cells: NearestLists | None) -> NearestLists:
        if self._on_gpu is not None:
            cosine, number = self._on_gpu.search(queries, min(k, GPU_LIMIT))
            return number, cosine
        cell, distance = cells or self.find_cells(queries)
        cosine, number = self._index.search_preassigned(queries, k, cell, distance)
        return number, cosine


def _in_order(number: Index, cosine: Float32) -> NearestLists:
    np.clip(cosine, -1, 1, out=cosine)
    cosine[number < 0] = -np.inf
    return order_ties(number, cosine), cosine


def count_cells(rows: int) -> int:
    """Choose 4 sqrt(N) cells, but at least 40 rows per cell."""
    return max(1, min(int(4 * rows**0.5), rows // ROWS_PER_CELL))


def train_inverted(
    faiss: Any, kind: Kind, rows: int, width: int, read: Callable[[Index], Float32], seed: int, most: int | None = None
) -> Any:
    """Learn the cells, and the codes of a compressed index, from 40 rows per cell, or from `most` rows if that is less.

    `read` gives the unit rows of ascending numbers.
    """
    cells = count_cells(rows)
    size = min(rows, max(ROWS_PER_CELL * cells, ROWS_FOR_CODES if kind == "ivf-pq" else 0))
    size = size if most is None else min(size, max(cells, most))
    picked = np.sort(np.random.default_rng(seed).choice(rows, size=size, replace=False))
    quantiser = faiss.IndexFlatIP(width)
    index: Any
    if kind == "ivf-pq":
        index = faiss.IndexIVFPQ(quantiser, width, cells, code_bytes(width), 8, faiss.METRIC_INNER_PRODUCT)
    else:
        index = faiss.IndexIVFFlat(quantiser, width, cells, faiss.METRIC_INNER_PRODUCT)
    index.cp.seed = seed
    index.train(read(picked))
    return index


def code_bytes(width: int) -> int:
    """Return the bytes of a compressed row: one per 4 numbers, per 8 for widths above 128; fewer if the width does not divide.

    >>> [code_bytes(width) for width in (64, 512, 1280, 90, 7)]
    [16, 64, 160, 18, 1]
    """
    most = max(1, width // (4 if width <= 128 else 8))
    return next(count for count in range(most, 0, -1) if width % count == 0)


def add_rows(faiss: Any, index: Any, read: Callable[[slice], Float32], count: int, threads: int) -> None:
    """Put `count` rows into the cells of a trained index; `read` gives the unit rows of a slice of their numbers.

    Rows are read twice: first to count the rows of each cell and reserve its memory. A cell that grows row by row takes up to
    twice as much.
    """
    from faiss.contrib.ivf_tools import add_preassigned

    cells = np.empty(count, np.int32)
    starts = range(0, count, QUERIES)

    def read_from(start: int) -> Float32:
        return read(slice(start, min(count, start + QUERIES)))

    def assign(start: int) -> None:
        cells[start : start + QUERIES] = index.quantizer.search(read_from(start), 1)[1][:, 0]

    with one_thread_each(faiss, threads) as pool:
        list(pool.map(assign, starts))
        for cell, size in enumerate(np.bincount(cells, minlength=index.nlist).tolist()):
            index.invlists.resize(cell, size)
            index.invlists.resize(cell, 0)  # the reserved memory stays
        for first in range(0, len(starts), threads):  # as many blocks at a time as threads, so that none wait in memory
            some = starts[first : first + threads]
            for start, unit in zip(some, pool.map(read_from, some), strict=True):
                add_preassigned(index, unit, cells[start : start + len(unit)].astype(np.int64))


@contextmanager
def one_thread_each(faiss: Any, count: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of threads in which faiss starts no further threads.

    The bits of a cosine then depend neither on the number of threads nor on the machine's load.
    """
    with ThreadPoolExecutor(count, initializer=lambda: faiss.omp_set_num_threads(1)) as pool:
        yield pool


def most_probes(cells: int, gpus: Sequence[int]) -> int:
    """Return how many of the cells a search can probe."""
    return min(cells, GPU_LIMIT) if gpus else cells


class Probing(NamedTuple):
    """Number of cells that a search probes, and the share of true neighbours found."""

    probes: int
    recall: float


def sample_for_recall(rows: int, seed: int) -> Index:
    """Choose the rows, ascending, on which recall is measured."""
    chosen = np.random.default_rng(seed + 1).choice(rows, size=min(RECALL_SAMPLE, rows), replace=False)
    return np.sort(chosen)


def tune_probes(
    search: Callable[[int], NearestLists], sample: Index, truth: NearestLists, most: int, compressed: bool = False
) -> Probing:
    """Double the probes until the sample's recall reaches 0.95 or stops rising (if compressed), or `most` are used.

    `search(probes)` lists the sample's neighbours, `truth` are those found by comparing with every row. A listed row counts if
    it is as near as the last true neighbour, so ties do not matter.
    """
    least = truth[1][:, -1] - 1e-6
    probes, before = min(FIRST_PROBES, most), 0.0
    while True:
        recall = share_found(sample, *search(probes), least)
        enough = recall >= RECALL or (compressed and recall - before < GAIN)
        if enough or probes == most:
            return Probing(probes, recall)
        probes, before = min(2 * probes, most), recall


def share_found(own: Index, listed: Index, cosine: Float32, least: Float32) -> float:
    """Compute the recall of lists (Q, k); the query itself (Q,) does not count, so it is a share of the k - 1 others.

    least: (Q,) the cosine of the last true neighbour.

    >>> lists, cosines = np.array([[7, 3, 4, 5]]), np.array([[1.0, 0.9, 0.8, 0.2]], np.float32)
    >>> round(share_found(np.array([7]), lists, cosines, np.array([0.5], np.float32)), 3)
    0.667
    """
    others = listed.shape[1] - 1
    if not others:
        return 1.0
    right = ((cosine >= least[:, None]) & (listed != own[:, None])).sum(axis=1)
    return float(np.minimum(right, others).mean() / others)


def write_index(faiss: Any, index: Any, path: Path) -> None:
    """Write the index to a file, whole or not at all. Raise OSError on a full disk (faiss raises RuntimeError)."""
    with whole_path(path) as temporary:
        try:
            faiss.write_index(index, str(temporary))
        except RuntimeError as error:
            full = next((code for code in (errno.ENOSPC, errno.EDQUOT) if os.strerror(code) in str(error)), None)
            if full is None:
                raise
            raise OSError(full, os.strerror(full), str(path)) from error
