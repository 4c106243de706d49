"""Whether repaired labels are ever worse than the given ones: drawn features, many kinds of noise, with and without anchors.

python -m benchmarks.repair                        # the unseen cases, by which the rule is judged
python -m benchmarks.repair --split chosen         # those with which it was chosen
python -m benchmarks.repair --grid flipped         # classes that are apart, but go mostly by one other name
python -m benchmarks.repair --cases 200 --json

Every case draws its settings and its data from its own seed: Gaussian classes of one or three modes, even or uneven in
size, noise of one kind and rate, and text anchors that are good, weak, those of another class, or absent. Its gain is
the share of right labels after the repair minus that before. A repair that mends m labels and spoils s is worse beyond
chance where m - s < -2 sqrt(m + s), two standard errors if mending and spoiling were equally likely.

A case is identifiable where in every cluster the right label is the commonest, or where the anchors are good: else neither
the labels nor the anchors say which name is right. (The right label may be the commonest of its class and not that of one
of its clusters. Nothing shows that those clusters are of one class.) Among the others are those in which names are
exchanged: a ring of classes, five eighths or more of each called the next one. With the names as most labels have them,
that is plain noise.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from noisegate.pipeline.datasets.noise.labels import instance_dependent
from noisegate.pipeline.labels.anchors import Anchors
from noisegate.pipeline.labels.scoring import score_labels
from noisegate.pipeline.neighbours import default_k, find_neighbours
from noisegate.pipeline.system.array_types import Float32, Index, Mask

FIRST_SEED = {
    "usual": {"chosen": 1_000_000, "unseen": 10_000_000},
    "flipped": {"chosen": 2_000_000, "unseen": 10_000_000},
}
LOST = 0.002  # of accuracy
EXCHANGED = 0.625  # share of the next name, next to the right one, from which names are exchanged
ROWS, ROWS_SHARE = (50, 200, 1000, 4000), (0.1, 0.45, 0.4, 0.05)
WIDTHS = (2, 4, 16, 64)
CLASSES = (2, 3, 10)
APART = (1.0, 2.5, 4.0, 5.5, 7.0)  # distance of class centres, in deviations within a class
KINDS = ("none", "symmetric", "pairwise", "confusion", "instance", "border")
RATES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
FLIPS = ("ring", "swap", "one", "onto", "rare", "mode")
FLIP_RATES = (0.55, 0.6, 0.65, 0.7, 0.8, 0.9)
BESIDES = 0.1  # symmetric noise besides the flips, by which noise is shown
RARE = 0.05  # share of the class that a large one swallows
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


class Outcome(NamedTuple):
    """What the repair did."""

    case: Case
    wrong: float  # share of wrong labels before
    mended: int
    spoilt: int
    changed: int
    identifiable: bool
    exchanged: bool

    @property
    def gain(self) -> float:
        return (self.mended - self.spoilt) / self.case.rows

    @property
    def beyond_chance(self) -> bool:
        """Worse by more than two standard errors."""
        return self.mended - self.spoilt < -2 * np.sqrt(self.mended + self.spoilt)


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


def draw_flipped(seed: int) -> Case:
    """Classes that are apart, of which one or more go mostly by one other name."""
    rng = np.random.default_rng([seed, 2])
    kind = str(rng.choice(FLIPS))
    return Case(
        seed,
        rows=int(rng.choice((200, 1000), p=(0.4, 0.6))),
        width=int(rng.choice((4, 16, 64))),
        classes=int(rng.choice((2, 3, 5, 10))),
        apart=float(rng.choice((4.0, 5.5, 7.0))),
        modes=3 if kind == "mode" else int(rng.choice((1, 3), p=(0.7, 0.3))),
        even=bool(rng.random() < 0.7),
        kind=kind,
        rate=float(rng.choice(FLIP_RATES)),
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
    if case.kind == "rare":
        share = np.concatenate([[RARE], share[1:] / share[1:].sum() * (1 - RARE)])
    truth = rng.choice(case.classes, case.rows, p=share).astype(np.int64)
    centres = rng.standard_normal((case.classes, case.modes, case.width)) * case.apart / np.sqrt(2 * case.width)
    mode = rng.integers(0, case.modes, case.rows)
    features = (centres[truth, mode] + rng.standard_normal((case.rows, case.width))).astype(np.float32)
    labels = flipped(case, truth, mode, rng) if case.kind in FLIPS else mislabelled(case, truth, features, centres, rng)
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


def flipped(case: Case, truth: Index, mode: Index, rng: np.random.Generator) -> Index:
    """The given labels (N,), most of some classes called one other name, and a tenth of all labels wrong besides."""
    classes, target = case.classes, np.arange(case.classes)
    if case.kind in ("ring", "mode"):  # each class, or one cluster of each, to the next
        target = np.roll(target, -1)
    elif case.kind == "swap":  # two classes to each other
        target[:2] = [1, 0]
    elif case.kind == "onto":  # half of the classes to one of the others
        target[: classes // 2] = classes - 1
    else:  # one class to one other; in "rare" it has few samples
        target[0] = 1
    rate = np.clip(case.rate + rng.uniform(-0.1, 0.1, classes), 0.5, 0.95)[truth]
    flips = (rng.random(case.rows) < rate) & ((case.kind != "mode") | (mode == 0))
    labels = np.where(flips, target[truth], truth)
    return np.where(rng.random(case.rows) < BESIDES, rng.integers(0, classes, case.rows), labels)


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


def identifiable(case: Case, data: Drawn) -> bool:
    """Whether something in the data says which name is right."""
    clusters = (_called(case, data, data.cluster == cluster) for cluster in range(case.modes))
    return case.anchors == "good" or all((own >= others.max(axis=1)).all() for own, others in clusters)


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


def repair(case: Case) -> Outcome:
    """Draw the case and repair it as `noisegate annotate` does."""
    torch.set_num_threads(1)
    data = draw(case)
    neighbours = find_neighbours(data.features, default_k(case.rows, case.classes))
    found = score_labels([data.features], data.labels, neighbours, data.anchors, device="cpu")
    refined = found.columns["refined_label"]
    before, after = data.labels == data.truth, refined == data.truth
    return Outcome(
        case,
        wrong=float(1 - before.mean()),
        mended=int((after & ~before).sum()),
        spoilt=int((before & ~after).sum()),
        changed=int((refined != data.labels).sum()),
        identifiable=identifiable(case, data),
        exchanged=exchanged(case, data),
    )


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Counts of losses, and the mean gain over all cases and over those in which labels are repaired."""
    gains = np.array([outcome.gain for outcome in outcomes])
    repaired = np.array([outcome.changed > 0 for outcome in outcomes], dtype=bool)
    return {
        "cases": len(outcomes),
        "repaired": int(repaired.sum()),
        "lost": int((gains < -LOST).sum()),
        "lost_beyond_chance": sum(outcome.beyond_chance and outcome.gain < -LOST for outcome in outcomes),
        "worst": round(float(gains.min(initial=0.0)), 4),
        "mean_wrong": round(float(np.mean([outcome.wrong for outcome in outcomes])), 4) if outcomes else 0.0,
        "mean_gain": round(float(gains.mean()), 4) if outcomes else 0.0,
        "mean_gain_repaired": round(float(gains[repaired].mean()), 4) if repaired.any() else 0.0,
    }


