"""Nearest rows in an order that depends on the rows alone, however the search rounds.

A matrix product gives the same pair other last bits in another block, on another machine and for another k, so it cannot
say which of two nearly equal cosines is larger. Where that matters they are measured again: the product of the two unit
rows in float64, rounded to float32, which is a number of the pair. Equal ones come in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from noisegate.pipeline.runs.rows import top_by_value
from noisegate.pipeline.system.array_types import Float32, Index, Mask

from .lists import Found

__all__ = ["Measure", "exact_top", "pair_cosines", "settle"]

Search = Callable[[Float32, int], Found]
Measure: TypeAlias = Callable[[Index, Index], Float32]
"""(P,) numbers of queries and (P,) of rows -> (P,) their cosines, as `pair_cosines` gives them"""

SURE, NOISE = 2e-6, 2e-7  # cosines from a product in float32 that differ by more than SURE |cos| + NOISE: ten times the
# standard deviation of that difference in 512 dimensions, where a cosine is the sum of as many small steps
SLACK = 8  # entries beyond a list, which tell whether its end falls among nearly equal ones
PAIRS = 512  # measured at a time
BLOCK = 4096  # rows that some queries are compared with at a time
WIDEST = 4_000_000  # cosines of the queries that are compared with every row at a time


def exact_top(search: Search, queries: Float32, k: int, base: Float32) -> Found:
    """(Q, k) the nearest of the rows (M, d) by (cosine, lower number); k <= M.

    search: (Q, w) of the w nearest, or of fewer but more than k, nearest first, rounded and with ties as it likes.
    """
    number, cosine = search(queries, min(k + SLACK, len(base)))
    np.clip(cosine, -1, 1, out=cosine)
    cosine[number < 0] = -np.inf
    number, cosine, unclear = settle(number, cosine, k, lambda at, row: pair_cosines(queries[at], base[row]))
    at = np.flatnonzero(unclear) if number.shape[1] < len(base) else np.empty(0, np.int64)
    number, cosine = number[:, :k], cosine[:, :k]
    block = max(BLOCK, k)
    for some in (at[i : i + WIDEST // block + 1] for i in range(0, len(at), WIDEST // block + 1)):
        near, value = _among_all(queries[some], base, k, block)
        # Entries before those that are nearly equal to the last one are settled, and keep what the search said.
        apart = np.flip(_apart(cosine[some]), axis=1)
        before = np.flip(np.logical_or.accumulate(apart, axis=1), axis=1)
        before = np.hstack([before, np.zeros((len(some), 1), np.bool_)])
        number[some] = np.where(before, number[some], near)
        cosine[some] = np.where(before, cosine[some], value)
    return number, cosine


def settle(number: Index, cosine: Float32, k: int, measure: Measure) -> tuple[Index, Float32, Mask]:
    """Lists (Q, w), in the order of their cosines, with the first k of them in their true order.

    Also (Q,) whether the k-th is nearly equal to all that follow, so that further ones may be as near.
    """
    close = ~_apart(cosine)
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


def pair_cosines(left: Float32, right: Float32) -> Float32:
    """(P,) cosines of unit rows (P, d) and (P, d)."""
    value = np.einsum("ij,ij->i", left, right, dtype=np.float64)
    return np.asarray(np.clip(value, -1, 1), dtype=np.float32)


def _apart(cosine: Float32) -> Mask:
    """(Q, w - 1) whether an entry is surely nearer than the next; no entries (-inf) are not in doubt."""
    with np.errstate(invalid="ignore"):
        return np.asarray(~(cosine[:, :-1] - cosine[:, 1:] <= SURE * np.abs(cosine[:, :-1]) + NOISE))


def _among_all(queries: Float32, base: Float32, k: int, block: int) -> Found:
    """(Q, k) the nearest, by comparing with every row in float64."""
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
