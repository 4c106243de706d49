"""β, the cosine that a model gives to unrelated pictures and texts (OSA Eq. 4).

Random inputs and shuffled real pairs give different values. If embeddings lie in a cone (CLIP: shuffled pairs about .15, random
inputs .215, matched pairs .30), random inputs lie between shuffled and matched pairs, and are the paper's β. Without a cone
they fall among the shuffled pairs and reject only some of the noise; the crossing of the two densities is then a better cut.
"""

import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy  # its parts are imported at their first use
from platformdirs import user_cache_path

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators.base import Estimator, Identity, normalise, paired_cosines
from noisegate.pipeline.settings import NEED_DATA, check_beta_mode, check_beta_value
from noisegate.pipeline.system.array_types import Floats, Index
from noisegate.pipeline.system.output_files import write_atomically

from .calibration import PairCalibration
from .calibration_fit import MIN_PAIRS, RatioModels, fit_models, intersection

NOISE_INPUTS = 256  # random pictures and texts; all 65,536 combinations count, as in OSA's code
PAIRS = 10_000  # most given pairs from which β and the calibration are learned
RESAMPLES = 100  # bootstrap replicates of an interval


@dataclass(frozen=True)
class Beta:
    """A value of β and how it was found: `std` of the cosines behind it, their `count`, and a 95 % bootstrap `interval`."""

    value: float
    mode: str
    reason: str = ""
    std: float | None = None
    count: int = 0
    seed: int = 0
    interval: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        check_beta_value(self.value)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Beta":
        """The inverse of `to_dict`."""
        interval = values.get("interval")
        return cls(**{**values, "interval": tuple(interval) if interval else None})

    def __str__(self) -> str:
        within = f" [{self.interval[0]:.4f}, {self.interval[1]:.4f}]" if self.interval else ""
        return f"{self.value:.4f}{within} ({self.mode})"


@dataclass(frozen=True)
class PairSample:
    """Cosines of the given pairs (N,) and of pairs mismatched on purpose (M,) of the same data."""

    given: Floats
    mismatched: Floats

    @cached_property
    def models(self) -> RatioModels | None:
        """Fit the models to this sample; None if it has too few pairs."""
        if min(np.isfinite(self.given).sum(), np.isfinite(self.mismatched).sum()) < MIN_PAIRS:
            return None
        return fit_models(self.given, self.mismatched)

    @cached_property
    def calibration(self) -> PairCalibration | None:
        """Learn the calibration from this sample; None if it has too few pairs."""
        return self.models.calibrate() if self.models else None


def estimate_beta(
    estimator: Estimator | None = None,
    images: Floats | None = None,
    texts: Floats | None = None,
    *,
    mode: str = "auto",
    pairs: PairSample | None = None,
    random_inputs: Callable[[], Beta] | None = None,
    seed: int = 0,
) -> Beta:
    """Estimate β by one of `BETA_MODES`, with its spread, sample size, seed and a 95 % interval.

    `images` and `texts` are embeddings (N, d) of the given pairs, row by row; `pairs` replaces them if their cosines are known
    already, and `random_inputs` replaces the estimator if its own β is cached. Raises ConfigError if an input that the mode
    needs is missing.

    >>> estimate_beta(mode="fixed:0.215").value
    0.215
    """
    mode = check_beta_mode(mode)
    if mode.startswith("fixed:"):
        return Beta(float(mode.removeprefix("fixed:")), "fixed", "given by the user")
    if random_inputs is None and estimator is not None:
        model = estimator

        def random_inputs() -> Beta:
            return beta_of_random_inputs(model, seed=seed)

    if pairs is None and images is not None and texts is not None:
        pairs = sample_pairs(images, texts, np.random.default_rng(seed))
    if mode == "random_inputs":
        if random_inputs is None:
            raise _lacks(mode, "needs the model; use intersection for embeddings alone")
        return random_inputs()
    if mode in NEED_DATA:
        if pairs is None:
            raise _lacks(mode, "needs data; give shards, or use random_inputs for a model alone")
        if len(pairs.mismatched) < 2:
            if len(pairs.given) > 2:
                raise _too_alike(mode, pairs, 2)
            raise _lacks(mode, f"needs more than {len(pairs.given)} good pairs; use fixed:0.215, or random_inputs")
        return beta_of_intersection(pairs, seed) if mode == "intersection" else beta_of_shuffled(pairs, seed)
    return _choose(pairs, random_inputs, seed)


def _choose(pairs: PairSample | None, random_inputs: Callable[[], Beta] | None, seed: int) -> Beta:
    """Choose β in mode `auto`: random inputs if they lie between shuffled and given pairs, else the intersection."""
    if random_inputs is None and pairs is None:
        raise _lacks("auto", "needs a model or data; give one, or a number such as fixed:0.215")
    if pairs is None or pairs.models is None:
        if random_inputs is None:
            if pairs is not None and len(pairs.given) >= MIN_PAIRS:
                raise _too_alike("auto", pairs, MIN_PAIRS)
            raise _lacks("auto", f"needs at least {MIN_PAIRS} pairs when there is no model; use fixed:0.215")
        return _with_reason(random_inputs(), "too few pairs to look at the data")
    if random_inputs is None:
        return _with_reason(beta_of_intersection(pairs, seed), "embeddings alone")
    random = random_inputs()
    low, spread, high = np.mean(pairs.mismatched), np.std(pairs.mismatched), np.quantile(pairs.given, 0.9)
    where = f"random inputs {random.value:.3f}, shuffled pairs {low:.3f} ± {spread:.3f}, best given pairs {high:.3f}"
    if low + spread < random.value < high:
        return _with_reason(random, f"the model has a cone: {where}")
    return _with_reason(beta_of_intersection(pairs, seed), f"no cone between shuffled and given pairs: {where}")


