"""Make wrong labels on purpose: symmetric, asymmetric, instance-dependent, and by posterior (`pmd`, PLC, Zhang et al. 2021)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system.array_types import Float64, Index

from .protocols import check_rate, count_chosen

ROWS_AT_ONCE = 16_384  # with 1,000 classes the float64 scores take 131 MB


@dataclass(frozen=True, eq=False)
class LabelNoise:
    """The labels after the noise, and what changed.

    labels: (N,) int64.  noisy: (N,) bool, true where the label differs from the true one.
    transitions: (C, C) int64, number of samples by true class (row) and label after the noise (column).
    """

    labels: NDArray[np.int64]
    noisy: NDArray[np.bool_]
    transitions: NDArray[np.int64]

    @property
    def rate(self) -> float:
        """The realised rate."""
        return float(self.noisy.mean()) if len(self.noisy) else 0.0

    @classmethod
    def between(cls, true: NDArray[np.int64], given: NDArray[np.int64], classes: int) -> "LabelNoise":
        """Compute the noise that turned the true labels into the given ones.

        >>> LabelNoise.between(np.array([0, 0, 1]), np.array([0, 1, 1]), 2).transitions.tolist()
        [[1, 1], [0, 1]]
        """
        counts = np.bincount(true * classes + given, minlength=classes * classes).reshape(classes, classes)
        return cls(labels=given, noisy=true != given, transitions=counts.astype(np.int64))


def symmetric(
    labels: ArrayLike, classes: int, rate: float, rng: np.random.Generator, inclusive: bool = False
) -> LabelNoise:
    """Make symmetric noise: every class is mistaken for every other class equally often (TANGO supplement).

    By default each label changes with probability `rate`, to one of the C - 1 others: the expected rate is `rate`.
    `inclusive` is the DivideMix variant: int(rate N) labels are drawn anew from all C classes, so that some keep
    theirs and the expected rate is rate (C - 1) / C, e.g. .396 instead of .4 for 100 classes.

    >>> labels = np.arange(10_000) % 100
    >>> round(symmetric(labels, 100, 0.4, np.random.default_rng(0)).rate, 2)
    0.4
    >>> symmetric(labels, 100, 1.0, np.random.default_rng(0), inclusive=True).rate < 1
    True
    """
    true = check_labels(labels, classes)
    if classes < 2:
        raise ConfigError.of("classes", classes, "leaves no other class to move to; use 2 or more")
    given = true.copy()
    if inclusive:
        chosen = rng.choice(len(true), size=count_chosen(rate, len(true)), replace=False)
        given[chosen] = rng.integers(classes, size=len(chosen))
    else:
        flip = rng.random(len(true)) < check_rate(rate)
        given[flip] = (true[flip] + rng.integers(1, classes, size=int(flip.sum()))) % classes
    return LabelNoise.between(true, given, classes)


def asymmetric(labels: ArrayLike, class_map: ArrayLike, rate: float, rng: np.random.Generator) -> LabelNoise:
    """Make asymmetric noise: each label y becomes class_map[y] with probability `rate` (TANGO supplement).

    class_map: (C,) int64, for example `CIFAR100_MAP`. A class that maps to itself stays clean: with `CIFAR10_MAP` five
    of the ten do, so the rate over all samples is half of `rate`.

    >>> asymmetric([0, 1, 2, 2], [1, 2, 0], 1.0, np.random.default_rng(0)).labels.tolist()
    [1, 2, 0, 0]
    """
    target = np.asarray(class_map)
    if target.ndim != 1 or not len(target) or not np.issubdtype(target.dtype, np.integer):
        problem = f"is the shape of {target.dtype} numbers; give one class id for each class, such as [1, 2, 0]"
        raise ConfigError.of("class_map", target.shape, problem)
    classes = len(target)
    if target.min() < 0 or target.max() >= classes:
        wrong = int(np.flatnonzero((target < 0) | (target >= classes))[0])
        raise ConfigError.of(
            "class_map", int(target[wrong]), f"is no class for class {wrong} to become; use 0 to {classes - 1}"
        )
    true = check_labels(labels, classes)
    flip = rng.random(len(true)) < check_rate(rate)
    return LabelNoise.between(true, np.where(flip, target.astype(np.int64)[true], true), classes)


def instance_dependent(
    labels: ArrayLike,
    features: ArrayLike,
    classes: int,
    rate: float,
    rng: np.random.Generator,
    temperature: float | None = None,
    deviation: float = 0.1,
) -> LabelNoise:
    """Make instance-dependent noise: wrong labels that follow from features (Xia et al. 2020, part-dependent label noise).

    Sample i flips with probability q_i ~ Normal(rate, deviation) cut to [0, 1], to a class drawn from
    softmax(x_i W_y / temperature) over the other classes, with one Gaussian matrix W_y (S, C) for each true class y.
    features: (N, S). The default temperature is their root-mean-square length, so that scores are about Normal(0, 1)
    whatever the scale; temperature=1 on raw 0..255 pixels, the published setting, makes one target a certainty.
    Cutting to [0, 1] pulls the mean of q towards 1/2 near the ends (rate .1: .129); at rates 0 and 1, q is the rate.

    >>> rng = np.random.default_rng(0)
    >>> noise = instance_dependent(np.arange(5_000) % 10, rng.normal(size=(5_000, 8)), 10, 0.4, rng)
    >>> round(noise.rate, 1)
    0.4
    """
    true = check_labels(labels, classes)
    rows = np.asarray(features)
    if rows.ndim != 2 or len(rows) != len(true):
        raise ConfigError.of("features", rows.shape, f"is the shape for {len(true)} labels; give a row for each")
    if classes < 2:
        raise ConfigError.of("classes", classes, "leaves no other class to move to; use 2 or more")
    if not 0 <= deviation <= 1:
        raise ConfigError.of("deviation", deviation, "does not lie between 0 and 1; use 0.1")
    length = _root_mean_square_length(rows)
    if temperature is None:
        temperature = length
    if not (np.isfinite(temperature) and temperature > 0):
        raise ConfigError.of("temperature", temperature, "is not above 0; use 1.0")
    flip = rng.random(len(true)) < _truncated_normal(check_rate(rate), deviation, len(true), rng)
    given = true.copy()
    for label in np.unique(true):
        matrix = rng.standard_normal((rows.shape[1], classes))
        members = np.flatnonzero(flip & (true == label))
        for start in range(0, len(members), ROWS_AT_ONCE):
            part = members[start : start + ROWS_AT_ONCE]
            scores = rows[part].astype(np.float64) @ matrix / temperature
            scores[:, label] = -np.inf
            given[part] = _draw(scores, rng)
    return LabelNoise.between(true, given, classes)


def check_labels(labels: ArrayLike, classes: int) -> NDArray[np.int64]:
    """Check that labels lie in 0..classes-1, (N,) int64; `classes` is never guessed: the last class may be absent."""
    array = np.asarray(labels)
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or not array.size):
        problem = f"is the shape of {array.dtype} numbers; give one class id for each sample, such as [0, 2, 1]"
        raise ConfigError.of("labels", array.shape, problem)
    if array.size and (array.min() < 0 or array.max() >= classes):
        wrong = array[(array < 0) | (array >= classes)][0]
        raise ConfigError.of("labels", int(wrong), f"is no class id; with {classes} classes use 0 to {classes - 1}")
    return array.astype(np.int64)


def _root_mean_square_length(rows: NDArray[np.generic]) -> float:
    """Compute sqrt(mean_i |x_i|^2) without a float64 copy of all rows; 1 if there are no rows or all are zeros."""
    total = 0.0
    for start in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[start : start + ROWS_AT_ONCE].astype(np.float64)
        total += float(np.einsum("ij,ij->", part, part))
    if not np.isfinite(total):
        raise ConfigError("features are not all finite; leave out the samples that could not be encoded", "features")
    return float(np.sqrt(total / len(rows))) if total else 1.0


def _truncated_normal(mean: float, deviation: float, size: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw (size,) float64 in [0, 1] from a normal distribution; values outside are drawn again."""
    if mean in (0.0, 1.0) or deviation == 0:
        return np.full(size, mean)
    values = rng.normal(mean, deviation, size)
    outside = np.flatnonzero((values < 0) | (values > 1))
    while len(outside):
        values[outside] = rng.normal(mean, deviation, len(outside))
        outside = outside[(values[outside] < 0) | (values[outside] > 1)]
    return values


