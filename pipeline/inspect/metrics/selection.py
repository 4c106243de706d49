"""Metrics of a selection of clean samples against the truth, with clean and with noisy as the positive class."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system.array_types import Float64, Mask


@dataclass(frozen=True)
class MeanNoiseRank:
    """Mean rank of the noisy samples, rank 1 = largest weight; larger is better.

    `value` averages tied ranks; `best` and `worst` put the noisy samples last and first inside every tie; `optimum` is reached
    when all noise comes last; `random` is the expectation of a random order. Without noisy samples all but `random` are NaN.
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
    weight, noise = _read_both("weights", weights, noisy)
    if missing := int(np.isnan(weight).sum()):
        raise ConfigError(f"weights holds {missing} NaN; give samples that failed the weight 0", "weights", missing)
    total, wrong = len(weight), int(noise.sum())
    random = (total + 1) / 2
    if not wrong:
        return MeanNoiseRank(math.nan, math.nan, math.nan, math.nan, random)
    value = float(rankdata(-weight)[noise].mean())
    # In a tie of t samples, m of them noisy, moving the noisy ones to an end shifts their mean rank by (t - m) / 2.
    _, group = np.unique(weight, return_inverse=True)
    tied, tied_noise = np.bincount(group), np.bincount(group, weights=noise)
    shift = float((tied_noise * (tied - tied_noise)).sum()) / 2 / wrong
    return MeanNoiseRank(value, value + shift, value - shift, total - (wrong - 1) / 2, random)


