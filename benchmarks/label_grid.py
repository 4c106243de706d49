"""Drawn classes with every kind of label noise, with and without text anchors: what `benchmarks.labels --grid` judges.

Every case draws its settings and its data from its own seed: Gaussian classes of one or three modes, even or uneven in
size, from hardly to well apart, noise of one kind and rate, and text anchors that are good, weak, those of another class, or
absent.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from noisegate.pipeline.datasets.noise.labels import instance_dependent
from noisegate.pipeline.labels.anchors import Anchors
from noisegate.pipeline.system.array_types import Float32, Index, Mask

FIRST_SEED = {"chosen": 1_000_000, "unseen": 10_000_000}
EXCHANGED = 0.625  # share of the next name, next to the right one, from which names are exchanged
ROWS, ROWS_SHARE = (50, 200, 1000, 4000), (0.1, 0.45, 0.4, 0.05)
WIDTHS = (2, 4, 16, 64)
CLASSES = (2, 3, 10)
APART = (1.0, 2.5, 4.0, 5.5, 7.0)  # distance of class centres, in deviations within a class
KINDS = ("none", "symmetric", "pairwise", "confusion", "instance", "border")
RATES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
ANCHORS = ("absent", "absent", "good", "weak", "another's")
TEXTS = 8  # anchors per class


class Case(NamedTuple):
    """What is drawn."""

    seed: int
    rows: int
    width: int
    classes: int
    apart: float
    modes: int  # clusters of a class
    even: bool  # classes of one size
    kind: str
    rate: float
    anchors: str


def draw_case(seed: int) -> Case:
    rng = np.random.default_rng([seed, 0])
    kind = str(rng.choice(KINDS, p=(0.1, 0.18, 0.18, 0.18, 0.18, 0.18)))
    return Case(
        seed,
        rows=int(rng.choice(ROWS, p=ROWS_SHARE)),
        width=int(rng.choice(WIDTHS)),
        classes=int(rng.choice(CLASSES)),
        apart=float(rng.choice(APART)),
        modes=int(rng.choice((1, 3), p=(0.7, 0.3))),
        even=bool(rng.random() < 0.7),
        kind=kind,
        rate=0.0 if kind == "none" else float(rng.choice(RATES)),
        anchors=str(rng.choice(ANCHORS)),
    )


class Drawn(NamedTuple):
    """The data of a case."""

    features: Float32  # (N, d)
    truth: Index
    cluster: Index  # of its class
    labels: Index
    anchors: Anchors | None


def draw(case: Case) -> Drawn:
    rng = np.random.default_rng([case.seed, 1])
    share = np.full(case.classes, 1 / case.classes) if case.even else rng.dirichlet(np.full(case.classes, 3.0))
    truth = rng.choice(case.classes, case.rows, p=share).astype(np.int64)
    centres = rng.standard_normal((case.classes, case.modes, case.width)) * case.apart / np.sqrt(2 * case.width)
    mode = rng.integers(0, case.modes, case.rows)
    features = (centres[truth, mode] + rng.standard_normal((case.rows, case.width))).astype(np.float32)
    labels = mislabelled(case, truth, features, centres, rng)
    return Drawn(features, truth, mode, labels, _anchors(case, centres, rng))


def mislabelled(case: Case, truth: Index, features: Float32, centres: NDArray[Any], rng: np.random.Generator) -> Index:
    """The given labels (N,)."""
    classes, rate = case.classes, case.rate
    if case.kind == "none":
        return truth
    if case.kind == "symmetric":
        wrong = (truth + rng.integers(1, classes, case.rows)) % classes
    elif case.kind == "pairwise":
        wrong = (truth + 1) % classes
    elif case.kind == "confusion":  # to classes that are near, and more often in some classes than in others
        middle = centres.mean(axis=1)
        apart = np.linalg.norm(middle[:, None] - middle[None], axis=2)
        target = np.exp(-apart / apart[apart > 0].mean() * 2) * (1 - np.eye(classes))
        target /= target.sum(axis=1, keepdims=True)
        wrong = (rng.random(case.rows)[:, None] > target.cumsum(axis=1)[truth]).sum(axis=1).clip(max=classes - 1)
        by_class = rng.uniform(0.5, 1.5, classes)
        return np.where(rng.random(case.rows) < np.minimum(rate * by_class, 0.95)[truth], wrong, truth)
    elif case.kind == "instance":
        return instance_dependent(truth, features, classes, rate, rng).labels
    else:  # where another class is nearly as near as the true one, and to that class
        distance = (np.linalg.norm(features[:, None, None] - centres[None], axis=3) ** 2).min(axis=2)
        own = distance[np.arange(case.rows), truth]
        distance[np.arange(case.rows), truth] = np.inf
        wrong, margin = distance.argmin(axis=1), distance.min(axis=1) - own
        unlikely = np.argsort(np.argsort(margin - 4 * rng.gumbel(size=case.rows)))
        return np.where(unlikely < rate * case.rows, wrong, truth)
    return np.where(rng.random(case.rows) < rate, wrong, truth)


def _anchors(case: Case, centres: NDArray[Any], rng: np.random.Generator) -> Anchors | None:
    """Texts in the directions of a class's clusters: near them, far off them, or near the next class's."""
    if case.anchors == "absent":
        return None
    offset = {"good": 0.3, "weak": 2.0, "another's": 0.3}[case.anchors]
    labels = np.repeat(np.arange(case.classes), TEXTS)
    near = centres[labels, np.arange(len(labels)) % case.modes]
    length = np.linalg.norm(near, axis=1, keepdims=True)
    texts = near + offset * length * rng.standard_normal(near.shape) / np.sqrt(case.width)
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)
    if case.anchors == "another's":
        labels = (labels + 1) % case.classes
    return Anchors(tuple(map(str, range(case.classes))), texts.astype(np.float32), labels)


def exchanged(case: Case, data: Drawn) -> bool:
    """Whether the names of a ring of classes are exchanged in most of their labels."""
    own, others = _called(case, data, np.ones(case.rows, dtype=bool))
    wrong = others > EXCHANGED * (others + own[:, None])
    return bool(connected_components(wrong, directed=True, connection="strong")[0] < case.classes)


def _called(case: Case, data: Drawn, rows: Mask) -> tuple[NDArray[Any], NDArray[Any]]:
    """Of these rows, how many of each class have the right label (C,), and each of the others (C, C)."""
    counts = np.zeros((case.classes, case.classes))
    np.add.at(counts, (data.truth[rows], data.labels[rows]), 1)
    own = np.diag(counts).copy()
    np.fill_diagonal(counts, 0)
    return own, counts
