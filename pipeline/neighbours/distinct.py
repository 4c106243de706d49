"""Identical rows found once for all: which rows are distinct, and who is a copy of whom, in arrays that stay on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.runs.mapped_rows import MappedRows
from noisegate.pipeline.runs.rows import identical_rows, unit_rows
from noisegate.pipeline.runs.tensor_files import reserve

from .lists import Bank

__all__ = ["find_distinct", "open_bank"]

AT_ONCE = 4096
BYTES = 96  # of memory for each row of a bucket: digests, their order and what numpy needs to sort them
Usable = Callable[[int], NDArray[np.bool_]]


def find_distinct(rows: MappedRows, usable: Usable, folder: Path, memory: int) -> Bank:
    """Group identical rows and write group, first, members and starts to `folder`, needing about `memory` bytes.

    `usable(i)` says which rows of file i count; those, and rows without a direction, belong to no group.  Rows are told
    apart by digests, which are sorted in as many buckets as the memory asks for.
    """
    total = len(rows)
    group = _create(folder, "group", total)
    digests = _create(folder, "digests", total, 2, kind=np.uint64)
    mask, place = np.empty(0, np.bool_), -1
    for at, start, block in rows.chunks(AT_ONCE):
        if at != place:
            mask, place = usable(at), at
        unit, valid = unit_rows(block)
        local = start - int(rows.offsets[at])
        valid &= mask[local : local + len(block)]
        digests[start : start + len(block)] = np.frombuffer(b"".join(identical_rows(unit)), np.uint64).reshape(-1, 2)
        group[start : start + len(block)] = np.where(valid, 0, -1)
    leader = _leaders(digests, group, folder, -(-total * BYTES // max(1, memory)))
    bank = _number(group, leader, folder)
    del digests, leader
    for name in ("digests", "leader"):
        (folder / f"{name}.npy").unlink()
    return bank


def open_bank(folder: Path) -> Bank:
    """What `find_distinct` wrote, as memory maps."""
    names = ("group", "first", "members", "starts")
    return Bank(*(_open(folder / f"{name}.npy") for name in names))


def _leaders(digests: NDArray[np.uint64], group: NDArray[Any], folder: Path, buckets: int) -> NDArray[Any]:
    """(N,) the lowest row identical to each row; anything for rows that belong to no group."""
    leader = _create(folder, "leader", len(group))
    step = 1 << 20
    for bucket in range(max(1, buckets)):
        parts = []
        for start in range(0, len(group), step):
            mine = group[start : start + step] >= 0
            if buckets > 1:
                mine &= digests[start : start + step, 0] % np.uint64(buckets) == bucket
            parts.append(np.flatnonzero(mine) + start)
        row = np.concatenate(parts) if parts else np.empty(0, np.int64)
        if not len(row):
            continue
        high, low = digests[row, 0], digests[row, 1]
        order = np.lexsort((low, high))  # stable: copies stay in the order of their rows
        high, low, row = high[order], low[order], row[order]
        fresh = np.concatenate([[True], (high[1:] != high[:-1]) | (low[1:] != low[:-1])])
        leader[row] = row[np.flatnonzero(fresh)[np.cumsum(fresh) - 1]]
    return leader


def _number(group: NDArray[Any], leader: NDArray[Any], folder: Path) -> Bank:
    """Number the groups in the order of their lowest rows, and list their members."""
    step = 1 << 20
    total = len(group)
    distinct = valid = 0
    for start in range(0, total, step):
        row = np.flatnonzero(group[start : start + step] >= 0) + start
        own = leader[row] == row
        group[row[own]] = np.arange(distinct, distinct + int(own.sum()))
        group[row[~own]] = group[leader[row[~own]]]
        distinct, valid = distinct + int(own.sum()), valid + len(row)
    first, starts = _create(folder, "first", distinct), _create(folder, "starts", distinct + 1)
    members, free = _create(folder, "members", valid), _create(folder, "free", distinct)
    for start in range(0, total, step):
        row = np.flatnonzero(group[start : start + step] >= 0) + start
        own = leader[row] == row
        first[group[row[own]]] = row[own]
        number, count = np.unique(group[row], return_counts=True)
        free[number] += count  # sizes, for now
    at = 0
    for start in range(0, distinct, step):
        sizes = free[start : start + step]
        ends = at + np.cumsum(sizes)
        starts[start + 1 : start + 1 + len(sizes)] = ends
        free[start : start + step] = ends - sizes
        at = int(ends[-1])
    for start in range(0, total, step):
        row = np.flatnonzero(group[start : start + step] >= 0) + start
        row = row[np.argsort(group[row], kind="stable")]
        number, begin, count = np.unique(group[row], return_index=True, return_counts=True)
        within = np.arange(len(row)) - np.repeat(begin, count)
        members[np.repeat(free[number], count) + within] = row
        free[number] += count
    del free
    (folder / "free.npy").unlink()
    return Bank(group, first, members, starts)


def _create(folder: Path, name: str, *shape: int, kind: Any = np.int64) -> NDArray[Any]:
    path = folder / f"{name}.npy"
    if not shape[0]:  # an empty file cannot be mapped
        np.save(path, np.empty(shape, kind))
        return np.empty(shape, kind)
    made: NDArray[Any] = np.lib.format.open_memmap(path, "w+", kind, shape)
    reserve(path)
    return made


def _open(path: Path) -> NDArray[Any]:
    try:
        found: NDArray[Any] = np.load(path, mmap_mode="r")
    except ValueError:  # an empty one cannot be mapped
        found = np.load(path)
    return found