def _lacks(mode: str, need: str) -> ConfigError:
    return ConfigError(f"beta {mode} {need}", "beta", mode)


def _too_alike(mode: str, pairs: PairSample, least: int) -> ConfigError:
    return _lacks(
        mode,
        f"needs {least} mismatched pairs, and only {len(pairs.mismatched):,} can be made of {len(pairs.given):,} pairs: too "
        "few of them differ in both picture and text; use fixed:0.215",
    )


def _with_reason(beta: Beta, reason: str) -> Beta:
    return replace(beta, reason=f"{reason}; {beta.reason}" if beta.reason else reason)


def measure_beta(estimator: Estimator, seed: int = 0) -> Beta:
    """Measure β of random inputs, or read it from the user's cache folder."""
    return cached_beta(estimator.identity, seed, lambda: beta_of_random_inputs(estimator, seed=seed))


def beta_cache_file(identity: Identity, seed: int) -> Path:
    """Return the cache file of the β of this scorer and seed."""
    return user_cache_path("noisegate") / "beta" / f"{identity.digest}-{NOISE_INPUTS}-{seed}.json"


def cached_beta(identity: Identity, seed: int, compute: Callable[[], Beta]) -> Beta:
    """Read β from the cache; compute and write a missing or damaged entry."""
    path = beta_cache_file(identity, seed)
    try:
        return Beta.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, AttributeError, ConfigError):
        beta = compute()
    with contextlib.suppress(OSError):  # with a read-only home folder β is only computed again next time
        write_atomically(path, json.dumps(beta.to_dict()).encode())
    return beta


def beta_of_random_inputs(estimator: Estimator, count: int = NOISE_INPUTS, seed: int = 0) -> Beta:
    """Compute the mean cosine over all combinations of `count` random pictures and texts."""
    images, texts = (normalise(rows) for rows in estimator.encode_noise(count, np.random.default_rng(seed)))
    cosines = np.clip(images.astype(np.float64) @ texts.astype(np.float64).T, -1, 1)
    rng = np.random.default_rng(seed)
    means = []
    for _ in range(RESAMPLES):
        rows, columns = rng.integers(0, count, count), rng.integers(0, count, count)
        means.append(cosines[rows][:, columns].mean())
    return Beta(
        float(cosines.mean()), "random_inputs", "", float(cosines.std()), cosines.size, seed, _interval(np.array(means))
    )


def beta_of_intersection(pairs: PairSample, seed: int = 0) -> Beta:
    """Find the cosine at which right and shuffled pairs are equally dense."""
    cut = intersection(pairs.given, pairs.mismatched, seed, pairs.calibration)
    value, spread = float(np.clip(cut.beta, -1, 1)), cut.beta_sd
    interval = (max(-1.0, value - 1.96 * spread), min(1.0, value + 1.96 * spread))
    return Beta(value, "intersection", cut.reason, spread, len(pairs.given), seed, interval)


def beta_of_shuffled(pairs: PairSample, seed: int = 0) -> Beta:
    """Compute the mean cosine of shuffled pairs: the middle of the noise, not the paper's β."""
    rng, values = np.random.default_rng(seed), pairs.mismatched
    means = np.array([rng.choice(values, len(values)).mean() for _ in range(RESAMPLES)])
    reason = "the middle of the noise, not the paper's quantity"
    return Beta(float(values.mean()), "shuffled_mean", reason, float(values.std()), len(values), seed, _interval(means))


def sample_pairs(images: Floats, texts: Floats, rng: np.random.Generator, count: int = PAIRS) -> PairSample:
    """Sample cosines of up to `count` given pairs and about four times as many mismatched pairs; invalid rows are left out."""
    images, texts = normalise(images), normalise(texts)
    if images.shape != texts.shape:
        raise ConfigError.of("texts", texts.shape, f"do not pair with images {images.shape}; give (N, d) for both")
    valid = np.flatnonzero(images.any(axis=1) & texts.any(axis=1))
    chosen = np.sort(rng.choice(valid, min(count, len(valid)), replace=False))
    images, texts = images[chosen], texts[chosen]
    rows = np.arange(len(chosen))
    given = paired_cosines(images, texts, rows, rows)
    rows, partners = mismatch_pairs(images, texts, rng)
    return PairSample(given, paired_cosines(images, texts, rows, partners))


def mismatch_pairs(images: Floats, texts: Floats, rng: np.random.Generator, rounds: int = 4) -> tuple[Index, Index]:
    """Combine pictures with other captions by `rounds` derangements of all rows: row numbers (M,) of both.

    Leaves out combinations in which the picture or the caption is the same vector as in the given pair.
    """
    count = len(images)
    order = rng.permutation(count)
    rows, partners = [], []
    for shift in rng.choice(np.arange(1, count), min(rounds, count - 1), replace=False) if count > 1 else []:
        partner = np.empty(count, np.int64)
        partner[order] = np.roll(order, shift)
        differs = (texts[partner] != texts).any(axis=1) & (images[partner] != images).any(axis=1)
        rows.append(np.flatnonzero(differs))
        partners.append(partner[differs])
    empty = np.zeros(0, np.int64)
    return (np.concatenate(rows), np.concatenate(partners)) if rows else (empty, empty)


def _interval(values: Floats) -> tuple[float, float]:
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def chance_within(limit: float, dimensions: int) -> float:
    """Compute P(|cos| <= limit) of two random directions in d = `dimensions` >= 2: I(limit²; 1/2, (d - 1)/2), exact.

    >>> round(chance_within(0.1, 1024), 7)
    0.9986526
    """
    return float(scipy.special.betainc(0.5, (dimensions - 1) / 2, limit * limit))
