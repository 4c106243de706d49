"""Wrong labels made on purpose: symmetric, asymmetric and instance-dependent noise. By posterior: `pmd`."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from noisegate.pipeline.errors import ConfigError

from .protocols import bad_setting, check_rate, count_chosen

ROWS_AT_ONCE = 16_384  # with 1,000 classes the float64 scores take 131 MB


@dataclass(frozen=True, eq=False)
class LabelNoise:
    """The labels after the noise, and what changed.

    labels: (N,) int64.  noisy: (N,) bool, true where the label differs from the true one.
    transitions: (C, C) int64, how many samples of true class row got the label column.
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
        """The noise by which the true labels became the given ones.

        >>> LabelNoise.between(np.array([0, 0, 1]), np.array([0, 1, 1]), 2).transitions.tolist()
        [[1, 1], [0, 1]]
        """
        counts = np.bincount(true * classes + given, minlength=classes * classes).reshape(classes, classes)
        return cls(labels=given, noisy=true != given, transitions=counts.astype(np.int64))


def symmetric(
    labels: ArrayLike, classes: int, rate: float, rng: np.random.Generator, inclusive: bool = False
) -> LabelNoise:
    """Every class is mistaken for every other alike (TANGO supplement, symmetric noise).

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
        raise bad_setting("classes", classes, "symmetric noise needs another class to move to; give classes=2 or more")
    given = true.copy()
    if inclusive:
        chosen = rng.choice(len(true), size=count_chosen(rate, len(true)), replace=False)
        given[chosen] = rng.integers(classes, size=len(chosen))
    else:
        flip = rng.random(len(true)) < check_rate(rate)
        given[flip] = (true[flip] + rng.integers(1, classes, size=int(flip.sum()))) % classes
    return LabelNoise.between(true, given, classes)


def asymmetric(labels: ArrayLike, class_map: ArrayLike, rate: float, rng: np.random.Generator) -> LabelNoise:
    """Each label y becomes class_map[y] with probability `rate` (TANGO supplement, asymmetric noise).

    class_map: (C,) int64, for example `CIFAR100_MAP`. A class that maps to itself stays clean: with `CIFAR10_MAP` five
    of the ten do, so the rate over all samples is half of `rate`.

    >>> asymmetric([0, 1, 2, 2], [1, 2, 0], 1.0, np.random.default_rng(0)).labels.tolist()
    [1, 2, 0, 0]
    """
    target = np.asarray(class_map)
    if target.ndim != 1 or not len(target) or not np.issubdtype(target.dtype, np.integer):
        raise bad_setting(
            "class_map",
            target.shape,
            f"an array of shape {target.shape} and type {target.dtype} was given; "
            "give one class id for each class, for example [1, 2, 0]",
        )
    classes = len(target)
    if target.min() < 0 or target.max() >= classes:
        wrong = int(np.flatnonzero((target < 0) | (target >= classes))[0])
        raise ConfigError(
            f"class_map: class {wrong} maps to {target[wrong]}; with {classes} classes give 0 to {classes - 1}",
            "class_map",
            int(target[wrong]),
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
    """Wrong labels that follow from the sample itself (Xia et al. 2020, part-dependent label noise, generator).

    Sample i flips with probability q_i ~ Normal(rate, deviation) cut to [0, 1], to a class drawn from
    softmax(x_i W_y / temperature) over the others, with one Gaussian matrix W_y (S, C) for each true class y.
    features: (N, S). The default temperature is their root-mean-square length, so that scores are about Normal(0, 1)
    whatever the scale; temperature=1 on raw 0..255 pixels, the published setting, makes one target a certainty.
    The cut pulls the mean of q towards 1/2 near the ends (rate .1: .129); at 0 and 1 themselves q is the rate.

    >>> rng = np.random.default_rng(0)
    >>> noise = instance_dependent(np.arange(5_000) % 10, rng.normal(size=(5_000, 8)), 10, 0.4, rng)
    >>> round(noise.rate, 1)
    0.4
    """
    true = check_labels(labels, classes)
    rows = np.asarray(features)
    if rows.ndim != 2 or len(rows) != len(true):
        raise bad_setting(
            "features",
            rows.shape,
            f"an array of shape {rows.shape} was given for {len(true)} labels; give one row for each label",
        )
    if classes < 2:
        raise bad_setting("classes", classes, "label noise needs another class to move to; give classes=2 or more")
    if not 0 <= deviation <= 1:
        raise bad_setting("deviation", deviation, "give a number between 0 and 1, for example deviation=0.1")
    length = _root_mean_square_length(rows)
    if temperature is None:
        temperature = length
    if not (np.isfinite(temperature) and temperature > 0):
        raise bad_setting("temperature", temperature, "give a number above 0, for example temperature=1.0")
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
    """(N,) int64 class ids, checked to lie below `classes`, which is never guessed: the last class may be absent."""
    array = np.asarray(labels)
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or not array.size):
        raise bad_setting(
            "labels",
            array.shape,
            f"an array of shape {array.shape} and type {array.dtype} was given; "
            "give one class id for each sample, for example [0, 2, 1]",
        )
    if array.size and (array.min() < 0 or array.max() >= classes):
        wrong = array[(array < 0) | (array >= classes)][0]
        raise ConfigError(
            f"labels: {wrong} is no class id; with classes={classes} give 0 to {classes - 1}", "labels", int(wrong)
        )
    return array.astype(np.int64)


def _root_mean_square_length(rows: NDArray[np.generic]) -> float:
    """sqrt(mean_i |x_i|^2) without a float64 copy of all rows; 1 where there is nothing to measure."""
    total = 0.0
    for start in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[start : start + ROWS_AT_ONCE].astype(np.float64)
        total += float(np.einsum("ij,ij->", part, part))
    if not np.isfinite(total):
        raise bad_setting("features", None, "some are not finite; leave out the samples that could not be encoded")
    return float(np.sqrt(total / len(rows))) if total else 1.0


def _truncated_normal(mean: float, deviation: float, size: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """(size,) float64 in [0, 1]; values outside are drawn again."""
    if mean in (0.0, 1.0) or deviation == 0:
        return np.full(size, mean)
    values = rng.normal(mean, deviation, size)
    outside = np.flatnonzero((values < 0) | (values > 1))
    while len(outside):
        values[outside] = rng.normal(mean, deviation, len(outside))
        outside = outside[(values[outside] < 0) | (values[outside] > 1)]
    return values


def _draw(scores: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    """(n,) int64: one column for each row, with probability softmax(row); a score of -inf is never drawn."""
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    cumulative = weights.cumsum(axis=1)
    threshold = rng.random(len(scores)) * cumulative[:, -1]
    columns: NDArray[np.int64] = (cumulative <= threshold[:, None]).sum(axis=1, dtype=np.int64)
    return columns
