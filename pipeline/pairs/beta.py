"""β, the cosine an estimator gives to things that have nothing to do with one another (OSA Eq. 4).

Random inputs and shuffled real pairs give different numbers. Where embeddings live in a cone (CLIP: shuffled pairs about
.15, random inputs .215, matched pairs .30) random inputs lie between the two, and are the paper's β. Where there is no
cone they fall among the shuffled pairs and reject only some of the noise; the crossing of the two densities does better.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators.base import Estimator, normalise, paired_cosines
from noisegate.pipeline.system.array_types import Floats, Index

from .calibration import LEAST, PairCalibration, calibrate_pairs, intersection

__all__ = ["MODES", "Beta", "PairSample", "estimate_beta", "mismatched_pairs"]

MODES = {
    "auto": "random_inputs where it lies clearly between shuffled and given pairs, else intersection",
    "random_inputs": "mean cosine of random pictures and random texts: the paper's quantity, needs the model",
    "intersection": "where right and shuffled pairs are equally dense: needs only the data's embeddings",
    "shuffled_mean": "mean cosine of shuffled pairs: for diagnosis, NOT the paper's quantity, keeps half of the noise",
    "fixed:VALUE": "a number of your own, such as fixed:0.215 (CLIP ViT-B/32) or fixed:0.087 (ALIGN)",
}
NOISE_INPUTS = 256  # pictures and texts; all 65,536 combinations count, as in OSA's code
PAIRS = 10_000
RESAMPLES = 100


@dataclass(frozen=True)
class Beta:
    """A value of β with how it was found. `std` is the spread of the cosines behind it, `interval` 95 % by bootstrap."""

    value: float
    mode: str
    reason: str = ""
    std: float | None = None
    count: int = 0
    seed: int = 0
    interval: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not -1 <= self.value <= 1:
            raise ConfigError(f"beta {self.value} is not a cosine; use one between -1 and 1, such as 0.215")

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
    """Cosines of the given pairs (N,) and of deliberately mismatched ones (M,) of the same data."""

    given: Floats
    mismatched: Floats

    @cached_property
    def calibration(self) -> PairCalibration | None:
        """What a cosine means on this data; None where there are too few pairs to tell."""
        if min(len(self.given), len(self.mismatched)) < LEAST:
            return None
        return calibrate_pairs(self.given, self.mismatched)


def check_mode(mode: str) -> str:
    """The mode as given, or a ConfigError that lists the ones there are."""
    if mode.startswith("fixed:"):
        try:
            Beta(float(mode.removeprefix("fixed:")), "fixed")
        except ValueError as error:
            raise ConfigError(f"beta {mode!r}: what follows fixed: must be a number, such as fixed:0.215") from error
    elif mode not in MODES or mode == "fixed:VALUE":
        raise ConfigError(f"beta {mode!r} is unknown; use {', '.join(MODES)} (such as fixed:0.215)")
    return mode


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
    """β by one of `MODES`, with its spread, sample size, seed and a 95 % interval.

    `images` and `texts` are embeddings (N, d) of the given pairs, row by row; `pairs` may bring their cosines ready made.
    `random_inputs` may bring the model's own β from a cache. A mode that lacks what it needs raises ConfigError.

    >>> estimate_beta(mode="fixed:0.215").value
    0.215
    """
    check_mode(mode)
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
            raise ConfigError("beta random_inputs needs the model; use intersection for embeddings alone")
        return random_inputs()
    if mode in ("intersection", "shuffled_mean"):
        if pairs is None:
            raise ConfigError(f"beta {mode} needs data; give shards, or use random_inputs for a model alone")
        if len(pairs.mismatched) < 2:
            if len(pairs.given) > 2:
                raise _all_alike(mode, pairs, 2)
            raise ConfigError(
                f"beta {mode} needs more than {len(pairs.given)} good pairs; use fixed:0.215, or random_inputs"
            )
        return beta_of_intersection(pairs, seed) if mode == "intersection" else beta_of_shuffled(pairs, seed)
    return _auto(pairs, random_inputs, seed)


def _auto(pairs: PairSample | None, random_inputs: Callable[[], Beta] | None, seed: int) -> Beta:
    if random_inputs is None and pairs is None:
        raise ConfigError("beta auto needs a model or data; give one, or a number such as fixed:0.215")
    if pairs is None or pairs.calibration is None:
        if random_inputs is None:
            if pairs is not None and len(pairs.given) >= LEAST:
                raise _all_alike("auto", pairs, LEAST)
            raise ConfigError(f"beta auto needs at least {LEAST} pairs when there is no model; use fixed:0.215")
        return _because(random_inputs(), "too few pairs to look at the data")
    if random_inputs is None:
        return _because(beta_of_intersection(pairs, seed), "embeddings alone")
    random = random_inputs()
    low, spread, high = np.mean(pairs.mismatched), np.std(pairs.mismatched), np.quantile(pairs.given, 0.9)
    where = f"random inputs {random.value:.3f}, shuffled pairs {low:.3f} ± {spread:.3f}, best given pairs {high:.3f}"
    if low + spread < random.value < high:
        return _because(random, f"the model has a cone: {where}")
    return _because(beta_of_intersection(pairs, seed), f"no cone between shuffled and given pairs: {where}")


def _all_alike(mode: str, pairs: PairSample, least: int) -> ConfigError:
    return ConfigError(
        f"beta {mode}: of {len(pairs.given):,} pairs {len(pairs.mismatched):,} mismatched ones can be made, and {least} "
        "are needed; too few pairs differ from one another in both picture and text; use fixed:0.215"
    )


def _because(beta: Beta, reason: str) -> Beta:
    return Beta(**{**vars(beta), "reason": f"{reason}; {beta.reason}" if beta.reason else reason})


def beta_of_random_inputs(estimator: Estimator, count: int = NOISE_INPUTS, seed: int = 0) -> Beta:
    """Mean cosine over all combinations of `count` random pictures and texts."""
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
    """The cosine at which right and shuffled pairs are equally dense."""
    found = intersection(pairs.given, pairs.mismatched, seed, pairs.calibration)
    value, spread = float(np.clip(found.beta, -1, 1)), found.beta_sd
    interval = (max(-1.0, value - 1.96 * spread), min(1.0, value + 1.96 * spread))
    return Beta(value, "intersection", found.reason, spread, len(pairs.given), seed, interval)


def beta_of_shuffled(pairs: PairSample, seed: int = 0) -> Beta:
    """Mean cosine of shuffled pairs: the middle of the noise, not the paper's β."""
    rng, values = np.random.default_rng(seed), pairs.mismatched
    means = np.array([rng.choice(values, len(values)).mean() for _ in range(RESAMPLES)])
    reason = "the middle of the noise, not the paper's quantity"
    return Beta(float(values.mean()), "shuffled_mean", reason, float(values.std()), len(values), seed, _interval(means))


def sample_pairs(images: Floats, texts: Floats, rng: np.random.Generator, count: int = PAIRS) -> PairSample:
    """Cosines of up to `count` given pairs and of about four times as many mismatched ones; invalid rows are left out."""
    images, texts = normalise(images), normalise(texts)
    if images.shape != texts.shape:
        raise ConfigError(f"images {images.shape} and texts {texts.shape} must be paired rows of one space")
    valid = np.flatnonzero(images.any(axis=1) & texts.any(axis=1))
    chosen = np.sort(rng.choice(valid, min(count, len(valid)), replace=False))
    images, texts = images[chosen], texts[chosen]
    everyone = np.arange(len(chosen))
    given = paired_cosines(images, texts, everyone, everyone)
    rows, partners = mismatched_pairs(images, texts, rng)
    return PairSample(given, paired_cosines(images, texts, rows, partners))


def mismatched_pairs(images: Floats, texts: Floats, rng: np.random.Generator, rounds: int = 4) -> tuple[Index, Index]:
    """Row numbers (M,), (M,) of pictures and captions that do not belong together: `rounds` derangements of all rows.

    Combinations whose pictures or captions are the same vector as those of the given pair are left out.
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
