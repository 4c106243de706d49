"""Learn P(clean | similarity) by mismatching pairs on purpose, without knowing which given pairs are wrong.

The density of the given pairs is a mixture of wrong and right pairs, f = ρ f0 + (1 - ρ) f1, and f0 is known: it is the density
of pairs of the same data mismatched on purpose. Everything else follows from the density ratio r(s) = f(s) / f0(s):

    P(clean | s) = 1 - ρ / r(s),      ρ = lim r(s) for the lowest s,      f1(s) = f0(s)  ⇔  r(s) = 1.

The models of r (pipeline/pairs/density_ratio.py) are averaged: a model whose held-out log-loss of given against mismatched
pairs is z standard errors above the best has weight exp(-z²/2), because several shapes of f1 often fit equally well and err in
different directions. The isotonic model, which assumes no shape, is used only if the others fail. Everything is computed on
histograms, so that the cost does not grow with the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system.array_types import Float64
from noisegate.pipeline.system.blas import one_blas_thread

from .calibration import CLEAN_BELOW, PairCalibration
from .density_ratio import MODELS, Normals, RatioFit, choose_normals

BINS = 500  # of the histograms of similarities
FOLDS = 5  # of the cross-validation that gives the weights of the models
DRAWS = 50  # bootstrap replicates of the noise rate and the crossing
MIN_PAIRS = 20  # similarities of given and of mismatched pairs that a calibration needs; chosen
SHAPELESS = "isotonic"  # the model that is used only if the others fail
PLAUSIBLE = 2  # a model counts as plausible up to this many standard errors behind the best


class Intersection(NamedTuple):
    """A cut between mismatched and clean pairs, and how it was found."""

    beta: float  # cosine where clean and mismatched pairs are equally dense, or the fall-back named by `reason`
    reason: str
    beta_sd: float  # of `beta`, by bootstrap


class RatioModels(NamedTuple):
    """All models fitted to the same pairs, without the bootstrap, which takes most of the time."""

    centres: Float64
    given: Float64  # (FOLDS, B) counts
    mismatched: Float64  # (FOLDS, B)
    shape: Normals
    held_out: dict[str, list[RatioFit]]
    weights: dict[str, float]
    rng: np.random.Generator

    @property
    def unseen(self) -> list[RatioFit]:
        """Average the models, for each fold those that were not fitted on it."""
        held_out, weights = self.held_out, self.weights
        return [_average({name: held_out[name][fold] for name in weights}, weights) for fold in range(FOLDS)]

    @property
    def loss(self) -> float:
        """Compute the held-out log-loss (nats) of given against mismatched pairs."""
        return round(_held_out_loss(self.unseen, self.given, self.mismatched), 6)

    def calibrate(self) -> PairCalibration:
        """Make the map of the averaged models, with a bootstrap interval of the noise rate."""
        with one_blas_thread():
            return _calibrate(self)


def calibrate_pairs(given: ArrayLike, mismatched: ArrayLike, seed: int = 0) -> PairCalibration:
    """Learn P(clean | similarity) from the given pairs (N,) and from pairs mismatched on purpose (M,); nan is dropped.

    Mismatch by a derangement that avoids equal captions and equal images: otherwise pairs that really match would count as
    examples of wrong pairs. The map rests on two assumptions: wrong pairs among the given look like mismatched ones, and the
    least similar wrong pairs are less similar than nearly all right pairs.

    >>> rng = np.random.default_rng(0)
    >>> wrong, right = rng.normal(0.15, 0.03, 400), rng.normal(0.30, 0.03, 600)
    >>> calibration = calibrate_pairs(np.concatenate([wrong, right]), rng.normal(0.15, 0.03, 1000))
    >>> calibration.clean_probability([0.10, 0.35]).round(2).tolist()
    [0.0, 1.0]
    >>> round(calibration.noise_rate, 1)
    0.4
    """
    return fit_models(given, mismatched, seed).calibrate()


def fit_models(given: ArrayLike, mismatched: ArrayLike, seed: int = 0) -> RatioModels:
    """Fit all models of r to given (N,) and mismatched pairs (M,), and weigh them by cross-validation; nan is dropped."""
    given, mismatched = _keep_finite(given), _keep_finite(mismatched)
    fewest = min(len(given), len(mismatched))
    if fewest < MIN_PAIRS:
        raise ConfigError.of("pairs", fewest, f"are too few; give {MIN_PAIRS} or more of both kinds, better 1,000")
    rng = np.random.default_rng(seed)
    # on matrices this small BLAS threads only wait for each other: one thread is six times as fast, with the same result
    with one_blas_thread():
        centres, g, m = _histograms(given, mismatched, rng)
        whole_g, whole_m = g.sum(axis=0), m.sum(axis=0)
        shape = choose_normals(centres, whole_m)
        held_out = {
            name: [fit(centres, whole_g - g[fold], whole_m - m[fold], shape) for fold in range(FOLDS)]
            for name, fit in MODELS.items()
        }
        return RatioModels(centres, g, m, shape, held_out, _weights(_excess_losses(held_out, g, m)), rng)


def _calibrate(models: RatioModels) -> PairCalibration:
    centres, g, m, weights = models.centres, models.given, models.mismatched, models.weights
    whole_g, whole_m = g.sum(axis=0), m.sum(axis=0)
    fits = {name: MODELS[name](centres, whole_g, whole_m, models.shape) for name in weights}
    chosen = _average(fits, weights)
    interval, crossing_sd = _bootstrap(centres, whole_g, whole_m, models.shape, fits, weights, deepcopy(models.rng))
    clean = chosen.clean()
    knots = _knots(centres, clean, whole_g, whole_m)
    at_knots = np.interp(knots, centres, clean)
    share = whole_g / whole_g.sum()
    edges = centres + (centres[1] - centres[0]) / 2
    kept = np.interp(knots, edges, 1 - np.cumsum(share), left=1.0)
    kept_clean = np.interp(knots, edges, np.sum(share * clean) - np.cumsum(share * clean), left=np.sum(share * clean))
    return PairCalibration(
        noise_rate=round(chosen.rate, 6),
        noise_interval=interval,
        method=_describe(weights),
        ece=round(_held_out_error(models.unseen, g, m, chosen.rate), 6),
        crossing=_crossing(centres, chosen.ratio),
        crossing_sd=crossing_sd,
        pairs=int(g.sum()),
        mismatched=int(m.sum()),
        knots=_round(knots),
        clean=_round(at_knots),
        kept=_round(kept),
        kept_clean=_round(np.clip(kept_clean, 0, 1)),
        loss=models.loss,
    )


def intersection(
    given: ArrayLike,
    mismatched: ArrayLike,
    seed: int = 0,
    calibration: PairCalibration | None = None,
    *,
    even_if_clean: bool = False,
) -> Intersection:
    """Find the cosine where clean and mismatched pairs are equally dense: OSA's β for a space without a cone.

    It is the equal-posterior point at even odds, f1(β) = f0(β), where also f(β) = f0(β) at any noise rate; this cut has the
    best balanced accuracy. Falls back to mean + 2 sd of the mismatched, with the reason in `reason`, when given or mismatched
    pairs are too few or constant, when no clean component stands out, or when the given pairs look all clean, unless
    `even_if_clean`. `calibration` is the one of the same pairs, if it is known already.

    >>> rng = np.random.default_rng(0)
    >>> wrong, right = rng.normal(0.0, 0.15, 4000), rng.normal(0.45, 0.15, 6000)
    >>> cut = intersection(np.concatenate([wrong, right]), rng.normal(0.0, 0.15, 10000))
    >>> 0.20 < cut.beta < 0.25, cut.reason
    (True, 'crossing')
    """
    given, mismatched = _keep_finite(given), _keep_finite(mismatched)
    mean = float(mismatched.mean()) if len(mismatched) else float("nan")
    sd = float(mismatched.std()) if len(mismatched) else float("nan")

    def fall_back(reason: str) -> Intersection:
        error = sd * float(np.sqrt(3 / max(len(mismatched), 1)))  # of mean + 2 sd, for a normal sample
        return Intersection(mean + 2 * sd, f"mean + 2 sd of the mismatched: {reason}", error)

    if min(len(given), len(mismatched)) < MIN_PAIRS:
        return fall_back(f"fewer than {MIN_PAIRS} similarities")
    if sd < 1e-6 or float(given.std()) < 1e-6:
        return fall_back("similarities are constant")
    calibration = calibration or calibrate_pairs(given, mismatched, seed)
    rate, (_, most) = calibration.noise_rate, calibration.noise_interval
    if not np.isfinite(calibration.crossing) or calibration.crossing < mean or rate > 1 - CLEAN_BELOW:
        return fall_back("no clean component stands out")
    if rate < CLEAN_BELOW and most < 3 * CLEAN_BELOW and not even_if_clean:
        return fall_back("the given pairs look all clean")
    return Intersection(calibration.crossing, "crossing", calibration.crossing_sd)


def _weights(excess: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Weights of the models by their excess loss (mean, standard error); they sum to 1."""
    behind = {name: mean / max(error, 1e-12) for name, (mean, error) in excess.items()}
    shaped = {name: z for name, z in behind.items() if name != SHAPELESS}
    chosen = shaped if min(shaped.values()) <= PLAUSIBLE else behind
    counts = {name: float(np.exp(-0.5 * z**2)) for name, z in chosen.items() if z <= 2 * PLAUSIBLE}
    total = sum(counts.values())
    return {name: count / total for name, count in counts.items()}


