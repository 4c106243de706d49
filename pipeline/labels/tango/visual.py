"""Votes of neighbours: class-balanced votes of the samples that a row lists, and labels of the samples that list the row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_matrix

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.neighbours import Neighbours
from noisegate.pipeline.system.array_types import Float32, Float64, Index, Integers, Mask

from .row_votes import RowVotes

NeighbourLists: TypeAlias = Neighbours | Integers
"""A graph, or its (N, k) row numbers with -1 for none."""


def visual_consistency(
    neighbours: NeighbourLists, labels: ArrayLike, classes: int, *, duplicates: ArrayLike | None = None
) -> Float32:
    """p_vis (N, C): the classes of a sample's neighbours, each vote divided by the size of its class.

    s_i = sum_{j in N(i)} onehot(y_j) / pi,  p_vis_i = s_i / |s_i|_1        (TANGO supplement, Eq. 9-10)

    pi counts the given labels.  labels: (N,), -1 (unlabelled or invalid) does not vote.  A row without
    a labelled neighbour gets the one-hot of its own label, or NaN when it has none.
    duplicates: (N,) from `near_duplicates`: copies in one list share one vote, and count once in pi.

    >>> visual_consistency(np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]), [0, 0, 0, 1], classes=2)
    array([[0.4, 0.6],
           [0.4, 0.6],
           [0.4, 0.6],
           [1. , 0. ]], dtype=float32)
    """
    votes = VisualVotes.of(neighbours, labels, classes, duplicates)
    result = np.empty((len(votes.label), classes), dtype=np.float32)
    for part in chunk_rows(len(result), max(classes, votes.lists.shape[1])):
        result[part] = votes.consistency(part)[0]
    return result


def propagate_labels(neighbours: NeighbourLists, labels: ArrayLike, classes: int) -> tuple[Float32, Index]:
    """Y_vis (N, C) and in-degree (N,): the mean label of the samples that list a sample.

    S_vis = A^T Y,  Y_vis = D^-1 S_vis        (TANGO supplement, Eq. 11-12)

    labels: (N,), -1 does not vote and does not count in the in-degree.  A row of in-degree 0 gets its
    `visual_consistency` instead, which falls back to its own label.

    >>> soft, indegree = propagate_labels(np.array([[1], [0], [0]]), [0, 1, 1], classes=2)
    >>> soft.tolist(), indegree.tolist()
    ([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]], [2, 1, 0])
    """
    votes = VisualVotes.of(neighbours, labels, classes, None)
    pickers = votes.pickers()
    result = np.empty((len(votes.label), classes), dtype=np.float32)
    indegree = np.empty(len(result), dtype=np.int64)
    for part in chunk_rows(len(result), max(classes, votes.lists.shape[1])):
        counts = pickers[part]
        indegree[part] = row_sums(counts)
        result[part] = mean_or_fallback(counts, votes.consistency(part)[0])
    return result, indegree


@dataclass(frozen=True)
class VisualVotes:
    """Neighbour lists and labels, checked, and the votes of a slice of rows."""

    lists: Integers  # (N, k)
    label: Index  # (N,) -1 does not vote
    classes: int
    ballot: Float64  # (C,) 1 / pi, 0 for an absent class
    group: Index | None  # (N,) the row that each row is a copy of

    @classmethod
    def of(
        cls, neighbours: NeighbourLists, labels: ArrayLike, classes: int, duplicates: ArrayLike | None
    ) -> VisualVotes:
        lists = neighbours.indices if isinstance(neighbours, Neighbours) else np.asarray(neighbours)
        label = check_labels(labels, classes)
        whole = lists.dtype.kind in "iu" or not lists.size
        if not whole or lists.ndim != 2 or len(lists) != len(label) or (lists.size and lists.max() >= len(label)):
            largest = lists.max() if lists.size and lists.dtype.kind in "iuf" else "none"
            raise ConfigError(
                f"neighbours is {lists.dtype} of shape {lists.shape}, largest entry {largest}, "
                f"for {len(label)} labels; give ({len(label)}, k) row numbers below {len(label)}, -1 for none",
                "neighbours",
                (str(lists.dtype), lists.shape),
            )
        group, worth = None, np.ones(len(label))
        if duplicates is not None:
            copies = np.asarray(duplicates, dtype=np.int64)
            if copies.shape != label.shape:
                raise ConfigError(
                    f"duplicates has shape {copies.shape}; give {label.shape}, as near_duplicates returns",
                    "duplicates",
                    copies.shape,
                )
            group = np.where(copies >= 0, copies, np.arange(len(label)))
            voting = np.bincount(group[label >= 0], minlength=len(label))
            worth = 1 / np.maximum(voting[group], 1)
        size = np.bincount(label[label >= 0], weights=worth[label >= 0], minlength=classes)
        ballot = np.divide(1.0, size, out=np.zeros(classes), where=size > 0)
        return cls(lists, label, classes, ballot, group)

    def consistency(self, part: slice) -> tuple[Float64, Mask]:
        """(R, C) p_vis of the rows, and (R,) whether a row has no labelled neighbour."""
        share, alone = self.shares(self.lists[part])
        share[alone] = self.given(part)[alone]
        return share, alone

    def shares(self, lists: Integers) -> tuple[Float64, Mask]:
        """Like `consistency`, for any lists (R, k), with zeros for rows without a labelled neighbour."""
        rows = len(lists)
        row, place = np.nonzero(lists >= 0)
        voter = lists[row, place]
        row, voter = row[self.label[voter] >= 0], voter[self.label[voter] >= 0]
        choice = self.label[voter]
        weight = self.ballot[choice]
        if self.group is not None:
            _, copy, copies = np.unique(
                row * len(self.label) + self.group[voter], return_inverse=True, return_counts=True
            )
            weight = weight / copies[copy]
        score = np.bincount(row * self.classes + choice, weights=weight, minlength=rows * self.classes)
        score = score.reshape(rows, self.classes)
        total = score.sum(axis=1)
        alone = total <= 0
        share = score / np.where(alone, 1, total)[:, None]
        return share, alone

    def given(self, part: slice) -> Float64:
        """(R, C) one-hot of the given labels, NaN where there is none."""
        label = self.label[part]
        onehot = np.zeros((len(label), self.classes))
        onehot[np.arange(len(label)), label] = 1
        onehot[label < 0] = np.nan
        return onehot

    def pickers(self) -> RowVotes:
        """Count by class the samples that list each row: A^T Y of Eq. 11."""
        votes = RowVotes(len(self.label), np.ones(self.classes), self.lists.size)
        for part in chunk_rows(len(self.label), self.lists.shape[1]):
            listed = np.asarray(self.lists[part])
            edge = (listed >= 0) & (self.label[part] >= 0)[:, None]
            votes.add(listed[edge], np.repeat(self.label[part], edge.sum(axis=1)))
        return votes


def mean_or_fallback(votes: csr_matrix, fallback: Float64) -> Float64:
    """(R, C) rows divided by their sums; the row of `fallback` where there are no votes."""
    dense: Float64 = votes.toarray().astype(np.float64)
    total = dense.sum(axis=1, keepdims=True)
    return np.where(total > 0, dense / np.where(total > 0, total, 1), fallback)


def row_sums(votes: csr_matrix) -> Index:
    return np.asarray(votes.sum(axis=1)).ravel().astype(np.int64)


def check_labels(labels: ArrayLike, classes: int) -> Index:
    """Labels as (N,) int64 from -1 to classes - 1; raises ConfigError for anything else."""
    label = np.asarray(labels)
    if classes < 1:
        raise ConfigError(f"classes={classes}; give the number of classes, at least 1", "classes", classes)
    if label.ndim != 1 or (label.size and label.dtype.kind not in "iu"):
        raise ConfigError(
            f"labels is {label.dtype} of shape {label.shape}; give (N,) class numbers, -1 for none",
            "labels",
            (str(label.dtype), label.shape),
        )
    if label.size and not -1 <= label.min() <= label.max() < classes:
        ends = int(label.min()), int(label.max())
        raise ConfigError(f"labels runs from {ends[0]} to {ends[1]}; give -1 (none) to {classes - 1}", "labels", ends)
    return label.astype(np.int64)


def chunk_rows(rows: int, width: int, numbers: int = 4_000_000) -> list[slice]:
    """Slices of rows, each with about `numbers` numbers at the given width."""
    step = max(1, numbers // max(width, 1))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]
