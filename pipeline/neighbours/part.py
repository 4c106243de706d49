"""The nearest of some queries within one part of the base: by comparing with every row, or through an inverted file.

Each call to faiss runs on one thread, and several threads take queries in turn: the bits of a cosine then depend neither
on the number of threads nor on the machine's load.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np

from noisegate.pipeline.system.array_types import Float32, Index
from noisegate.pipeline.system.processors import processors

from .index import GPU_LIMIT, to_gpus
from .lists import Found, order_ties
from .near_ties import SLACK, Measure, exact_top, settle

__all__ = [
    "ExactPart",
    "InvertedPart",
    "StreamedPart",
    "merge",
    "one_thread_each",
    "threads",
    "write_index",
]

STREAMED = 65_536  # rows of a part that is read a few at a time
REFINED = 4  # candidates of a compressed search for each entry of a list
GATHERED = 1 << 24  # numbers of candidates held at a time
In, Out = TypeVar("In"), TypeVar("Out")


def threads() -> int:
    """As many as OMP_NUM_THREADS says, else one for each processor."""
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if given.isdigit() and int(given):
        return int(given)
    return processors()


@contextmanager
def one_thread_each(faiss: Any, count: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of threads in each of which faiss uses no further ones."""
    with ThreadPoolExecutor(count, initializer=lambda: faiss.omp_set_num_threads(1)) as pool:
        yield pool


def write_index(faiss: Any, index: Any, path: Path) -> None:
    """The index as a file that appears whole; raises OSError for a full disk, of which faiss only speaks."""
    hidden = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        faiss.write_index(index, str(hidden))
    except RuntimeError as error:
        hidden.unlink(missing_ok=True)
        full = next((code for code in (errno.ENOSPC, errno.EDQUOT) if os.strerror(code) in str(error)), None)
        if full is None:
            raise
        raise OSError(full, os.strerror(full), str(path)) from error
    hidden.replace(path)


def _ordered(number: Index, cosine: Float32) -> Found:
    np.clip(cosine, -1, 1, out=cosine)
    cosine[number < 0] = -np.inf
    return order_ties(number, cosine), cosine


class ExactPart:
    """Rows (M, d) in memory, compared with all queries; on GPUs where numbers of some are given."""

    def __init__(self, faiss: Any, base: Float32, gpus: Sequence[int] = ()) -> None:
        self._faiss, self._base = faiss, base
        self._on_gpu: Any = None
        if gpus:
            index = faiss.IndexFlatIP(base.shape[1])
            index.add(base)
            self._on_gpu = to_gpus(faiss, index, list(gpus))

    def nearest(self, queries: Float32, k: int) -> Found:
        return exact_top(self._search, queries, min(k, len(self._base)), self._base)

    def _search(self, queries: Float32, k: int) -> Found:
        if self._on_gpu is not None and k <= GPU_LIMIT:
            cosine, number = self._on_gpu.search(queries, k)
        else:
            cosine, number = self._faiss.knn(queries, self._base, k, metric=self._faiss.METRIC_INNER_PRODUCT)
        return number, cosine


def merge(found: Sequence[Found], measure: Measure | None = None) -> Found:
    """The nearest of what each part found, as long as one part's lists: (cosine, lower number) decides.

    Parts are in the order of their rows, and each list is in order, so a stable sort by cosine keeps ties in order. Nearly
    equal cosines of several parts are measured again where it is said how.

    >>> one = np.array([[0, 2]]), np.array([[.9, .5]], np.float32)
    >>> other = np.array([[4, 5]]), np.array([[.9, .6]], np.float32)
    >>> merge([one, other])[0].tolist()
    [[0, 4]]
    """
    if len(found) == 1:
        return found[0]
    width = found[0][0].shape[1]
    number, cosine = (np.concatenate([one[i] for one in found], axis=1) for i in (0, 1))
    order = np.argsort(-cosine, axis=1, kind="stable")
    number, cosine = np.take_along_axis(number, order, axis=1), np.take_along_axis(cosine, order, axis=1)
    if measure is not None:
        number, cosine, _ = settle(number, cosine, width, measure)
    return number[:, :width], cosine[:, :width]


class StreamedPart:
    """Rows that are read a few at a time and compared with all queries: for a few queries, in little memory."""

    def __init__(self, faiss: Any, read: Callable[[int, int], Float32], count: int, gpus: Sequence[int] = ()) -> None:
        self._faiss, self._read, self._count, self._gpus = faiss, read, count, gpus

    def nearest(self, queries: Float32, k: int) -> Found:
        best: Found | None = None
        for start in range(0, self._count, STREAMED):
            base = self._read(start, min(self._count, start + STREAMED))
            near, value = ExactPart(self._faiss, base, self._gpus).nearest(queries, k)
            number = np.full((len(queries), k), -1, np.int64)
            cosine = np.full((len(queries), k), -np.inf, np.float32)
            number[:, : near.shape[1]], cosine[:, : near.shape[1]] = near + start, value
            best = (number, cosine) if best is None else merge([best, (number, cosine)])
        assert best is not None  # no part is empty
        return best


class InvertedPart:
    """An inverted file of a part; `refine(queries, numbers)` gives exact cosines where the stored rows are compressed."""

    def __init__(
        self,
        faiss: Any,
        index: Any,
        probes: int,
        refine: Callable[[Float32, Index], Float32] | None = None,
        gpus: Sequence[int] = (),
    ) -> None:
        self._index, self._refine = index, refine
        index.nprobe = self.probes = min(probes, index.nlist)
        self._on_gpu: Any = None
        if gpus:
            self._on_gpu = to_gpus(faiss, index, list(gpus))
            faiss.GpuParameterSpace().set_index_parameter(self._on_gpu, "nprobe", min(probes, GPU_LIMIT))

    def cells(self, queries: Float32) -> Found:
        """(Q, probes) the cells to look into, and their cosines: the same in all parts, so that they are found once."""
        near, cells = self._index.quantizer.search(queries, self._index.nprobe)
        return cells, near

    def nearest(self, queries: Float32, k: int, cells: Found | None = None) -> Found:
        count = int(self._index.ntotal)
        if self._refine is None:
            number, cosine = _ordered(*self._search(queries, min(k + SLACK, count), cells))
            return number[:, :k], cosine[:, :k]
        number, _ = self._search(queries, min(REFINED * k, count), cells)
        cosine = self._refine(queries, number)
        cosine[number < 0] = -np.inf
        order = np.argsort(-cosine, axis=1, kind="stable")[:, :k]
        return _ordered(np.take_along_axis(number, order, axis=1), np.take_along_axis(cosine, order, axis=1))

    def _search(self, queries: Float32, k: int, cells: Found | None) -> Found:
        if self._on_gpu is not None:
            cosine, number = self._on_gpu.search(queries, min(k, GPU_LIMIT))
            return number, cosine
        near, distances = self.cells(queries) if cells is None else cells
        cosine, number = self._index.search_preassigned(queries, k, near, distances)
        return number, cosine