def _average(fits: Mapping[str, RatioFit], weights: Mapping[str, float]) -> RatioFit:
    """Mix the models' densities by weight."""
    rate = sum(weight * fits[name].rate for name, weight in weights.items())
    ratio = np.sum([weight * fits[name].ratio for name, weight in weights.items()], axis=0)
    return RatioFit(rate, ratio)


def _describe(weights: Mapping[str, float]) -> str:
    """Name the models by weight: "log-gamma 62 %, gaussian 38 %"."""
    order = sorted(weights, key=lambda name: -weights[name])
    parts = [f"{name} {weights[name]:.0%}".replace("%", " %") for name in order if weights[name] >= 0.005]
    return order[0] if len(parts) == 1 else ", ".join(parts)


def _bootstrap(
    centres: Float64,
    g: Float64,
    m: Float64,
    shape: Normals,
    fits: Mapping[str, RatioFit],
    weights: Mapping[str, float],
    rng: np.random.Generator,
) -> tuple[tuple[float, float], float]:
    """Bootstrap a 95 % interval of ρ that includes the estimate of every plausible model, and the sd of the crossing.

    Each draw is fitted with one model, chosen by weight, so that the spread includes the disagreement of the models.
    """

    def redraw(counts: Float64) -> Float64:
        return rng.multinomial(int(counts.sum()), counts / counts.sum()).astype(np.float64)

    names = rng.choice(list(weights), DRAWS, p=list(weights.values()))
    drawn = [MODELS[name](centres, redraw(g), redraw(m), shape) for name in names]
    few = 3 / float(g.sum())  # rule of three: if none of n is wrong, the share of wrong ones may still be 3 / n
    spread = max(1.96 * float(np.std([fit.rate for fit in drawn])), few)
    crossings = np.array([_crossing(centres, fit.ratio) for fit in drawn])
    finite = crossings[np.isfinite(crossings)]
    likeliest = max(weights.values())
    rates = [fits[name].rate for name, weight in weights.items() if weight >= likeliest * np.exp(-0.5 * PLAUSIBLE**2)]
    interval = round(max(min(rates) - spread, 0.0), 6), round(min(max(rates) + spread, 1.0), 6)
    return interval, float(finite.std()) if len(finite) else float("nan")


