"""Group identical rows, so that each distinct row is searched once; the arrays are in memory or stay on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.runs.rows import Rows, identical_rows, unit_rows
from noisegate.pipeline.runs.tensor_files import reserve
from noisegate.pipeline.system.array_types import Index

ROWS_READ = 4096  # at a time
ROWS_GROUPED = 1 << 20  # at a time
BYTES_PER_ROW = 96  # memory of a bucket's row: its digest, its place in the order, and numpy's copies while sorting


@dataclass(frozen=True)
class DistinctRows:
    """The group of identical rows that each row belongs to (-1: none), and the rows of each group."""

    group: Index  # (N,)
    first: Index  # (U,) lowest row of each group; groups are numbered in this order
    members: Index  # (V,) rows with a direction, by group and then by row
    starts: Index  # (U + 1,) where each group starts in members


def find_distinct(rows: Rows, folder: Path | None = None, memory: int | None = None) -> DistinctRows:
    """Group identical rows, told apart by their digests. Rows without a direction belong to no group.

    With a `folder` the arrays are files of it, for `open_distinct`. About `memory` bytes are used (None: as many as
    needed), by sorting the digests in as many buckets as that takes.
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
    """(N,) the lowest row identical to each row; undefined for rows that belong to no group."""
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
    """Zeros, in memory or as a mapped file."""
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
    except ValueError:  # an empty one cannot be mapped
        return np.asarray(np.load(path))
