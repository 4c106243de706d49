"""Neighbour lists of distinct rows written out for every row: copies named one by one, the row itself left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from noisegate.pipeline.system.array_types import Float32, Index

__all__ = ["Bank", "Found", "expand", "expand_in_order", "order_ties", "without_self"]

Found: TypeAlias = tuple[Index, Float32]
"""(Q, k) row numbers (-1: none) and cosines, nearest first."""


@dataclass(frozen=True)
class Bank:
    """Which of the distinct rows each row is (-1: none), and which rows each distinct row stands for."""

    group: Index  # (N,)
    first: Index  # (U,) lowest row of each group; groups are numbered in this order
    members: Index  # (V,) valid rows, by group and then by row
    starts: Index  # (U + 1,) where each group starts in members


def expand(bank: Bank, group: Index, cosine: Float32, width: int) -> Found:
    """Groups of identical rows written out as their rows, the first `width` of them."""
    if len(bank.first) == len(bank.members):
        return np.where(group >= 0, bank.first[group], -1), cosine
    sizes = np.where(group >= 0, bank.starts[group + 1] - bank.starts[group], 0)
    taken = np.clip(width - (np.cumsum(sizes, axis=1) - sizes), 0, sizes)
    flat = taken.ravel()
    within = np.arange(flat.sum()) - np.repeat(np.cumsum(flat) - flat, flat)
    filled = np.arange(width) < taken.sum(axis=1)[:, None]
    listed = np.full((len(group), width), -1, dtype=np.int64)
    similarity = np.full((len(group), width), -np.inf, dtype=np.float32)
    listed[filled] = bank.members[np.repeat(bank.starts[group].ravel(), flat) + within]
    similarity[filled] = np.repeat(cosine.ravel(), flat)
    return listed, similarity


def expand_in_order(bank: Bank, group: Index, cosine: Float32, width: int) -> Found:
    """As `expand`, of lists whose tied groups are the lowest numbered, with equal cosines in the order of the rows.

    Where the cut falls among several groups of one cosine, the lowest of all their rows are taken.
    """
    listed, similarity = expand(bank, group, cosine, width)
    if len(bank.first) < len(bank.members):
        edge = similarity[:, -1:]
        several = ((cosine == edge) & (group >= 0)).sum(axis=1) > 1
        for at in np.flatnonzero(several):
            tied = group[at][cosine[at] == edge[at]]
            ends = np.minimum(bank.starts[tied + 1], bank.starts[tied] + width)
            rows = [bank.members[begin:end] for begin, end in zip(bank.starts[tied], ends, strict=True)]
            above = int((similarity[at] > edge[at]).sum())
            listed[at, above:] = np.sort(np.concatenate(rows))[: width - above]
    return order_ties(listed, similarity), similarity


def order_ties(listed: Index, similarity: Float32) -> Index:
    """The lists (Q, w), which are in the order of their cosines, with equal cosines in the order of the numbers."""
    tied = ((similarity[:, 1:] == similarity[:, :-1]) & (listed[:, 1:] < listed[:, :-1])).any(axis=1)
    if tied.any():
        order = np.lexsort((listed[tied], -similarity[tied]), axis=1)
        listed[tied] = np.take_along_axis(listed[tied], order, axis=1)
    return listed


def without_self(row: Index, listed: Index, similarity: Float32) -> Found:
    """Each list less its own row; less its last entry where the row itself is not among them."""
    own = listed == row[:, None]
    own[~own.any(axis=1), -1] = True
    shape = len(row), listed.shape[1] - 1
    return listed[~own].reshape(shape), similarity[~own].reshape(shape)