def _held_out_error(fits: list[RatioFit], g: Float64, m: Float64, rate: float) -> float:
    """Compute the ECE over ten bins of P(clean); a bin's share of clean pairs is 1 - ρ · mismatched share / given share."""
    predicted, seen, wrong = np.zeros(10), np.zeros(10), np.zeros(10)
    for fold, fit in enumerate(fits):
        clean = fit.clean()
        decile = np.minimum((clean * 10).astype(int), 9)
        predicted += np.bincount(decile, g[fold] * clean, 10)
        seen += np.bincount(decile, g[fold], 10)
        wrong += np.bincount(decile, m[fold], 10)
    return float(np.abs(seen - rate * wrong * seen.sum() / wrong.sum() - predicted).sum() / seen.sum())


def _held_out_loss(fits: list[RatioFit], g: Float64, m: Float64) -> float:
    """Compute the log-loss of given against mismatched pairs on held-out folds; both kinds have weight 1/2."""
    # at even odds, independent of the numbers of pairs
    logits = np.log(np.maximum(np.stack([fit.ratio for fit in fits]), 1e-9))
    on_given, on_mismatched = np.logaddexp(0, -logits), np.logaddexp(0, logits)
    return float((np.sum(g * on_given) / g.sum() + np.sum(m * on_mismatched) / m.sum()) / 2)