def figures(outcomes: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """The summary of all cases whose names are not exchanged, of parts of them, and of those whose names are."""
    plain = [outcome for outcome in outcomes if not outcome.exchanged or outcome.identifiable]
    kinds = [kind for kind in (*KINDS, *FLIPS) if any(outcome.case.kind == kind for outcome in outcomes)]
    return {
        "identifiable": summary([outcome for outcome in plain if outcome.identifiable]),
        "not identifiable": summary([outcome for outcome in plain if not outcome.identifiable]),
        **{kind: summary([outcome for outcome in plain if outcome.case.kind == kind]) for kind in kinds},
        "all of these": summary(plain),
        "names exchanged": summary([o for o in outcomes if o.exchanged and not o.identifiable]),
    }


def report(outcomes: Sequence[Outcome], result: dict[str, dict[str, Any]]) -> None:
    """A table, and the losses with the worst first."""
    columns = list(result["identifiable"])
    print(f"{'':18}" + "".join(f"{name:>20}" for name in columns))
    for name, row in result.items():
        print(f"{name:18}" + "".join(f"{row[column]:>20}" for column in columns))
    print("\nlosses, the worst first")
    for outcome in sorted((o for o in outcomes if o.gain < -LOST), key=lambda o: o.gain):
        chance = "beyond chance" if outcome.beyond_chance else "within chance"
        known = ", names exchanged" * outcome.exchanged if not outcome.identifiable else ", identifiable"
        print(f"  {outcome.gain:+.4f} mended {outcome.mended} spoilt {outcome.spoilt}, {chance}{known}: {outcome.case}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--split", choices=("chosen", "unseen"), default="unseen")
    parser.add_argument("--grid", choices=sorted(FIRST_SEED), default="usual")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    first = FIRST_SEED[options.grid][options.split]
    drawn = draw_case if options.grid == "usual" else draw_flipped
    cases = [drawn(seed) for seed in range(first, first + options.cases)]
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        outcomes = list(pool.map(repair, cases, chunksize=8))
    result = figures(outcomes)
    if options.json:
        print(json.dumps(result))
    else:
        report(outcomes, result)


if __name__ == "__main__":
    main()
