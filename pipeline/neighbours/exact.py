"""Exact k-nearest search by cosine, on CPU or GPUs, in an order that depends only on the rows, not on how faiss rounds.

The last bits of a cosine from a matrix product depend on the block, the machine and k, so it cannot decide which of two nearly
equal cosines is larger. Such cosines are computed again: the product of the two unit rows in float64, rounded to float32, which
depends only on the pair. Equal cosines come in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.runs.rows import top_by_value
from noisegate.pipeline.system.array_types import Float32, Index, Mask

from .distinct import NearestLists

SLACK = 8  # extra entries to search, which show whether a list ends among nearly equal cosines
PAIRS = 512  # pairs computed at a time
BLOCK = 4096  # rows that queries are compared with at a time
STREAMED = 65_536  # rows of a block that is read, searched and forgotten
WIDEST = 4_000_000  # most cosines of queries with all rows in memory at a time
GPU_LIMIT = 2048  # longest list, and most probes, that faiss handles on a GPU
SPARE = 9  # entries of a list beyond k: the row itself, and SLACK that show whether the list ends inside a tie
Search: TypeAlias = Callable[[Float32, int], NearestLists]
Measure: TypeAlias = Callable[[Index, Index], Float32]
"""(P,) numbers of queries and (P,) of rows -> (P,) their cosines, as `pair_cosines` gives them"""
# Cosines from a float32 product that differ by more than SURE |cos| + NOISE are surely different: ten times the standard
# deviation of that difference in 512 dimensions, where a cosine is the sum of as many small steps.
SURE, NOISE = 2e-6, 2e-7


class ExactIndex:
    """Unit rows (M, d) in memory, compared with every query; on GPUs if their numbers are given."""

    def __init__(self, faiss: Any, base: Float32, gpus: Sequence[int] = ()) -> None:
        self._faiss, self.base = faiss, base
        self._on_gpu: Any = None
        if gpus:
            index = faiss.IndexFlatIP(base.shape[1])
            index.add(base)
            self._on_gpu = copy_to_gpus(faiss, index, gpus)

    def nearest(self, queries: Float32, k: int) -> NearestLists:
        """List the k nearest rows of unit queries (Q, d), or all M if there are fewer."""
        return exact_top(self._search, queries, min(k, len(self.base)), self.base)

    def _search(self, queries: Float32, k: int) -> NearestLists:
        if self._on_gpu is not None and k <= GPU_LIMIT:
            cosine, number = self._on_gpu.search(queries, k)
        else:
            cosine, number = self._faiss.knn(queries, self.base, k, metric=self._faiss.METRIC_INNER_PRODUCT)
        return number, cosine


def read_blocks(read: Callable[[slice], Float32], count: int) -> Iterator[tuple[Index, Float32]]:
    """Yield (numbers, unit rows) of `count` rows, a block at a time."""
    for start in range(0, count, STREAMED):
        stop = min(count, start + STREAMED)
        yield np.arange(start, stop), read(slice(start, stop))


def nearest_in_blocks(
    faiss: Any,
    blocks: Iterable[tuple[Index, Float32]],
    queries: Float32,
    k: int,
    *,
    measured: bool = False,
    gpus: Sequence[int] = (),
) -> NearestLists:
    """List the k nearest of rows that come in blocks: (n,) ascending numbers and (n, d) unit rows.

    With `measured` every cosine depends only on its pair. Otherwise nearly equal cosines of two blocks may be swapped.
    """
    best = np.full((len(queries), k), -1, np.int64), np.full((len(queries), k), -np.inf, np.float32)
    for numbers, base in blocks:
        if not len(base) or not len(queries):
            continue
        near, cosine = ExactIndex(faiss, base, gpus).nearest(queries, k)
        if measured:
            row, column = np.indices(near.shape).reshape(2, -1)
            for start in range(0, len(row), PAIRS):
                some = row[start : start + PAIRS], column[start : start + PAIRS]
                cosine[some] = pair_cosines(queries[some[0]], base[near[some]])
        best = merge_lists([best, (numbers[near], cosine)])
    return best


def merge_lists(lists: Sequence[NearestLists], measure: Measure | None = None) -> NearestLists:
    """Merge lists of the same queries over consecutive blocks of rows; the result is as long as the first list.

    Entries are ordered by cosine, then by lower number: each list is in this order, so a stable sort by cosine suffices. With
    `measure`, nearly equal cosines of several lists are computed again.

    >>> first = np.array([[0, 2]]), np.array([[.9, .5]], np.float32)
    >>> second = np.array([[4, 5]]), np.array([[.9, .6]], np.float32)
    >>> merge_lists([first, second])[0].tolist()
    [[0, 4]]
    """
    if len(lists) == 1:
        return lists[0]
    width = lists[0][0].shape[1]
    number, cosine = (np.concatenate([part[i] for part in lists], axis=1) for i in (0, 1))
    order = np.argsort(-cosine, axis=1, kind="stable")
    number, cosine = np.take_along_axis(number, order, axis=1), np.take_along_axis(cosine, order, axis=1)
    if measure is not None:
        number, cosine, _ = _settle(number, cosine, width, measure)
    return number[:, :width], cosine[:, :width]


def exact_top(search: Search, queries: Float32, k: int, base: Float32) -> NearestLists:
    """Return the k nearest of the rows (M, d), (Q, k), ordered by cosine, then lower number; k <= M.

    `search(queries, w)` returns the w nearest (or fewer, but more than k), nearest first, with any rounding and order of ties.
    """
    number, cosine = search(queries, min(k + SLACK, len(base)))
    np.clip(cosine, -1, 1, out=cosine)
    cosine[number < 0] = -np.inf
    number, cosine, unclear = _settle(number, cosine, k, lambda query, row: pair_cosines(queries[query], base[row]))
    doubtful = np.flatnonzero(unclear) if number.shape[1] < len(base) else np.empty(0, np.int64)
    number, cosine = number[:, :k], cosine[:, :k]
    block = max(BLOCK, k)
    step = WIDEST // block + 1
    for some in (doubtful[i : i + step] for i in range(0, len(doubtful), step)):
        near, value = _compare_with_all(queries[some], base, k, block)
        # Entries before the last group of nearly equal ones are in final order, and keep the search's cosines.
        apart = np.flip(_surely_apart(cosine[some]), axis=1)
        before = np.flip(np.logical_or.accumulate(apart, axis=1), axis=1)
        before = np.hstack([before, np.zeros((len(some), 1), np.bool_)])
        number[some] = np.where(before, number[some], near)
        cosine[some] = np.where(before, cosine[some], value)
    return number, cosine


def pair_cosines(left: Float32, right: Float32) -> Float32:
    """Compute cosines (P,) of unit rows (P, d) and (P, d)."""
    value = np.einsum("ij,ij->i", left, right, dtype=np.float64)
    return np.asarray(np.clip(value, -1, 1), dtype=np.float32)


def _settle(number: Index, cosine: Float32, k: int, measure: Measure) -> tuple[Index, Float32, Mask]:
    """Sort the first k entries of lists (Q, w) exactly; the lists are sorted by approximate cosines.

    Also return (Q,) whether the k-th entry is nearly equal to all later ones, so that rows beyond the list may be as near.
    """
    close = ~_surely_apart(cosine)
    beyond = np.logical_and.accumulate(close[:, k - 1 :], axis=1)  # nearly equal to the k-th
    close[:, k - 1 :] = beyond
    unclear = beyond[:, -1] if beyond.shape[1] else np.ones(len(number), np.bool_)
    near = np.flatnonzero(close.any(axis=1))
    if len(near):
        number, cosine = number.copy(), cosine.copy()
        doubtful = np.zeros((len(near), number.shape[1]), np.bool_)
        doubtful[:, 1:] |= close[near]
        doubtful[:, :-1] |= close[near]
        row, column = np.nonzero(doubtful)
        row = near[row]
        for start in range(0, len(row), PAIRS):
            pairs = row[start : start + PAIRS], column[start : start + PAIRS]
            cosine[pairs] = measure(pairs[0], number[pairs])
        order = np.lexsort((number[near], -cosine[near]), axis=1)
        number[near] = np.take_along_axis(number[near], order, axis=1)
        cosine[near] = np.take_along_axis(cosine[near], order, axis=1)
    return number, cosine, unclear


def _surely_apart(cosine: Float32) -> Mask:
    """Return (Q, w - 1) whether an entry is surely nearer than the next; missing entries (-inf) are never in doubt."""
    with np.errstate(invalid="ignore"):
        return np.asarray(~(cosine[:, :-1] - cosine[:, 1:] <= SURE * np.abs(cosine[:, :-1]) + NOISE))


def _compare_with_all(queries: Float32, base: Float32, k: int, block: int) -> NearestLists:
    """Find the k nearest, (Q, k), by comparing with every row in float64."""
    exact = queries.astype(np.float64)
    number, cosine = np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32)
    for start in range(0, len(base), block):
        product = exact @ base[start : start + block].astype(np.float64).T
        cosine = np.hstack([cosine, np.clip(product, -1, 1).astype(np.float32)])
        fresh = np.arange(start, start + product.shape[1])
        number = np.hstack([number, np.broadcast_to(fresh, product.shape)])
        top = top_by_value(cosine, min(k, cosine.shape[1]))
        number, cosine = np.take_along_axis(number, top, axis=1), np.take_along_axis(cosine, top, axis=1)
    return number, cosine


def gpu_numbers(device: str) -> list[int]:
    """Return the GPUs to search on; none for the CPU."""
    import faiss

    kind, _, number = device.partition(":")
    if kind not in {"cpu", "cuda", "auto"} or (number and not (kind == "cuda" and number.isdigit())):
        raise ConfigError.of("device", device, "is unknown; use cpu, auto, cuda or cuda:0")
    if kind == "cpu":
        return []
    present = int(faiss.get_num_gpus()) if hasattr(faiss, "get_num_gpus") else 0
    wanted = [int(number)] if number else list(range(present))
    if kind == "cuda" and (not wanted or max(wanted) >= present):
        raise ConfigError.of("device", device, f"is not among faiss's {present} GPUs; install faiss-gpu or use auto")
    return wanted


def check_gpu_lists(gpus: Sequence[int], k: int) -> None:
    """Raise ConfigError if lists of k neighbours are too long for the GPUs."""
    if gpus and k + SPARE > GPU_LIMIT:
        raise ConfigError.of("k", k, f"is too long a list for faiss on a GPU; use {GPU_LIMIT - SPARE}, or no GPU")


def copy_to_gpus(faiss: Any, index: Any, gpus: Sequence[int]) -> Any:
    """Copy the index to a GPU, or spread its rows over several; searched in full precision."""
    if len(gpus) == 1:
        resources, options = faiss.StandardGpuResources(), faiss.GpuClonerOptions()
        options.useFloat16 = False
        copy = faiss.index_cpu_to_gpu(resources, gpus[0], index, options)
        copy.resources = resources  # faiss keeps a bare pointer to it
        return copy
    options = faiss.GpuMultipleClonerOptions()
    options.shard = True
    options.useFloat16 = False
    return faiss.index_cpu_to_gpus_list(index, co=options, gpus=list(gpus))
