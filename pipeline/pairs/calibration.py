"""What a similarity means: learned by mismatching pairs on purpose, without knowing which given pairs are wrong.

The given pairs are a mixture of wrong and right ones, f = ρ f0 + (1 - ρ) f1, and f0 is known: it is what deliberately
mismatched pairs of the same data show. With the density ratio r(s) = f(s) / f0(s) everything else follows:

    P(clean | s) = 1 - ρ / r(s),      ρ = lim r(s) for the lowest s,      f1(s) = f0(s)  ⇔  r(s) = 1.

The models of r (pipeline/pairs/density_ratio.py) are averaged: one whose held-out log-loss at telling given from mismatched
pairs is z standard errors above the best counts exp(-z²/2), because several shapes of f1 often fit alike and err on
different sides. The shapeless model counts only where the others fail. All runs on histograms, so that the cost does
not grow with the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system.array_types import Float32, Float64, Index

from .density_ratio import MODELS, Normals, RatioFit, choose_normals

__all__ = ["Expected", "Intersection", "PairCalibration", "calibrate_labels", "calibrate_pairs", "intersection"]


BINS = 500
FOLDS = 5
DRAWS = 50  # bootstrap replicates of the noise rate
LEAST = 20  # fewer values than this on either side: nothing can be learned
SHAPELESS = "isotonic"  # the model that is asked only where the others fail
PLAUSIBLE = 2  # standard errors behind the best: a model that is not further is taken seriously
CLEAN_BELOW = 0.01  # a noise rate below this counts as all clean, one above the rest of 1 as all noise


class Expected(NamedTuple):
    """What keeping the pairs above a cut is expected to give; shares in [0, 1], nan where nothing is kept or dropped."""

    kept: float
    clean_precision: float
    clean_recall: float
    noise_precision: float
    noise_recall: float


@dataclass(frozen=True)
class PairCalibration:
    """A monotone map from similarity to P(clean), piecewise linear, with what it promises; JSON through `to_dict`."""

    noise_rate: float
    noise_interval: tuple[float, float]  # 95 %: bootstrap, widened by how far the plausible models disagree
    method: str
    ece: float  # expected calibration error on folds that the map was not fitted on
    crossing: float  # similarity at which given and mismatched pairs are equally dense; nan where there is none
    crossing_sd: float  # of the same over the bootstrap; nan where there is none
    pairs: int
    mismatched: int
    knots: tuple[float, ...]
    clean: tuple[float, ...]  # P(clean) at the knots
    kept: tuple[float, ...]  # share of the given pairs above each knot
    kept_clean: tuple[float, ...]  # share of the given pairs that are above each knot and clean

    def clean_probability(self, similarity: ArrayLike) -> Float32:
        """P(clean | similarity), (N,) float32; nan stays nan.

        >>> rng = np.random.default_rng(0)
        >>> wrong, right = rng.normal(0.15, 0.03, 400), rng.normal(0.30, 0.03, 600)
        >>> calibration = calibrate_pairs(np.concatenate([wrong, right]), rng.normal(0.15, 0.03, 1000))
        >>> calibration.clean_probability([0.10, 0.35]).round(2).tolist()
        [0.0, 1.0]
        >>> round(calibration.noise_rate, 1)
        0.4
        """
        return np.interp(np.asarray(similarity, dtype=np.float64), self.knots, self.clean).astype(np.float32)

    def expected(self, cut: float) -> Expected:
        """Expected precision and recall when the pairs with similarity above `cut` are kept."""
        above = float(np.interp(cut, self.knots, self.kept, left=1.0, right=0.0))
        above_clean = float(np.interp(cut, self.knots, self.kept_clean, left=self.kept_clean[0], right=0.0))
        total_clean = self.kept_clean[0]
        below_noise = max(0.0, 1 - total_clean - (above - above_clean))
        return Expected(
            kept=above,
            clean_precision=_share(above_clean, above),
            clean_recall=_share(above_clean, total_clean),
            noise_precision=_share(below_noise, 1 - above),
            noise_recall=_share(below_noise, 1 - total_clean),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, for JSON; a nan becomes None."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {
            name: None if isinstance(value, float) and not np.isfinite(value) else value
            for name, value in plain.items()
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> PairCalibration:
        """The inverse of `to_dict`."""
        missing = [field.name for field in fields(cls) if field.name not in plain]
        if missing:
            raise ConfigError(f"calibration: no {', '.join(missing)} in it; give what PairCalibration.to_dict() wrote")
        values = {field.name: plain[field.name] for field in fields(cls)}
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        values = {name: np.nan if value is None else value for name, value in values.items()}
        return cls(**values)


class Intersection(NamedTuple):
    """A cut between mismatched and clean pairs, and how it came about."""

    beta: float  # where clean and mismatched pairs are equally dense, or the fall-back that `reason` names
    reason: str
    equal_posterior: float  # where P(clean) = 1/2 at the estimated noise rate; nan if nowhere
    noise_rate: float
    mean_mismatched: float
    sd_mismatched: float
    beta_sd: float  # of `beta`, by bootstrap


def calibrate_pairs(given: ArrayLike, mismatched: ArrayLike, seed: int = 0) -> PairCalibration:
    """Learn P(clean | similarity) from the given pairs (N,) and from deliberately mismatched ones (M,); nan is dropped.

    Mismatch by a derangement that avoids equal captions and equal images: a "mismatched" pair that in truth matches
    counts here as what a wrong pair may look like. The map is as good as two assumptions: wrong pairs among the given
    look like mismatched ones, and the least similar wrong pairs are less similar than nearly all right ones.
    """
    given, mismatched = _finite(given), _finite(mismatched)
    if min(len(given), len(mismatched)) < LEAST:
        raise ConfigError(
            f"calibrate_pairs: {len(given)} given and {len(mismatched)} mismatched similarities, "
            f"at least {LEAST} of each are needed; 1,000 of each work well"
        )
    rng = np.random.default_rng(seed)
    centres, g, m = _histograms(given, mismatched, rng)
    whole_g, whole_m = g.sum(axis=0), m.sum(axis=0)
    shape = choose_normals(centres, whole_m)
    held_out = {
        name: [fit(centres, whole_g - g[fold], whole_m - m[fold], shape) for fold in range(FOLDS)]
        for name, fit in MODELS.items()
    }
    weights = _weights(_excess_losses(held_out, g, m))
    fits = {name: MODELS[name](centres, whole_g, whole_m, shape) for name in weights}
    chosen = _averaged(fits, weights)
    interval, crossing_sd = _bootstrap(centres, whole_g, whole_m, shape, fits, weights, rng)
    clean = chosen.clean()
    knots = _knots(centres, clean, whole_g, whole_m)
    at_knots = np.interp(knots, centres, clean)
    share = whole_g / whole_g.sum()
    unseen = [_averaged({name: held_out[name][fold] for name in weights}, weights) for fold in range(FOLDS)]
    edges = centres + (centres[1] - centres[0]) / 2
    kept = np.interp(knots, edges, 1 - np.cumsum(share), left=1.0)
    kept_clean = np.interp(knots, edges, np.sum(share * clean) - np.cumsum(share * clean), left=np.sum(share * clean))
    return PairCalibration(
        noise_rate=round(chosen.rate, 6),
        noise_interval=interval,
        method=_described(weights),
        ece=round(_held_out_error(unseen, g, m, chosen.rate), 6),
        crossing=_crossing(centres, chosen.ratio),
        crossing_sd=crossing_sd,
        pairs=len(given),
        mismatched=len(mismatched),
        knots=_rounded(knots),
        clean=_rounded(at_knots),
        kept=_rounded(kept),
        kept_clean=_rounded(np.clip(kept_clean, 0, 1)),
    )


def calibrate_labels(posterior: ArrayLike, labels: ArrayLike, seed: int = 0) -> PairCalibration:
    """Learn P(clean | posterior at the label) by flipping every label to another one, drawn evenly.

    posterior: (N, C), from something that has not seen the row's own label, so that a flip needs no new prediction;
    labels: (N,), rows outside 0..C-1 or without a posterior are left out. A flip of a wrong label may put it right: with
    ρ' what the flips alone suggest, ρ = ρ' / (1 + ρ' / (C - 1)), and P(clean) follows. Exact for symmetric noise; people
    confuse classes that look alike, which even flips do not show, so that for human noise ρ is a lower limit and
    `noisegate.pipeline.labels.fusion.fuse` is closer.

    >>> rng = np.random.default_rng(0)
    >>> truth = rng.integers(0, 4, 2000)
    >>> given = np.where(rng.random(2000) < 0.2, (truth + rng.integers(1, 4, 2000)) % 4, truth)
    >>> posterior = rng.dirichlet(np.ones(4), 2000) + 2 * np.eye(4)[truth]
    >>> calibration = calibrate_labels(posterior / posterior.sum(axis=1, keepdims=True), given)
    >>> round(calibration.noise_rate, 1), calibration.clean_probability([0.01, 0.9]).round(1).tolist()
    (0.2, [0.0, 1.0])
    """
    shares, given = np.asarray(posterior, dtype=np.float64), np.asarray(labels)
    if shares.ndim != 2 or shares.shape[1] < 2 or given.shape != (len(shares),):
        raise ConfigError(
            f"calibrate_labels: posterior {shares.shape} and labels {given.shape} do not fit; "
            "give (N, C) with at least two classes, and (N,)"
        )
    classes = shares.shape[1]
    rows = np.flatnonzero((given >= 0) & (given < classes) & np.isfinite(shares).all(axis=1))
    label = given[rows].astype(np.int64)
    flipped = (label + np.random.default_rng(seed).integers(1, classes, len(rows))) % classes

    def log_odds(of: Index) -> Float64:
        share = np.clip(shares[rows, of], 1e-6, 1 - 1e-6)
        return np.asarray(np.log(share / (1 - share)))

    plain = calibrate_pairs(log_odds(label), log_odds(flipped), seed)

    def corrected(rate: float) -> float:
        return round(float(rate / (1 + rate / (classes - 1))), 6)

    rate = corrected(plain.noise_rate)
    right = rate / (classes - 1)  # share of the flips that put a label right
    scarcity = (1 - np.asarray(plain.clean)) / max(plain.noise_rate, 1e-12)  # flipped over given density
    wrong = rate * ((1 - rate) * scarcity - right) / ((1 - right) * (1 - rate) - right * rate)
    clean = np.clip(1 - wrong, 0, 1)
    # densest at the ends, where the odds were; equal knots after rounding are dropped
    knots, first = np.unique(np.round(1 / (1 + np.exp(-np.asarray(plain.knots))), 6), return_index=True)
    kept = np.asarray(plain.kept)
    falling = np.append((clean[1:] + clean[:-1]) / 2 * -np.diff(kept), clean[-1] * kept[-1])
    kept_clean = np.cumsum(falling[::-1])[::-1]
    return replace(
        plain,
        noise_rate=rate,
        noise_interval=(corrected(plain.noise_interval[0]), corrected(plain.noise_interval[1])),
        crossing=float(1 / (1 + np.exp(-plain.crossing))),
        crossing_sd=float("nan"),
        knots=_rounded(knots),
        clean=_rounded(clean[first]),
        kept=_rounded(kept[first]),
        kept_clean=_rounded(kept_clean[first]),
    )


def intersection(
    given: ArrayLike,
    mismatched: ArrayLike,
    seed: int = 0,
    calibration: PairCalibration | None = None,
    *,
    even_if_clean: bool = False,
) -> Intersection:
    """Where clean and mismatched pairs are equally dense: OSA's β for a space without a cone.

    The equal-posterior point at even odds, f1(β) = f0(β), which is where f(β) = f0(β) whatever the noise rate; it is
    the cut with the best balanced accuracy. Falls back to mean + 2 sd of the mismatched, with the reason in `reason`,
    when one of the two sides is too small or constant, when no clean component stands out, or when the given pairs
    look all clean, unless `even_if_clean`. `calibration` may bring what `calibrate_pairs` found for the same pairs.

    >>> rng = np.random.default_rng(0)
    >>> wrong, right = rng.normal(0.0, 0.15, 4000), rng.normal(0.45, 0.15, 6000)
    >>> cut = intersection(np.concatenate([wrong, right]), rng.normal(0.0, 0.15, 10000))
    >>> 0.20 < cut.beta < 0.25, cut.reason
    (True, 'crossing')
    """
    given, mismatched = _finite(given), _finite(mismatched)
    mean = float(mismatched.mean()) if len(mismatched) else float("nan")
    sd = float(mismatched.std()) if len(mismatched) else float("nan")

    def fall_back(reason: str, rate: float = float("nan"), equal: float = float("nan")) -> Intersection:
        error = sd * float(np.sqrt(3 / max(len(mismatched), 1)))  # of mean + 2 sd, for a normal sample
        return Intersection(mean + 2 * sd, f"mean + 2 sd of the mismatched: {reason}", equal, rate, mean, sd, error)

    if min(len(given), len(mismatched)) < LEAST:
        return fall_back(f"fewer than {LEAST} similarities")
    if sd < 1e-6 or float(given.std()) < 1e-6:
        return fall_back("similarities are constant")
    calibration = calibration or calibrate_pairs(given, mismatched, seed)
    rate, (_, most) = calibration.noise_rate, calibration.noise_interval
    clean = np.asarray(calibration.clean)
    equal = float(np.interp(0.5, clean, calibration.knots)) if clean.min() < 0.5 < clean.max() else float("nan")
    if not np.isfinite(calibration.crossing) or calibration.crossing < mean or rate > 1 - CLEAN_BELOW:
        return fall_back("no clean component stands out", rate, equal)
    if rate < CLEAN_BELOW and most < 3 * CLEAN_BELOW and not even_if_clean:
        return fall_back("the given pairs look all clean", rate, equal)
    return Intersection(calibration.crossing, "crossing", equal, rate, mean, sd, calibration.crossing_sd)


def _weights(excess: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """How much each model counts, by its excess loss (mean, standard error); they sum to 1."""
    behind = {name: mean / max(error, 1e-12) for name, (mean, error) in excess.items()}
    shaped = {name: z for name, z in behind.items() if name != SHAPELESS}
    chosen = shaped if min(shaped.values()) <= PLAUSIBLE else behind
    counts = {name: float(np.exp(-0.5 * z**2)) for name, z in chosen.items() if z <= 2 * PLAUSIBLE}
    total = sum(counts.values())
    return {name: count / total for name, count in counts.items()}


def _averaged(fits: Mapping[str, RatioFit], weights: Mapping[str, float]) -> RatioFit:
    """The mixture of the models' densities."""
    rate = sum(weight * fits[name].rate for name, weight in weights.items())
    ratio = np.sum([weight * fits[name].ratio for name, weight in weights.items()], axis=0)
    return RatioFit(rate, ratio)


def _described(weights: Mapping[str, float]) -> str:
    """The models by weight: "log-gamma 62 %, gaussian 38 %"."""
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
    """95 % of the bootstrap around ρ, reaching to what every plausible model says; and the crossing's deviation.

    Each draw is fitted with one model, taken by weight, so that the spread holds how far they disagree.
    """

    def redrawn(counts: Float64) -> Float64:
        return rng.multinomial(int(counts.sum()), counts / counts.sum()).astype(np.float64)

    names = rng.choice(list(weights), DRAWS, p=list(weights.values()))
    drawn = [MODELS[name](centres, redrawn(g), redrawn(m), shape) for name in names]
    few = 3 / float(g.sum())  # none seen among n still allows a share of 3 / n
    spread = max(1.96 * float(np.std([fit.rate for fit in drawn])), few)
    crossings = np.array([_crossing(centres, fit.ratio) for fit in drawn])
    found = crossings[np.isfinite(crossings)]
    likeliest = max(weights.values())
    rates = [fits[name].rate for name, weight in weights.items() if weight >= likeliest * np.exp(-0.5 * PLAUSIBLE**2)]
    interval = round(max(min(rates) - spread, 0.0), 6), round(min(max(rates) + spread, 1.0), 6)
    return interval, float(found.std()) if len(found) else float("nan")


def _held_out_error(fits: list[RatioFit], g: Float64, m: Float64, rate: float) -> float:
    """ECE over ten bins of P(clean): the share of clean pairs in a bin is 1 - ρ · mismatched share / given share."""
    predicted, seen, wrong = np.zeros(10), np.zeros(10), np.zeros(10)
    for fold, fit in enumerate(fits):
        clean = fit.clean()
        decile = np.minimum((clean * 10).astype(int), 9)
        predicted += np.bincount(decile, g[fold] * clean, 10)
        seen += np.bincount(decile, g[fold], 10)
        wrong += np.bincount(decile, m[fold], 10)
    return float(np.abs(seen - rate * wrong * seen.sum() / wrong.sum() - predicted).sum() / seen.sum())


def _excess_losses(held_out: Mapping[str, list[RatioFit]], g: Float64, m: Float64) -> dict[str, tuple[float, float]]:
    """Held-out log-loss of each model above the best one's: mean over all pairs, and its standard error."""
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
    """Bin centres (B,) and counts (FOLDS, B) of both sides; values far outside the quartiles go to the end bins."""
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
    """The similarity at which the rising ratio passes 1; nan where it never does."""
    if ratio[0] >= 1 or ratio[-1] <= 1:
        return float("nan")
    above = int(np.argmax(ratio > 1))
    low, high = np.log(np.maximum(ratio[above - 1 : above + 1], 1e-12))
    return float(centres[above - 1] + (centres[above] - centres[above - 1]) * (-low / max(high - low, 1e-12)))


def _knots(centres: Float64, clean: Float64, g: Float64, m: Float64) -> Float64:
    """At most about 120 places: quantiles of both sides, and every two points of P(clean)."""
    quantiles = np.linspace(0, 1, 33)
    places = [np.interp(quantiles, np.cumsum(counts) / counts.sum(), centres) for counts in (g, m)]
    levels = np.interp(np.linspace(0.02, 0.98, 49), clean, centres)
    return np.unique(np.round(np.concatenate([centres[:1], *places, levels, centres[-1:]]), 6))


def _finite(values: ArrayLike) -> Float64:
    flat = np.asarray(values, dtype=np.float64).ravel()
    return flat[np.isfinite(flat)]


def _rounded(values: Float64) -> tuple[float, ...]:
    return tuple(float(value) for value in np.round(values, 6))


def _share(part: float, whole: float) -> float:
    return min(part / whole, 1.0) if whole > 1e-9 else float("nan")
