"""Neighbour lists of distinct rows written out for every row: copies named one by one, the row itself left out."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.system.array_types import Float32, Index

from .distinct import DistinctRows

NearestLists: TypeAlias = tuple[Index, Float32]
"""(Q, k) row numbers (-1: none) and cosines (-inf there), nearest first."""
ROWS_AT_ONCE = 4096


def write_lists(
    distinct: DistinctRows,
    start: int,
    nearest: NearestLists,
    indices: NDArray[Any],
    similarities: NDArray[Any],
) -> int:
    """Write the lists (Q, w) of the distinct rows from `start` on into a graph's arrays (N, k); return the rows written.

    `nearest` holds numbers of distinct rows. Every copy of a searched row gets its list without itself; lists that end
    early are filled with -1 and NaN.
    """
    k = indices.shape[1]
    listed, cosines = _name_copies(distinct, *nearest, min(k + 1, len(distinct.members)))
    members = distinct.members[distinct.starts[start] : distinct.starts[start + len(listed)]]
    for begin in range(0, len(members), ROWS_AT_ONCE):
        rows = np.asarray(members[begin : begin + ROWS_AT_ONCE])
        lists = np.asarray(distinct.group[rows]) - start
        others, cosine = _remove_self(rows, listed[lists], cosines[lists])
        full = np.full((len(rows), k), -1, indices.dtype)
        values = np.full((len(rows), k), np.nan, np.float32)
        full[:, : others.shape[1]] = others
        values[:, : others.shape[1]] = np.where(others >= 0, cosine, np.nan)
        indices[rows], similarities[rows] = full, values
    return len(members)


def _name_copies(distinct: DistinctRows, group: Index, cosine: Float32, width: int) -> NearestLists:
    """Replace each group of identical rows by its rows, `width` entries in all, equal cosines in the order of the rows.

    Where the cut falls among several groups of one cosine, the lowest of all their rows are taken.
    """
    if len(distinct.first) == len(distinct.members):
        listed = np.where(group >= 0, distinct.first[group], -1)
        return order_ties(listed, cosine), cosine
    sizes = np.where(group >= 0, distinct.starts[group + 1] - distinct.starts[group], 0)
    taken = np.clip(width - (np.cumsum(sizes, axis=1) - sizes), 0, sizes)
    flat = taken.ravel()
    within = np.arange(flat.sum()) - np.repeat(np.cumsum(flat) - flat, flat)
    filled = np.arange(width) < taken.sum(axis=1)[:, None]
    listed = np.full((len(group), width), -1, dtype=np.int64)
    similarity = np.full((len(group), width), -np.inf, dtype=np.float32)
    listed[filled] = distinct.members[np.repeat(distinct.starts[group].ravel(), flat) + within]
    similarity[filled] = np.repeat(cosine.ravel(), flat)
    last = similarity[:, -1:]
    for query in np.flatnonzero(((cosine == last) & (group >= 0)).sum(axis=1) > 1):
        tied = group[query][cosine[query] == last[query]]
        ends = np.minimum(distinct.starts[tied + 1], distinct.starts[tied] + width)
        rows = [distinct.members[begin:end] for begin, end in zip(distinct.starts[tied], ends, strict=True)]
        above = int((similarity[query] > last[query]).sum())
        listed[query, above:] = np.sort(np.concatenate(rows))[: width - above]
    return order_ties(listed, similarity), similarity


def order_ties(listed: Index, similarity: Float32) -> Index:
    """Put equal cosines of lists (Q, w), which are sorted by cosine, in the order of their numbers."""
    tied = ((similarity[:, 1:] == similarity[:, :-1]) & (listed[:, 1:] < listed[:, :-1])).any(axis=1)
    if tied.any():
        order = np.lexsort((listed[tied], -similarity[tied]), axis=1)
        listed[tied] = np.take_along_axis(listed[tied], order, axis=1)
    return listed


def _remove_self(rows: Index, listed: Index, similarity: Float32) -> NearestLists:
    """Remove each row from its own list; the last entry where the row is not in it."""
    own = listed == rows[:, None]
    own[~own.any(axis=1), -1] = True
    shape = len(rows), listed.shape[1] - 1
    return listed[~own].reshape(shape), similarity[~own].reshape(shape)