def _draw(scores: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw one column for each row, (n,) int64, with probability softmax(row); a score of -inf is never drawn."""
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    cumulative = weights.cumsum(axis=1)
    threshold = rng.random(len(scores)) * cumulative[:, -1]
    columns: NDArray[np.int64] = (cumulative <= threshold[:, None]).sum(axis=1, dtype=np.int64)
    return columns


# Probability of the runner-up as a function of the margin D between the two most likely classes.
PMD_KINDS: Mapping[str, Callable[[Float64], Float64]] = {
    "I": lambda margin: 0.5 - margin**2 / 2,
    "II": lambda margin: 1 - margin**3,
    "III": lambda margin: 1 - (margin + margin**2 + margin**3) / 3,
}


def pmd(
    labels: ArrayLike, posteriors: ArrayLike, kind: str, rng: np.random.Generator, factor: float = 1.0
) -> LabelNoise:
    """Replace each label by u, the most likely class of the posterior, or by s, the second: P(s) is `pmd_flip_probability`.

    posteriors: (N, C), rows that sum to 1. `noisy` compares with `labels`, so a u that is not the label counts as noise too.

    >>> pmd([0, 1], [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], "II", np.random.default_rng(0)).labels.tolist()
    [0, 1]
    """
    eta = _check_posteriors(posteriors)
    true = check_labels(labels, eta.shape[1])
    if len(true) != len(eta):
        raise ConfigError.of("posteriors", eta.shape, f"is the shape for {len(true)} labels; give a row for each")
    first, second, margin = _top_two(eta)
    flip = rng.random(len(true)) < _flip_probability(margin, kind, factor)
    return LabelNoise.between(true, np.where(flip, second, first), eta.shape[1])


def pmd_flip_probability(posteriors: ArrayLike, kind: str, factor: float = 1.0) -> Float64:
    """Compute (N,) float64 P(s) = 1 - min(1, (1 - f) / factor), with D = eta_u - eta_s and, by kind,

    I: f = 1/2 - D^2 / 2;  II: f = 1 - D^3;  III: f = 1 - (D + D^2 + D^3) / 3   (PLC, PMD noise types I-III).
    factor 1 is the paper's formula; above 1 there is more noise (the published generator has 1.2), below 1 less.

    >>> pmd_flip_probability([[0.75, 0.25, 0.0]], "I").tolist()
    [0.375]
    """
    return _flip_probability(_top_two(_check_posteriors(posteriors))[2], kind, factor)


def pmd_factor(posteriors: ArrayLike, kind: str, rate: float) -> float:
    """Find the factor for which the mean of `pmd_flip_probability` is `rate`.

    >>> factor = pmd_factor([[0.75, 0.25], [0.5, 0.5]], "I", 0.5)
    >>> round(float(pmd_flip_probability([[0.75, 0.25], [0.5, 0.5]], "I", factor).mean()), 9)
    0.5
    """
    eta = _check_posteriors(posteriors)
    if not len(eta):
        raise ConfigError.of("posteriors", eta.shape, "has no rows to measure a factor on; give 1,000")
    if not 0 < check_rate(rate) < 1:
        raise ConfigError.of("rate", rate, "is not reached by any factor; use a rate between 0 and 1, such as 0.35")
    kept = np.sort(1 - _law(kind)(_top_two(eta)[2]))
    kept = kept[kept > 0]
    wanted = len(eta) * (1 - rate)
    if wanted > len(kept):
        always = len(eta) - len(kept)
        problem = f"is too low: {always} of {len(eta)} posteriors have no margin and always flip in kind {kind}"
        raise ConfigError.of("rate", rate, f"{problem}; use a rate above {always / len(eta):.3g}, or kind I")
    # Solves sum min(1, kept / factor) = wanted. The sum falls with the factor and is known at each kept value; between
    # two of them only the m smaller terms depend on the factor: sum(smaller) / factor + (number of larger) = wanted.
    sums, larger = np.cumsum(kept), np.arange(len(kept) - 1, -1, -1)
    last = int(np.count_nonzero(sums / kept + larger >= wanted)) - 1
    return float(sums[last] / (wanted - larger[last]))


def _law(kind: str) -> Callable[[Float64], Float64]:
    if kind not in PMD_KINDS:
        raise ConfigError.of("kind", kind, "is no kind of PMD noise; use I, II or III")
    return PMD_KINDS[kind]


def _flip_probability(margin: Float64, kind: str, factor: float) -> Float64:
    if not (np.isfinite(factor) and factor > 0):
        raise ConfigError.of("factor", factor, "is not above 0; use 1.2")
    flip: Float64 = 1 - np.minimum(1.0, (1 - _law(kind)(margin)) / factor)
    return flip


def _top_two(eta: Float64) -> tuple[Index, Index, Float64]:
    """Return the most likely class, the second, and the margin between them; ties go to the lower id."""
    rows = np.arange(len(eta))
    first = eta.argmax(axis=1)
    others = eta.copy()
    others[rows, first] = -1.0
    second = others.argmax(axis=1)
    return first, second, eta[rows, first] - eta[rows, second]


def _check_posteriors(posteriors: ArrayLike) -> Float64:
    """Check posteriors (N, C), and divide each row by its sum, which may differ from 1 by float16 rounding."""
    eta = np.asarray(posteriors, dtype=np.float64)
    if eta.ndim != 2 or eta.shape[1] < 2:
        raise ConfigError.of("posteriors", eta.shape, "is not the shape (samples, classes) with 2 classes or more")
    totals = eta.sum(axis=1)
    wrong = np.flatnonzero(~((eta >= 0).all(axis=1) & (np.abs(totals - 1) <= 0.01)))
    if len(wrong):
        facts = f"sums to {totals[wrong[0]]:g}, its least is {eta[wrong[0]].min():g}"
        raise ConfigError(f"posteriors: row {wrong[0]} {facts}; give probabilities, such as a softmax's", "posteriors")
    normalised: Float64 = eta / totals[:, None]
    return normalised