@dataclass(frozen=True)
class SelectionMetrics:
    """Shares in [0, 1]; a share that is 0/0 is NaN, with the reason under its name in `reasons`."""

    clean_precision: float
    clean_recall: float
    clean_f1: float
    noise_precision: float
    noise_recall: float
    noise_f1: float
    balanced_accuracy: float
    clean_auroc: float
    samples: int
    noisy: int
    kept: int
    unscored: int
    reasons: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON or a table row; NaN becomes None."""
        values = asdict(self)
        return {name: None if isinstance(v, float) and math.isnan(v) else v for name, v in values.items()}


@dataclass(frozen=True)
class BestCut:
    """The best cut, found with the truth: clean is score > threshold."""

    threshold: float
    balanced_accuracy: float
    clean_recall: float
    noise_recall: float


def selection_metrics(scores: ArrayLike | None, clean_mask: ArrayLike, noisy: ArrayLike) -> SelectionMetrics:
    """Compute precision, recall and F1 of a clean set for both positive classes, and the AUROC of its score.

    TANGO supplement 9.2 takes clean as the positive class, LNC Tab. 7 noisy; so both are given, each with its name.

    scores: (N,) cleanness, larger is cleaner, NaN for samples without a score (left out of the AUROC, counted in
        `unscored`); None when the rule has no score.
    clean_mask: (N,) bool, True where the rule keeps the sample.
    noisy: (N,) bool, True where the sample is noisy in truth.

    >>> m = selection_metrics([.9, .8, .4, .1], [True, True, False, False], [False, True, False, True])
    >>> m.clean_precision, m.noise_recall, m.clean_auroc
    (0.5, 0.5, 0.75)
    """
    kept, noise = _as_mask(clean_mask, "clean_mask"), _as_mask(noisy, "noisy")
    _check_same_length("clean_mask", kept, "noisy", noise)
    clean = ~noise
    both, only_kept = int((kept & clean).sum()), int((kept & noise).sum())
    dropped_clean, dropped_noise = int((~kept & clean).sum()), int((~kept & noise).sum())

    reasons: dict[str, str] = {}

    def share(name: str, part: float, whole: float, why: str) -> float:
        if whole == 0:
            reasons[name] = why
            return math.nan
        return part / whole

    clean_recall = share("clean_recall", both, both + dropped_clean, "no clean samples")
    noise_recall = share("noise_recall", dropped_noise, dropped_noise + only_kept, "no noisy samples")
    auroc, why, unscored = math.nan, "no score given", len(kept)
    if scores is not None:
        score, _ = _read_both("scores", scores, noisy)
        auroc, why = _auroc(score, noise)
        unscored = int(np.isnan(score).sum())
    if why:
        reasons["clean_auroc"] = why
    balanced = (clean_recall + noise_recall) / 2
    if math.isnan(balanced):
        reasons["balanced_accuracy"] = reasons.get("clean_recall", reasons.get("noise_recall", ""))
    return SelectionMetrics(
        clean_precision=share("clean_precision", both, both + only_kept, "nothing was kept"),
        clean_recall=clean_recall,
        clean_f1=share("clean_f1", 2 * both, 2 * both + only_kept + dropped_clean, "nothing clean, nothing kept"),
        noise_precision=share("noise_precision", dropped_noise, dropped_noise + dropped_clean, "nothing was dropped"),
        noise_recall=noise_recall,
        noise_f1=share(
            "noise_f1", 2 * dropped_noise, 2 * dropped_noise + only_kept + dropped_clean, "nothing noisy or dropped"
        ),
        balanced_accuracy=balanced,
        clean_auroc=auroc,
        samples=len(kept),
        noisy=int(noise.sum()),
        kept=int(kept.sum()),
        unscored=unscored,
        reasons=reasons,
    )


def clean_auroc(scores: ArrayLike, noisy: ArrayLike) -> float:
    """Compute the probability that a clean sample scores above a noisy one, ties 1/2; NaN if one of the kinds is missing.

    scores: (N,) larger is cleaner, NaN rows are left out; noisy: (N,) bool.  `selection_metrics(...).reasons` explains a NaN.

    >>> clean_auroc([.9, .5, .5, .1], [False, False, True, True])
    0.875
    """
    score, noise = _read_both("scores", scores, noisy)
    return _auroc(score, noise)[0]


def _auroc(score: Float64, noise: Mask) -> tuple[float, str]:
    """Compute (AUROC, reason for NaN or '') from average ranks (Mann-Whitney)."""
    known = ~np.isnan(score)
    score, noise = score[known], noise[known]
    negatives = int(noise.sum())
    positives = len(noise) - negatives
    if not positives:
        return math.nan, "no clean samples with a score"
    if not negatives:
        return math.nan, "no noisy samples with a score"
    rank_sum = float(rankdata(score)[~noise].sum())
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives), ""


def best_cut(scores: ArrayLike, noisy: ArrayLike) -> BestCut:
    """Find the threshold with the largest balanced accuracy by the truth: an upper bound to show beside a chosen cut.

    scores: (N,) larger is cleaner, NaN rows are left out; clean is score > threshold.  Among equally good cuts the
    lowest is taken; -inf keeps everything.  With only one kind of samples all is NaN.

    >>> best_cut([.1, .2, .3, .4], [True, True, False, False]).threshold
    0.2
    """
    score, noise = _read_both("scores", scores, noisy)
    known = ~np.isnan(score)
    score, noise = score[known], noise[known]
    negatives = int(noise.sum())
    positives = len(noise) - negatives
    if not positives or not negatives:
        return BestCut(math.nan, math.nan, math.nan, math.nan)
    values, group = np.unique(score, return_inverse=True)
    noise_dropped = np.cumsum(np.bincount(group, weights=noise)) / negatives
    clean_dropped = np.cumsum(np.bincount(group, weights=~noise)) / positives
    noise_recall = np.concatenate([[0.0], noise_dropped])
    clean_recall = np.concatenate([[1.0], 1.0 - clean_dropped])
    balanced = (noise_recall + clean_recall) / 2
    best = int(np.argmax(balanced))
    threshold = -math.inf if best == 0 else float(values[best - 1])
    return BestCut(threshold, float(balanced[best]), float(clean_recall[best]), float(noise_recall[best]))


def osa_acc(weights: ArrayLike, noisy: ArrayLike) -> float:
    """Compute the share of clean pairs with w > 0, OSA 4.5's "Acc" (the clean recall); NaN without clean pairs.

    >>> osa_acc([.1, 0., .2, 0.], [False, False, True, True])
    0.5
    """
    weight, noise = _read_both("weights", weights, noisy)
    clean = ~noise
    return float((weight[clean] > 0).mean()) if clean.any() else math.nan


def osa_recall(weights: ArrayLike, noisy: ArrayLike) -> float:
    """Compute the share of noisy pairs without w > 0, OSA 4.5's "Recall" (the noise recall); NaN without noisy pairs.

    >>> osa_recall([.1, 0., .2, 0.], [False, False, True, True])
    0.5
    """
    weight, noise = _read_both("weights", weights, noisy)
    return float((~(weight[noise] > 0)).mean()) if noise.any() else math.nan


def relabel_accuracy(corrected: ArrayLike, truth: ArrayLike) -> float:
    """Compute the share of samples whose corrected label is the true class (TANGO supplement 9.3).

    corrected: (N,) class or (N, C) soft labels (argmax is taken; a row with NaN is wrong); truth: (N,) class, -1 where
    unknown (left out).

    >>> relabel_accuracy([2, 1, 0, 1], [2, 0, 0, -1])
    0.6666666666666666
    """
    label, true = np.asarray(corrected), np.asarray(truth)
    if label.ndim == 2:
        label = np.where(np.isnan(label).any(axis=1), -1, label.argmax(axis=1))
    _check_same_length("corrected", label, "truth", true)
    known = true >= 0
    return float((label[known] == true[known]).mean()) if known.any() else math.nan


def calibration_error(probability: ArrayLike, right: ArrayLike, bins: int = 10) -> float:
    """Expected calibration error of P(right) over equal bins: |mean probability - share that is right|, weighted by size.

    probability: (N,) in [0, 1]; right: (N,) bool.

    >>> calibration_error([0.75, 0.75, 0.25], [True, True, False])
    0.25
    """
    chance, truth = np.asarray(probability, np.float64), _as_mask(right, "right")
    _check_same_length("probability", chance, "right", truth)
    place = np.minimum((chance * bins).astype(int), bins - 1)
    return float(np.abs(np.bincount(place, chance - truth, bins)).sum() / len(truth)) if len(truth) else math.nan


def _read_both(name: str, values: ArrayLike, noisy: ArrayLike) -> tuple[Float64, Mask]:
    """Read the values (N,) and a mask of the same length; errors call the values `name`."""
    array, noise = np.asarray(values, dtype=np.float64), _as_mask(noisy, "noisy")
    if array.ndim != 1:
        raise ConfigError.of(name, array.shape, "is the shape; give one number per sample, shape (N,)")
    _check_same_length(name, array, "noisy", noise)
    return array, noise


def _as_mask(values: ArrayLike, name: str) -> Mask:
    array = np.asarray(values)
    if array.ndim != 1 or (array.dtype != np.bool_ and not np.isin(array, (0, 1)).all()):
        given = (str(array.dtype), array.shape)
        raise ConfigError.of(name, given, "is not type and shape of a mask; give booleans (or 0 and 1) of shape (N,)")
    return array.astype(np.bool_)


def _check_same_length(name: str, first: NDArray[np.generic], other: str, second: NDArray[np.generic]) -> None:
    if len(first) != len(second):
        raise ConfigError.of(name, len(first), f"rows and {len(second)} of {other}: give one row per sample in both")