def _excess_losses(held_out: Mapping[str, list[RatioFit]], g: Float64, m: Float64) -> dict[str, tuple[float, float]]:
    """Compute the held-out log-loss of each model minus that of the best: mean over all pairs, and its standard error."""
    offset, total = np.log(g.sum() / m.sum()), (g + m).sum()
    logits = {name: np.stack([np.log(np.maximum(fit.ratio, 1e-9)) for fit in fits]) for name, fits in held_out.items()}
    losses = {
        name: (np.logaddexp(0, -logit - offset), np.logaddexp(0, logit + offset)) for name, logit in logits.items()
    }
    best = min(losses, key=lambda name: float(np.sum(g * losses[name][0] + m * losses[name][1])))
    excess = {}
    for name, (on_given, on_mismatched) in losses.items():
        more_g, more_m = on_given - losses[best][0], on_mismatched - losses[best][1]
        mean = float(np.sum(g * more_g + m * more_m) / total)
        square = float(np.sum(g * more_g**2 + m * more_m**2) / total)
        excess[name] = mean, float(np.sqrt(max(square - mean**2, 0) / total))
    return excess


def _histograms(given: Float64, mismatched: Float64, rng: np.random.Generator) -> tuple[Float64, Float64, Float64]:
    """Count both sides in bins: centres (B,) and counts (FOLDS, B); values far outside the quartiles go to the end bins."""
    pooled = np.concatenate([given, mismatched])
    low, high = np.quantile(pooled, [0.25, 0.75])
    reach = 10 * max(high - low, 1e-9)
    start, end = max(float(pooled.min()), low - reach), min(float(pooled.max()), high + reach)
    pad = 0.0 if end - start > 1e-6 else 1e-3  # constant values still need a bin
    edges = np.linspace(start - pad, end + pad, BINS + 1)

    def counts(values: Float64) -> Float64:
        place = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, BINS - 1)
        fold = rng.permutation(len(values)) % FOLDS
        return np.bincount(fold * BINS + place, minlength=FOLDS * BINS).reshape(FOLDS, BINS).astype(np.float64)

    return (edges[1:] + edges[:-1]) / 2, counts(given), counts(mismatched)


def _crossing(centres: Float64, ratio: Float64) -> float:
    """Find the similarity at which the rising ratio passes 1; nan if it never does."""
    if ratio[0] >= 1 or ratio[-1] <= 1:
        return float("nan")
    above = int(np.argmax(ratio > 1))
    low, high = np.log(np.maximum(ratio[above - 1 : above + 1], 1e-12))
    return float(centres[above - 1] + (centres[above] - centres[above - 1]) * (-low / max(high - low, 1e-12)))


def _knots(centres: Float64, clean: Float64, g: Float64, m: Float64) -> Float64:
    """Choose at most about 120 knots: quantiles of both sides, and one for every 2 % of P(clean)."""
    quantiles = np.linspace(0, 1, 33)
    places = [np.interp(quantiles, np.cumsum(counts) / counts.sum(), centres) for counts in (g, m)]
    levels = np.interp(np.linspace(0.02, 0.98, 49), clean, centres)
    return np.unique(np.round(np.concatenate([centres[:1], *places, levels, centres[-1:]]), 6))


def _keep_finite(values: ArrayLike) -> Float64:
    flat = np.asarray(values, dtype=np.float64).ravel()
    return flat[np.isfinite(flat)]


def _round(values: Float64) -> tuple[float, ...]:
    return tuple(float(value) for value in np.round(values, 6))
