"""Models of the density ratio r(s) = f(s) / f0(s) between given and mismatched pairs, fitted on histograms.

With the given pairs a mixture f = ρ f0 + (1 - ρ) f1 of wrong and right ones, each model gives ρ and a rising r:

- ``gaussian``   f1 is normal, f0 a mixture of normals (as many as BIC asks for), so f0 may have any shape;
- ``log-gamma``  f1 is skewed, as cosines are near their maximum 1: Prentice's generalised log-gamma density (1974, "A log gamma
model and its maximum likelihood estimation"), which is the normal at q = 0; f0 as above;
- ``logistic``   f1 = f0 exp(a + b s), so that P(clean | s) is a logistic curve; needs no density;
- ``isotonic``   r only has to rise; ρ is the ratio of the two distribution functions in the lower tail.

Everywhere `centres` (B,) are the middles of equal bins, `g` and `m` (B,) the counts of given and mismatched pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy  # its parts are imported at their first use

from noisegate.pipeline.system.array_types import Float64

MAX_RATIO = 1e30  # limit of f1 / f0 where there are hardly any mismatched pairs
MAX_LEAN = 3.0  # limit of |q|; q is 0 for the normal, 1 for an exponential tail on the left


class RatioFit(NamedTuple):
    """The noise rate ρ and the density ratio of one fitted model."""

    rate: float
    ratio: Float64  # f / f0 at the bins, rising

    def clean(self) -> Float64:
        return np.clip(1 - self.rate / np.maximum(self.ratio, max(self.rate, 1e-12)), 0, 1)


def _fit_gaussian(centres: Float64, g: Float64, m: Float64, shape: Normals) -> RatioFit:
    """Fit ρ and the normal f1 by EM, with the mismatched density held fixed."""
    f0 = _fit_normals(centres, m, shape, rounds=10)[0].density(centres)
    rate = _tail_ratio(g, m)
    surplus = np.maximum(g - rate * m * g.sum() / m.sum(), 0) + 1e-9
    mean, sd, total = 0.0, 1.0, g.sum()
    step = centres[1] - centres[0]
    weight = surplus
    rate = min(max(rate, 1e-3), 1 - 1e-3)
    for _ in range(100):
        mean = float(weight @ centres / weight.sum())
        sd = max(float(np.sqrt(weight @ (centres - mean) ** 2 / weight.sum())), 2 * step)
        f1 = _normal(centres, mean, sd)
        clean = (1 - rate) * f1 / (rate * f0 + (1 - rate) * f1)
        weight = g * clean
        before, rate = rate, float(1 - weight.sum() / total)
        if abs(rate - before) < 3e-6 or weight.sum() < 1:
            break
    return _mixture(min(max(rate, 0.0), 1.0), _normal(centres, mean, sd), f0, g + m)


def _fit_log_gamma(centres: Float64, g: Float64, m: Float64, shape: Normals) -> RatioFit:
    """Fit ρ and the location, scale and skew q of f1 by maximum likelihood, with the mismatched density held fixed."""
    f0 = _fit_normals(centres, m, shape, rounds=10)[0].density(centres)
    rate, step = min(max(_tail_ratio(g, m), 1e-3), 1 - 1e-3), centres[1] - centres[0]
    surplus = np.maximum(g - rate * m * g.sum() / m.sum(), 0) + 1e-9
    mean = float(surplus @ centres / surplus.sum())
    sd = max(float(np.sqrt(surplus @ (centres - mean) ** 2 / surplus.sum())), 2 * step)
    seen = g > 0
    x, share, known = centres[seen], g[seen] / g.sum(), f0[seen]

    def loss_of(theta: Float64) -> tuple[float, Float64]:
        rate, scale = 1 / (1 + np.exp(-theta[0])), sd * np.exp(theta[2])
        w = (x - mean - sd * theta[1]) / scale
        log_density, by_w, by_q = _log_gamma(w, theta[3])
        right = (1 - rate) * np.exp(np.clip(log_density, -690, 50)) / scale
        both = rate * known + right + 1e-300
        clean = right / both
        slope = np.stack([1 - rate - clean, clean * by_w * -sd / scale, clean * (-1 - by_w * w), clean * by_q])
        return float(-share @ np.log(both)), -slope @ share

    start = [np.log(rate / (1 - rate)), 0.0, 0.0, 0.1]
    bounds = [(-12, 12), (None, None), (np.log(2 * step / sd), 3), (-MAX_LEAN, MAX_LEAN)]
    options = {"maxiter": 100, "ftol": 1e-9}
    found = scipy.optimize.minimize(loss_of, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    scale = sd * np.exp(found.x[2])
    log_density = _log_gamma((centres - mean - sd * found.x[1]) / scale, found.x[3])[0]
    f1 = np.exp(np.clip(log_density, -690, 50)) / scale
    return _mixture(float(1 / (1 + np.exp(-found.x[0]))), f1, f0, g + m)


def _log_gamma(w: Float64, q: float) -> tuple[Float64, Float64, Float64]:
    """Compute log f(w) and its derivatives by w and q; q w is distributed as log(q² Gamma(q⁻²)), and q -> 0 is the normal."""
    if abs(q) < 0.02:  # to second order, because the exact terms cancel
        log_density = -(w**2) / 2 - q * w**3 / 6 - q**2 * (w**4 / 24 + 1 / 12) - np.log(2 * np.pi) / 2
        return log_density, -w - q * w**2 / 2 - q**2 * w**3 / 6, -(w**3) / 6 - q * (w**4 + 2) / 12
    k, e = q**-2, np.exp(np.minimum(q * w, 50))
    log_density = np.log(abs(q)) + k * np.log(k) - scipy.special.gammaln(k) + k * (q * w - e)
    by_q = 1 / q - 2 * k / q * (np.log(k) + 1 - scipy.special.digamma(k) + q * w - e) + k * w * (1 - e)
    return log_density, (1 - e) / q, by_q


def _fit_logistic(centres: Float64, g: Float64, m: Float64, shape: Normals) -> RatioFit:
    """Fit r = ρ + (1 - ρ) exp(a + b s) by damped Fisher scoring of the log-loss of given against mismatched pairs."""
    offset, both = np.log(g.sum() / m.sum()), g + m
    pivot = float(m @ centres / m.sum())
    scale = float(np.sqrt(m @ (centres - pivot) ** 2 / m.sum()))
    s = (centres - pivot) / max(scale, centres[1] - centres[0])
    rate = min(max(_tail_ratio(g, m), 1e-3), 0.95)
    theta = np.array([np.log(rate / (1 - rate)), -2.0, 1.5])

    def ratio_of(theta: Float64) -> tuple[float, Float64, Float64]:
        rate = 1 / (1 + np.exp(-theta[0]))
        tilt = np.exp(np.clip(theta[1] + theta[2] * s, -50, 50))
        return float(rate), tilt, np.maximum(rate + (1 - rate) * tilt, 1e-12)

    def loss_of(theta: Float64) -> float:
        logit = np.log(ratio_of(theta)[2]) + offset
        return float(both @ np.logaddexp(0, logit) - g @ logit)

    loss, damping = loss_of(theta), 1e-2
    for _ in range(200):
        rate, tilt, ratio = ratio_of(theta)
        given = 1 / (1 + np.exp(-(np.log(ratio) + offset)))
        slope = np.stack([rate * (1 - rate) * (1 - tilt), (1 - rate) * tilt, (1 - rate) * tilt * s]) / ratio
        gradient = slope @ (g - both * given)
        fisher = (slope * (both * given * (1 - given))) @ slope.T
        step = np.linalg.solve(fisher + damping * (np.diag(np.diag(fisher)) + 1e-6 * np.eye(3)), gradient)
        trial = theta + np.clip(step, -3, 3)
        trial[0] = min(max(trial[0], -12.0), 12.0)
        trial[2] = max(trial[2], 1e-3)
        trial_loss = loss_of(trial)
        if trial_loss < loss:
            improved, theta, loss, damping = loss - trial_loss, trial, trial_loss, max(damping / 5, 1e-6)
            if improved < 1e-9 * both.sum():
                break
        else:
            damping *= 10
            if damping > 1e8:
                break
    rate, _, ratio = ratio_of(theta)
    return RatioFit(rate, ratio)


def _fit_isotonic(centres: Float64, g: Float64, m: Float64, shape: Normals) -> RatioFit:
    """Fit a rising r by pooling adjacent bins; between the centres of the pooled blocks r is interpolated."""
    both = g + m
    filled = both > 0
    share = scipy.optimize.isotonic_regression(g[filled] / both[filled], weights=both[filled]).x
    block = np.concatenate([[0], np.cumsum(np.diff(share) > 0)])
    size = np.bincount(block, both[filled])
    middle = np.bincount(block, both[filled] * centres[filled]) / size
    value = (np.bincount(block, g[filled]) + 0.5) / (size + 1)
    odds = value / (1 - value) * (m.sum() / g.sum())
    return RatioFit(_tail_ratio(g, m), np.exp(np.interp(centres, middle, np.log(np.maximum.accumulate(odds)))))


MODELS: dict[str, Callable[[Float64, Float64, Float64, Normals], RatioFit]] = {
    "gaussian": _fit_gaussian,
    "log-gamma": _fit_log_gamma,
    "logistic": _fit_logistic,
    "isotonic": _fit_isotonic,
}


def _tail_ratio(g: Float64, m: Float64) -> float:
    """Estimate ρ as the ratio of distribution functions at the point with the lowest upper confidence limit."""
    below_g, below_m = np.cumsum(g), np.cumsum(m)
    total_g, total_m = below_g[-1], below_m[-1]
    usable = (below_m >= max(5, 0.04 * total_m)) & (below_m <= 0.9 * total_m)
    if not usable.any():
        return 0.5
    share_m = below_m[usable] / total_m
    ratio = below_g[usable] / total_g / share_m
    spread = np.sqrt(below_g[usable] + 1) / total_g / share_m + ratio * np.sqrt((1 - share_m) / below_m[usable])
    return float(min(ratio[np.argmin(ratio + 3 * spread)], 1.0))


class Normals(NamedTuple):
    """A mixture of normal densities."""

    weight: Float64
    mean: Float64
    sd: Float64

    def density(self, x: Float64) -> Float64:
        return np.asarray(self.weight @ _normal(x, self.mean[:, None], self.sd[:, None]))


def _fit_normals(centres: Float64, counts: Float64, start: Normals, rounds: int) -> tuple[Normals, float]:
    """Fit by EM from `start`; return the mixture and its log-likelihood."""
    total, step, normals, before = counts.sum(), centres[1] - centres[0], start, -np.inf
    likelihood = before
    for _ in range(rounds):
        joint = normals.weight[:, None] * _normal(centres, normals.mean[:, None], normals.sd[:, None])
        density = joint.sum(axis=0)
        likelihood = float(counts @ np.log(density))
        if likelihood - before < 1e-6 * total:
            break
        before = likelihood
        part = joint * (counts / density)
        size = part.sum(axis=1) + 1e-9
        mean = part @ centres / size
        variance = np.maximum(part @ centres**2 / size - mean**2, (2 * step) ** 2)
        normals = Normals(size / size.sum(), mean, np.sqrt(variance))
    return normals, likelihood


def choose_normals(centres: Float64, counts: Float64, most: int = 5) -> Normals:
    """Fit a mixture of 1 to `most` normals; BIC chooses how many."""
    total = counts.sum()
    cumulative, mean = np.cumsum(counts) / total, counts @ centres / total
    overall = float(np.sqrt(max(counts @ (centres - mean) ** 2 / total, (centres[1] - centres[0]) ** 2)))
    fits = []
    for k in range(1, most + 1):
        places = centres[np.searchsorted(cumulative, (np.arange(k) + 0.5) / k).clip(0, len(centres) - 1)]
        start = Normals(np.full(k, 1 / k), places, np.full(k, overall / k))
        normals, likelihood = _fit_normals(centres, counts, start, rounds=200)
        fits.append(((3 * k - 1) * np.log(total) - 2 * likelihood, normals))
    return min(fits, key=lambda fit: fit[0])[1]


def _mixture(rate: float, f1: Float64, f0: Float64, weight: Float64) -> RatioFit:
    return RatioFit(rate, _make_rising(np.minimum(rate + (1 - rate) * f1 / f0, MAX_RATIO), weight))


def _make_rising(values: Float64, weight: Float64) -> Float64:
    return np.asarray(scipy.optimize.isotonic_regression(values, weights=weight + 1e-6).x, dtype=np.float64)


def _normal(x: Float64, mean: Any, sd: Any) -> Float64:
    return np.asarray(np.exp(-0.5 * ((x - mean) / sd) ** 2) / (sd * np.sqrt(2 * np.pi)) + 1e-300)
