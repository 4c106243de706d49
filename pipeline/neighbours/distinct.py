"""Group identical rows, so that each distinct row is searched once, and write its list for all copies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.runs.embeddings import reserve
from noisegate.pipeline.runs.rows import Rows, identical_rows, unit_rows
from noisegate.pipeline.system.array_types import Float32, Index

ROWS_READ = 4096  # at a time
ROWS_GROUPED = 1 << 20  # at a time
BYTES_PER_ROW = 96  # memory of a bucket's row: its digest, its place in the order, and numpy's copies while sorting
NearestLists: TypeAlias = tuple[Index, Float32]
"""(Q, k) row numbers (-1: none) and cosines (-inf there), nearest first."""
ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class DistinctRows:
    """The group of identical rows that each row belongs to (-1: none), and the rows of each group."""

    group: Index  # (N,)
    first: Index  # (U,) lowest row of each group; groups are numbered in this order
    members: Index  # (V,) rows with a direction, by group and then by row
    starts: Index  # (U + 1,) where each group starts in members


def find_distinct(rows: Rows, folder: Path | None = None, memory: int | None = None) -> DistinctRows:
    """Group identical rows by their digests. Rows without a direction belong to no group.

    With a `folder` the arrays are files in it, for `open_distinct`. About `memory` bytes are used (None: as many as needed):
    the digests are sorted in as many buckets as that requires.
    """
    total = len(rows)
    group = _create(folder, "group", total)
    digests = _create(folder, "digests", total, 2, dtype=np.uint64)
    for start, block in rows.chunks(ROWS_READ):
        unit, valid = unit_rows(block)
        digests[start : start + len(block)] = np.frombuffer(b"".join(identical_rows(unit)), np.uint64).reshape(-1, 2)
        group[start : start + len(block)] = np.where(valid, 0, -1)
    buckets = 1 if memory is None else -(-total * BYTES_PER_ROW // max(1, memory))
    leader = _find_leaders(digests, group, folder, max(1, buckets))
    _remove(folder, "digests")
    distinct = _number_groups(group, leader, folder)
    _remove(folder, "leader")
    return distinct


def open_distinct(folder: Path) -> DistinctRows:
    """Map the arrays that `find_distinct` wrote to `folder`."""
    return DistinctRows(*(_open(folder / f"{name}.npy") for name in ("group", "first", "members", "starts")))


def _find_leaders(digests: NDArray[np.uint64], group: Index, folder: Path | None, buckets: int) -> Index:
    """Find the lowest row identical to each row, (N,); undefined for rows that belong to no group."""
    leader = _create(folder, "leader", len(group))
    for bucket in range(buckets):
        parts = [np.empty(0, np.int64)]
        for start in range(0, len(group), ROWS_GROUPED):
            mine = group[start : start + ROWS_GROUPED] >= 0
            if buckets > 1:
                mine &= digests[start : start + ROWS_GROUPED, 0] % np.uint64(buckets) == bucket
            parts.append(np.flatnonzero(mine) + start)
        row = np.concatenate(parts)
        if not len(row):
            continue
        high, low = digests[row, 0], digests[row, 1]
        order = np.lexsort((low, high))  # stable: copies stay in the order of their rows
        high, low, row = high[order], low[order], row[order]
        fresh = np.concatenate([[True], (high[1:] != high[:-1]) | (low[1:] != low[:-1])])
        leader[row] = row[np.flatnonzero(fresh)[np.cumsum(fresh) - 1]]
    return leader


def _number_groups(group: Index, leader: Index, folder: Path | None) -> DistinctRows:
    """Number the groups in the order of their lowest rows, and list their members."""
    total = len(group)
    distinct = valid = 0
    for start in range(0, total, ROWS_GROUPED):
        row = np.flatnonzero(group[start : start + ROWS_GROUPED] >= 0) + start
        leads = leader[row] == row
        group[row[leads]] = np.arange(distinct, distinct + int(leads.sum()))
        group[row[~leads]] = group[leader[row[~leads]]]
        distinct, valid = distinct + int(leads.sum()), valid + len(row)
    first, starts = _create(folder, "first", distinct), _create(folder, "starts", distinct + 1)
    members, free = _create(folder, "members", valid), _create(folder, "free", distinct)
    for start in range(0, total, ROWS_GROUPED):
        row = np.flatnonzero(group[start : start + ROWS_GROUPED] >= 0) + start
        leads = leader[row] == row
        first[group[row[leads]]] = row[leads]
        number, count = np.unique(group[row], return_counts=True)
        free[number] += count  # group sizes; below, the next free place of each group in members
    end = 0
    for start in range(0, distinct, ROWS_GROUPED):
        sizes = free[start : start + ROWS_GROUPED]
        ends = end + np.cumsum(sizes)
        starts[start + 1 : start + 1 + len(sizes)] = ends
        free[start : start + ROWS_GROUPED] = ends - sizes
        end = int(ends[-1])
    for start in range(0, total, ROWS_GROUPED):
        row = np.flatnonzero(group[start : start + ROWS_GROUPED] >= 0) + start
        row = row[np.argsort(group[row], kind="stable")]
        number, begin, count = np.unique(group[row], return_index=True, return_counts=True)
        within = np.arange(len(row)) - np.repeat(begin, count)
        members[np.repeat(free[number], count) + within] = row
        free[number] += count
    _remove(folder, "free")
    return DistinctRows(group, first, members, starts)


def _create(folder: Path | None, name: str, *shape: int, dtype: Any = np.int64) -> NDArray[Any]:
    """Create an array of zeros, in memory or as a mapped file."""
    path = None if folder is None else folder / f"{name}.npy"
    if path is None or not shape[0]:  # an empty file cannot be mapped
        zeros = np.zeros(shape, dtype)
        if path is not None:
            np.save(path, zeros)
        return zeros
    mapped: NDArray[Any] = np.lib.format.open_memmap(path, "w+", dtype, shape)
    reserve(path)
    return mapped


def _remove(folder: Path | None, name: str) -> None:
    if folder is not None:
        (folder / f"{name}.npy").unlink()


def _open(path: Path) -> NDArray[Any]:
    try:
        return np.asanyarray(np.load(path, mmap_mode="r"))
    except ValueError:  # an empty array cannot be mapped
        return np.asarray(np.load(path))


def write_lists(
    distinct: DistinctRows, start: int, nearest: NearestLists, indices: NDArray[Any], similarities: NDArray[Any]
) -> int:
    """Write the lists (Q, w) of the distinct rows from `start` on into a graph's arrays (N, k); return the rows written.

    `nearest` holds numbers of distinct rows. Every copy of a searched row gets the list without the copy itself; short lists
    are filled with -1 and NaN.
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
    """Replace each group number by the rows of the group, up to `width` entries; equal cosines are in row order.

    If the list ends among several groups with the same cosine, the lowest rows of all these groups are taken.
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
    """Sort equal cosines of lists (Q, w) by row number; the lists are sorted by cosine already."""
    tied = ((similarity[:, 1:] == similarity[:, :-1]) & (listed[:, 1:] < listed[:, :-1])).any(axis=1)
    if tied.any():
        order = np.lexsort((listed[tied], -similarity[tied]), axis=1)
        listed[tied] = np.take_along_axis(listed[tied], order, axis=1)
    return listed


def _remove_self(rows: Index, listed: Index, similarity: Float32) -> NearestLists:
    """Remove each row from its own list; if the row is not in the list, remove the last entry."""
    own = listed == rows[:, None]
    own[~own.any(axis=1), -1] = True
    shape = len(rows), listed.shape[1] - 1
    return listed[~own].reshape(shape), similarity[~own].reshape(shape)
