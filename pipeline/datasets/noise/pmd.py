"""Polynomial-margin-diminishing label noise: the surer a posterior, the rarer the mistake (PLC, Zhang et al. 2021)."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from noisegate.pipeline.system.array_types import Float64, Index

from .labels import LabelNoise, check_labels
from .protocols import bad_setting, check_rate

# Probability of the runner-up as a function of the margin D between the two most likely classes.
PMD_KINDS: Mapping[str, Callable[[Float64], Float64]] = MappingProxyType(
    {
        "I": lambda margin: 0.5 - margin**2 / 2,
        "II": lambda margin: 1 - margin**3,
        "III": lambda margin: 1 - (margin + margin**2 + margin**3) / 3,
    }
)


def pmd(
    labels: ArrayLike, posteriors: ArrayLike, kind: str, rng: np.random.Generator, factor: float = 1.0
) -> LabelNoise:
    """The label becomes u, the most likely class of the posterior, or s, the second: P(s) is `pmd_flip_probability`.

    posteriors: (N, C), rows that sum to 1. `noisy` compares with `labels`, so a posterior that is mistaken about its
    sample (u is not the label) makes noise of its own.

    >>> pmd([0, 1], [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], "II", np.random.default_rng(0)).labels.tolist()
    [0, 1]
    """
    eta = _check_posteriors(posteriors)
    true = check_labels(labels, eta.shape[1])
    if len(true) != len(eta):
        raise bad_setting(
            "posteriors", eta.shape, f"{len(eta)} rows were given for {len(true)} labels; give one row for each label"
        )
    first, second, margin = _top_two(eta)
    flip = rng.random(len(true)) < _flip_probability(margin, kind, factor)
    return LabelNoise.between(true, np.where(flip, second, first), eta.shape[1])


def pmd_flip_probability(posteriors: ArrayLike, kind: str, factor: float = 1.0) -> Float64:
    """(N,) float64: P(s) = 1 - min(1, (1 - f) / factor), with D = eta_u - eta_s and, by kind,

    I: f = 1/2 - D^2 / 2;  II: f = 1 - D^3;  III: f = 1 - (D + D^2 + D^3) / 3   (PLC, PMD noise types I-III).
    factor 1 is the law itself; above 1 there is more noise (the published generator has 1.2), below 1 less.

    >>> pmd_flip_probability([[0.75, 0.25, 0.0]], "I").tolist()
    [0.375]
    """
    return _flip_probability(_top_two(_check_posteriors(posteriors))[2], kind, factor)


def pmd_factor(posteriors: ArrayLike, kind: str, rate: float) -> float:
    """The factor with which the mean of `pmd_flip_probability` is `rate`.

    >>> factor = pmd_factor([[0.75, 0.25], [0.5, 0.5]], "I", 0.5)
    >>> round(float(pmd_flip_probability([[0.75, 0.25], [0.5, 0.5]], "I", factor).mean()), 9)
    0.5
    """
    eta = _check_posteriors(posteriors)
    if not len(eta):
        raise bad_setting(
            "posteriors", eta.shape, "no rows were given; a factor is measured on data, for example on 1,000 rows"
        )
    if not 0 < check_rate(rate) < 1:
        raise bad_setting("rate", rate, "no factor gives exactly this; ask for a rate inside, for example rate=0.35")
    kept = np.sort(1 - _law(kind)(_top_two(eta)[2]))
    kept = kept[kept > 0]
    wanted = len(eta) * (1 - rate)
    if wanted > len(kept):
        always = len(eta) - len(kept)
        raise bad_setting(
            "rate",
            rate,
            f"{always} of {len(eta)} posteriors have no margin and always flip in kind {kind}; "
            f"ask for a rate above {always / len(eta):.3g}, or use kind='I'",
        )
    # Solves sum min(1, kept / factor) = wanted. The sum falls with the factor and is known at each kept value; between
    # two of them only the m smaller terms depend on the factor: sum(smaller) / factor + (number of larger) = wanted.
    sums, larger = np.cumsum(kept), np.arange(len(kept) - 1, -1, -1)
    last = int(np.count_nonzero(sums / kept + larger >= wanted)) - 1
    return float(sums[last] / (wanted - larger[last]))


def _law(kind: str) -> Callable[[Float64], Float64]:
    if kind not in PMD_KINDS:
        raise bad_setting("kind", kind, "PMD noise comes in kinds I, II and III; give for example kind='I'")
    return PMD_KINDS[kind]


def _flip_probability(margin: Float64, kind: str, factor: float) -> Float64:
    if not (np.isfinite(factor) and factor > 0):
        raise bad_setting("factor", factor, "give a number above 0, for example factor=1.2")
    flip: Float64 = 1 - np.minimum(1.0, (1 - _law(kind)(margin)) / factor)
    return flip


def _top_two(eta: Float64) -> tuple[Index, Index, Float64]:
    """The most likely class, the second, and the margin between them; of equals the lower id comes first."""
    rows = np.arange(len(eta))
    first = eta.argmax(axis=1)
    others = eta.copy()
    others[rows, first] = -1.0
    second = others.argmax(axis=1)
    return first, second, eta[rows, first] - eta[rows, second]


def _check_posteriors(posteriors: ArrayLike) -> Float64:
    """(N, C) float64, each row divided by its sum, which may be off by what float16 leaves."""
    eta = np.asarray(posteriors, dtype=np.float64)
    if eta.ndim != 2 or eta.shape[1] < 2:
        raise bad_setting(
            "posteriors", eta.shape, f"shape {eta.shape} was given; give (samples, classes) with 2 classes or more"
        )
    totals = eta.sum(axis=1)
    wrong = np.flatnonzero(~((eta >= 0).all(axis=1) & (np.abs(totals - 1) <= 0.01)))
    if len(wrong):
        raise bad_setting(
            "posteriors",
            None,
            f"row {wrong[0]} is no distribution (sum {totals[wrong[0]]:g}, least {eta[wrong[0]].min():g}); "
            "give probabilities that sum to 1, for example a softmax",
        )
    normalised: Float64 = eta / totals[:, None]
    return normalised
