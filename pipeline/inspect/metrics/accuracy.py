"""Accuracy of a classifier: top-k, and mean over classes."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from noisegate.pipeline.errors import ConfigError


def top_k_accuracy(scores: ArrayLike, labels: ArrayLike, k: int = 1) -> float:
    """Percent of samples whose class ranks within K; rank = 1 + #(other classes that score at least as much).

    scores: (N, C), NaN counts against the model; labels: (N,), -1 takes no part.

    >>> top_k_accuracy([[.1, .9], [.5, .5]], [1, 0])  # a tie is not an answer
    50.0
    """
    ranks = _ranks(scores, labels)[0]
    return 100.0 * float((ranks <= k).mean()) if len(ranks) else math.nan


def mean_class_accuracy(scores: ArrayLike, labels: ArrayLike) -> float:
    """Percent right in each class, averaged over the classes that occur; arguments as in `top_k_accuracy`.

    >>> mean_class_accuracy([[1, 0], [1, 0], [1, 0], [0, 1]], [0, 0, 0, 1])
    100.0
    """
    ranks, label = _ranks(scores, labels)
    shares = [float((ranks[label == c] <= 1).mean()) for c in np.unique(label)]
    return 100.0 * float(np.mean(shares)) if shares else math.nan


def _ranks(scores: ArrayLike, labels: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    rows, label = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=np.int64)
    if rows.ndim != 2 or label.shape != rows.shape[:1] or (label >= rows.shape[1]).any():
        raise ConfigError(
            f"scores {rows.shape} and labels {label.shape} must be (N, C) and (N,) with labels below C",
            "labels",
            label.shape,
        )
    rows, label = rows[label >= 0], label[label >= 0]
    own = rows[np.arange(len(rows)), label][:, None]
    beaten: NDArray[np.int64] = (rows < own).sum(axis=1)  # false for NaN on either side
    return rows.shape[1] - beaten, label
