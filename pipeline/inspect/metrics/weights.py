"""What a column of weights does to a data set: how noise ranks in it, how many samples are left."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from noisegate.pipeline.errors import ConfigError

__all__ = ["MeanNoiseRank", "effective_sample_size", "mean_noise_rank"]


@dataclass(frozen=True)
class MeanNoiseRank:
    """Mean rank of the noisy samples, rank 1 = largest weight; larger is better.

    `value` shares tied ranks; `best` and `worst` put the noisy last and first inside every tie; `optimum` is reached
    when all noise comes last; `random` is what a blind order gives.  NaN (but for `random`) without noisy samples.
    """

    value: float
    best: float
    worst: float
    optimum: float
    random: float


def mean_noise_rank(weights: ArrayLike, noisy: ArrayLike) -> MeanNoiseRank:
    """OSA Tab. 9: sort weights in descending order, average the ranks of the M noisy of n; optimum n - (M - 1) / 2.

    weights: (N,) without NaN; noisy: (N,) bool.  OSA gives many exact zeros, so the tie order is reported, not hidden.

    >>> mean_noise_rank([.2, .1, 0., 0.], [False, False, False, True])
    MeanNoiseRank(value=3.5, best=4.0, worst=3.0, optimum=4.0, random=2.5)
    """
    weight, noise = np.asarray(weights, dtype=np.float64), np.asarray(noisy, dtype=np.bool_)
    if weight.shape != noise.shape or weight.ndim != 1:
        raise ConfigError(f"weights {weight.shape} and noisy {noise.shape} must both have shape (N,)")
    if np.isnan(weight).any():
        raise ConfigError(f"weights holds {int(np.isnan(weight).sum())} NaN; give samples that failed the weight 0")
    total, wrong = len(weight), int(noise.sum())
    random = (total + 1) / 2
    if not wrong:
        return MeanNoiseRank(math.nan, math.nan, math.nan, math.nan, random)
    value = float(rankdata(-weight)[noise].mean())
    # In one tie of t samples with m noisy ones, moving the noisy to an end shifts their mean rank by (t - m) / 2.
    _, group = np.unique(weight, return_inverse=True)
    tied, tied_noise = np.bincount(group), np.bincount(group, weights=noise)
    shift = float((tied_noise * (tied - tied_noise)).sum()) / 2 / wrong
    return MeanNoiseRank(value, value + shift, value - shift, total - (wrong - 1) / 2, random)


def effective_sample_size(weights: ArrayLike) -> float:
    """Kish's (sum w)^2 / sum w^2: how many equally weighted samples the weights are worth; 0 when all are 0.

    weights: (N,) of 0 or more, without NaN.

    >>> effective_sample_size([1, 1, 0, 0])
    2.0
    """
    weight = np.asarray(weights, dtype=np.float64)
    if not (np.isfinite(weight) & (weight >= 0)).all():
        bad = weight[~(np.isfinite(weight) & (weight >= 0))][0]
        raise ConfigError(f"weights holds {bad}; give numbers of 0 or more, 0 for samples that failed")
    largest = float(weight.max(initial=0.0))
    if largest <= 0:
        return 0.0
    weight = weight / largest  # tiny weights would underflow when squared
    return float(weight.sum() ** 2 / (weight**2).sum())
