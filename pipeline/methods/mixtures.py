"""Split per-sample losses into clean and noisy by two-component mixtures, and detect when a mixture fails."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaln

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system.array_types import Float64, Mask

Pair = tuple[float, float]
Side = Literal["low", "high"]
NOWHERE: Pair = (math.nan, math.nan)
ROUNDS, TOLERANCE, VARIANCE_FLOOR = 10, 1e-2, 5e-4  # of the Gaussian EM, as DivideMix sets them


@dataclass(frozen=True)
class Split:
    """A split into clean and noisy; pairs are (clean, noisy), means and deviations in the unit of the losses."""

    clean_probability: Float64
    """(N,) posterior of the clean component, NaN where the loss is NaN or infinite"""
    kind: Literal["gmm", "bmm", "median", "none"]
    """what was used in the end: "none" puts everything on the clean side"""
    degenerate: bool
    """no mixture could be fitted: `kind` is "median" or "none" """
    means: Pair
    deviations: Pair
    weights: Pair
    fallbacks: tuple[str, ...] = ()
    """why each earlier kind was given up, in order"""


def gmm_split(
    losses: ArrayLike, clean_side: Side = "low", monotone: bool = True, *, floor: float = VARIANCE_FLOOR
) -> Split:
    """Split by a Gaussian mixture on losses scaled to [0, 1], as in DivideMix and NCR (LNC Eq. 3).

    EM starts from the two means that Lloyd's algorithm reaches from the 25 and 75 % quantiles, so there is nothing
    random; `floor` is added to both variances, so groups closer than about 0.02 of the range cannot be separated.

    losses: (N,); clean_side: "high" for scores where clean samples are the large ones.
    monotone: no sample is less clean than one of larger loss, and all below the clean mean have probability 1; without
        it a wide noisy component claims the smallest losses too.

    Losses that are all equal are not split (`kind` "none", all clean).  Components that cannot be separated give the median
    split: 1 up to the median, 0 above.

    >>> split = gmm_split([.1, .11, .12, .13, .9, .95])
    >>> split.clean_probability.round(2).tolist(), split.kind
    ([1.0, 1.0, 1.0, 1.0, 0.0, 0.0], 'gmm')
    """
    scaled = _Scaled(losses, clean_side)
    return scaled.unsplit() or _gmm(scaled, monotone, floor, ())


def bmm_split(losses: ArrayLike, clean_side: Side = "low", monotone: bool = True, *, max_iter: int = 10) -> Split:
    """Split by a Beta mixture on losses scaled to [0, 1], fitted by weighted moments (BiCro; Arazo et al. 2019).

    Losses are clipped to [1e-4, 1 - 1e-4], for the fit and for the posterior.  EM starts at Beta(1, 2) and
    Beta(2, 1).  If a component's variance falls below 1e-8, its moments fit no Beta distribution, its weight falls below 1e-3
    or both means meet, the Gaussian mixture is used, and if that fails the median split; `fallbacks` says why.  Arguments as in
    `gmm_split`.

    >>> rng = np.random.default_rng(0)
    >>> split = bmm_split(np.concatenate([rng.beta(2, 20, 300), rng.beta(20, 2, 100)]))
    >>> split.kind, [round(m, 1) for m in split.means], round(split.weights[0], 2)
    ('bmm', [0.1, 0.9], 0.75)
    """
    if max_iter < 1:
        raise ConfigError.of("max_iter", max_iter, "fits nothing; give at least 1, such as 10")
    scaled = _Scaled(losses, clean_side)
    unsplit = scaled.unsplit()
    if unsplit is not None:
        return unsplit
    x = np.clip(scaled.x, 1e-4, 1 - 1e-4)
    alpha, beta, weight = np.array([1.0, 2.0]), np.array([2.0, 1.0]), np.array([0.5, 0.5])
    mean, variance = np.zeros(2), np.zeros(2)
    for _ in range(max_iter):
        share = _beta_posterior(x, alpha, beta, weight)
        mass = share.sum(axis=1)
        mean = share @ x / mass
        variance = (share * (x - mean[:, None]) ** 2).sum(axis=1) / mass
        weight = mass / len(x)
        reason = _why_no_beta(mean, variance, weight)
        if reason:
            return _gmm(scaled, monotone, VARIANCE_FLOOR, (f"bmm: {reason}",))
        (alpha[0], beta[0]), (alpha[1], beta[1]) = (beta_moments(m, v) for m, v in zip(mean, variance, strict=True))
    clean = int(np.argmin(mean))
    probability = _beta_posterior(x, alpha, beta, weight)[clean]
    return scaled.split("bmm", probability, clean, mean, variance, weight, monotone, ())


def beta_moments(mean: float, variance: float) -> Pair:
    """Compute (alpha, beta) of a Beta distribution: alpha = m (m (1 - m) / v - 1), beta = alpha (1 - m) / m.

    >>> beta_moments(0.25, 0.03)
    (1.3125, 3.9375)
    """
    alpha = mean * (mean * (1 - mean) / variance - 1)
    return alpha, alpha * (1 - mean) / mean


def all_clean_rule(clean_probability: ArrayLike, threshold: float = 0.5, share: float = 0.01) -> float:
    """Raise the threshold of p > threshold if it would keep everything, so that the lowest 1 % are dropped (NCR).

    It stays unchanged if the lowest 1 % have the same probability as the rest, or if there are no samples.

    >>> all_clean_rule([.9, .8, .7, .95], share=.25), all_clean_rule([.9, .2])
    (0.7, 0.5)
    """
    probability = np.asarray(clean_probability, dtype=np.float64)
    probability = np.sort(probability[~np.isnan(probability)])
    if not len(probability) or probability[0] <= threshold:
        return threshold
    go = max(1, round(share * len(probability)))
    is_lower = go < len(probability) and probability[go - 1] < probability[go]
    return float(probability[go - 1]) if is_lower else threshold


class _Scaled:
    """Finite losses scaled to [0, 1] with the clean side low, and the way back."""

    def __init__(self, losses: ArrayLike, clean_side: Side) -> None:
        if clean_side not in {"low", "high"}:
            raise ConfigError.of("clean_side", clean_side, "is unknown; use 'low' (losses) or 'high' (scores)")
        values = np.asarray(losses, dtype=np.float64)
        if values.ndim != 1:
            raise ConfigError.of("losses", values.shape, "is no shape for one number per sample; give (N,)")
        self.known = np.isfinite(values)
        known = values[self.known]
        self.sign = 1.0 if clean_side == "low" else -1.0
        self.low = float((self.sign * known).min()) if len(known) else 0.0
        self.range = float(np.ptp(known)) if len(known) else 0.0
        self.x = (self.sign * known - self.low) / (self.range if self.range >= 1e-12 else 1.0)

    def unsplit(self) -> Split | None:
        """Return a split with all samples clean if the losses do not differ."""
        if self.range >= 1e-12:
            return None
        middle = self.sign * self.low if len(self.x) else math.nan
        ones = self._spread(np.ones(len(self.x)))
        return Split(ones, "none", True, (middle, math.nan), (0.0, math.nan), (1.0, 0.0), ("losses do not differ",))

    def split(
        self,
        kind: Literal["gmm", "bmm"],
        probability: Float64,
        clean: int,
        mean: Float64,
        variance: Float64,
        weight: Float64,
        monotone: bool,
        fallbacks: tuple[str, ...],
    ) -> Split:
        if monotone:
            probability = _falling(self.x, probability, float(mean[clean]))
        order = [clean, 1 - clean]
        means = self.sign * (mean[order] * self.range + self.low)
        deviations = np.sqrt(variance[order]) * self.range
        return Split(
            self._spread(probability),
            kind,
            False,
            (float(means[0]), float(means[1])),
            (float(deviations[0]), float(deviations[1])),
            (float(weight[order[0]]), float(weight[order[1]])),
            fallbacks,
        )

    def median(self, fallbacks: tuple[str, ...]) -> Split:
        low = self.x <= np.median(self.x)
        return Split(self._spread(low.astype(np.float64)), "median", True, NOWHERE, NOWHERE, NOWHERE, fallbacks)

    def _spread(self, probability: Float64) -> Float64:
        result = np.full(len(self.known), np.nan)
        result[self.known] = probability
        return result


def _gmm(scaled: _Scaled, monotone: bool, floor: float, fallbacks: tuple[str, ...]) -> Split:
    x = scaled.x
    share = np.stack([below := _lloyd(x), ~below]).astype(np.float64)
    mean, variance, weight = _gaussian_moments(x, share, floor)
    before = -math.inf
    for _ in range(ROUNDS):
        joint = _gaussian_log_joint(x, mean, variance, weight)
        evidence = np.logaddexp(joint[0], joint[1])
        share = np.exp(joint - evidence)
        mean, variance, weight = _gaussian_moments(x, share, floor)
        if abs(evidence.mean() - before) < TOLERANCE:
            break
        before = float(evidence.mean())
    if not np.isfinite(mean).all() or abs(mean[1] - mean[0]) < 1e-6 or weight.min() * len(x) < 1e-6:
        return scaled.median((*fallbacks, "gmm: the components do not come apart"))
    joint = _gaussian_log_joint(x, mean, variance, weight)
    clean = int(np.argmin(mean))
    probability = np.exp(joint[clean] - np.logaddexp(joint[0], joint[1]))
    return scaled.split("gmm", probability, clean, mean, variance, weight, monotone, fallbacks)


def _lloyd(x: Float64) -> Mask:
    """Return (N,) whether a value is in the lower cluster of 2-means, started from the quartiles (or the ends, if equal)."""
    low, high = np.quantile(x, [0.25, 0.75])
    if low == high:
        low, high = x.min(), x.max()
    below: Mask = x <= (low + high) / 2
    for _ in range(100):
        moved = x <= (x[below].mean() + x[~below].mean()) / 2
        if (moved == below).all():
            break
        below = moved
    return below


def _gaussian_moments(x: Float64, share: Float64, floor: float) -> tuple[Float64, Float64, Float64]:
    mass = share.sum(axis=1) + 10 * np.finfo(np.float64).eps
    mean = share @ x / mass
    variance = (share * (x - mean[:, None]) ** 2).sum(axis=1) / mass + floor
    return mean, variance, mass / mass.sum()


def _gaussian_log_joint(x: Float64, mean: Float64, variance: Float64, weight: Float64) -> Float64:
    """(2, N) log weight + log density."""
    distance = (x - mean[:, None]) ** 2 / variance[:, None]
    joint: Float64 = np.log(weight)[:, None] - 0.5 * (np.log(2 * np.pi * variance)[:, None] + distance)
    return joint


def _beta_posterior(x: Float64, alpha: Float64, beta: Float64, weight: Float64) -> Float64:
    """(2, N) posteriors, floored at 1e-12 so that no component loses a sample for good."""
    a, b = alpha[:, None], beta[:, None]
    joint = np.log(weight)[:, None] + (a - 1) * np.log(x) + (b - 1) * np.log1p(-x) - betaln(a, b)
    share = np.maximum(np.exp(joint - np.logaddexp(joint[0], joint[1])), 1e-12)
    posterior: Float64 = share / share.sum(axis=0)
    return posterior


def _why_no_beta(mean: Float64, variance: Float64, weight: Float64) -> str:
    """Explain why the moments fit no Beta distribution, or return ''."""
    if weight.min() < 1e-3:
        return f"a component holds {weight.min():.1e} of the samples"
    if variance.min() < 1e-8:
        return f"a component has variance {variance.min():.1e}"
    if (mean * (1 - mean) / variance <= 1).any():
        return "a component is wider than any Beta law"
    if abs(mean[1] - mean[0]) < 1e-3:
        return "the components have the same mean"
    return ""


def _falling(x: Float64, probability: Float64, clean_mean: float) -> Float64:
    """Make a probability falling: 1 up to the clean mean, and beyond never above the value of a smaller loss."""
    order = np.argsort(x, kind="stable")
    lowered = np.where(x[order] <= clean_mean, 1.0, probability[order])
    result = np.empty_like(probability)
    result[order] = np.minimum.accumulate(lowered)
    return result
