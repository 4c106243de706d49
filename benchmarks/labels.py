"""How well wrong labels are found, counted and mended: real features with human and made noise, against cleanlab.

python -m benchmarks.labels                    # the half of the rows that no choice was made with
python -m benchmarks.labels --split chosen     # the half with which the constants of RepairPolicy were chosen
python -m benchmarks.labels --split whole      # all rows, with noise drawn anew
python -m benchmarks.labels --grid 240         # also drawn classes with every kind of noise (benchmarks/label_grid.py)
python -m benchmarks.labels --oracle           # also what the same model could do if it were fitted to the truth
python -m benchmarks.labels --speed            # the probe's time over scikit-learn's as well (minutes)

One row a case. `noise` and `found` are the true and the estimated share of wrong labels, with the interval of 95 %. `F1` is
that of the kept labels, beside the best of cleanlab's five filters on the probe's out-of-fold probabilities. `right` is the
share of right labels before and after the repair (`sure`), and after the best fixed rule, whose limit is chosen with the truth
of the case. `ECE` is the calibration error of label_quality.

Real features: CIFAR-10N (three levels of human noise; ImageNet features) and CLIP ViT-B/32 features of Oxford pets and of
textures (DTD), with labels moved to any class (symmetric), to the class whose mean is nearest (nearest), or depending on the
picture (instance). Drawn scenes: pictures of 36 classes, encoded by the embedded model; alone where the files are absent.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from cleanlab.filter import find_label_issues
from numpy.typing import NDArray
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from benchmarks.label_grid import FIRST_SEED, draw, draw_case, exchanged
from noisegate.pipeline.datasets.noise.labels import asymmetric, instance_dependent, symmetric
from noisegate.pipeline.datasets.scenes import draw as draw_scene
from noisegate.pipeline.datasets.scenes import random_scene
from noisegate.pipeline.datasets.scenes.scene import scene_class
from noisegate.pipeline.estimators import load_estimator
from noisegate.pipeline.inspect.metrics import calibration_error, selection_metrics
from noisegate.pipeline.labels.anchors import Anchors
from noisegate.pipeline.labels.pool import Pool, fit_pool, log_votes
from noisegate.pipeline.labels.probe import STRENGTHS, probe_probabilities
from noisegate.pipeline.labels.repair import RepairPolicy
from noisegate.pipeline.labels.scoring import label_sources, score_labels
from noisegate.pipeline.neighbours import default_k, find_neighbours, near_duplicates
from noisegate.pipeline.runs.rows import as_rows
from noisegate.pipeline.settings import REPAIRS
from noisegate.pipeline.system.array_types import Float32, Index

DATA = Path(__file__).resolve().parents[1] / ".." / "shared" / "data"
SPLITS = ("chosen", "unseen", "whole")
HUMAN = ("aggre_label", "random_label1", "worse_label")
CLIP = ("oxford_pets", "dtd")
RATES = (0.1, 0.2, 0.3, 0.4)
SCENES = 4000
FILTERS = ("prune_by_noise_rate", "prune_by_class", "both", "confident_learning", "predicted_neq_given")
LIMITS = (0.0, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)  # of the best fixed rule


class Case(NamedTuple):
    """One set of labels."""

    name: str
    features: Float32  # (N, d)
    labels: Index
    truth: Index
    anchors: Anchors | None = None


class Row(NamedTuple):
    """What is printed of a case."""

    case: str
    rows: int
    noise: float
    found: float
    low: float
    high: float
    model: str
    auroc: float
    f1: float
    best_f1: float  # by the best cut of label_quality, chosen with the truth as cleanlab's filter is
    cleanlab_f1: float
    before: float
    after: float
    best: float
    ece: float


def cases(split: str) -> Iterator[Case]:
    """All cases of a split."""
    part = SPLITS.index(split)
    features = DATA / "cifar10n-features.npz"
    if features.exists():
        with np.load(features) as data:
            rows = split_rows(len(data["features"]), split)
            x, truth = data["features"][rows].astype(np.float32), data["clean_label"][rows].astype(np.int64)
            for name in HUMAN:
                yield Case(f"CIFAR-10N {name.removesuffix('_label')}", x, data[name][rows].astype(np.int64), truth)
    for name in CLIP:
        path = DATA / "real-clip" / f"labels_{name}_vitb32.npz"
        if path.exists():
            with np.load(path) as data:
                rows = split_rows(len(data["images"]), split)
                x, truth = data["images"][rows].astype(np.float32), data["labels"][rows].astype(np.int64)
            yield from with_noise(name, x, truth, part)
    x, truth = scene_features(SCENES, part)
    yield from with_noise("scenes", x, truth, part)


def split_rows(count: int, split: str) -> Index:
    """Every second row of a fixed permutation, or all rows."""
    order = np.random.default_rng(7).permutation(count)
    return np.sort(order if split == "whole" else order[SPLITS.index(split) :: 2])


def with_noise(name: str, features: Float32, truth: Index, seed: int) -> Iterator[Case]:
    """The right labels, and three kinds of noise at every rate."""
    classes = int(truth.max()) + 1
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    means = np.stack([unit[truth == label].mean(axis=0) for label in range(classes)])
    alike = means @ means.T / np.linalg.norm(means, axis=1) / np.linalg.norm(means, axis=1)[:, None]
    np.fill_diagonal(alike, -1)
    yield Case(f"{name} none", features, truth, truth)
    for number, rate in enumerate(RATES):
        rng = np.random.default_rng([seed, number])
        for kind, noise in (
            ("symmetric", symmetric(truth, classes, rate, rng)),
            ("nearest", asymmetric(truth, alike.argmax(axis=1), rate, rng)),
            ("instance", instance_dependent(truth, features, classes, rate, rng)),
        ):
            yield Case(f"{name} {kind} {rate:.0%}", features, noise.labels, truth)


def scene_features(count: int, seed: int) -> tuple[Float32, Index]:
    """Drawn scenes by the embedded model, and their classes."""
    rng = np.random.default_rng([seed, 36])
    scenes = [random_scene(rng) for _ in range(count)]
    encoder = load_estimator("embedded", device="cpu")
    return encoder.encode_images([draw_scene(scene) for scene in scenes]), np.array(list(map(scene_class, scenes)))


def judge(case: Case, repair: str = "sure") -> Row:
    """Score the labels as `noisegate annotate` does, and compare."""
    labels, truth, count = case.labels, case.truth, len(case.labels)
    classes = int(max(truth.max(), labels.max())) + 1
    neighbours = find_neighbours(case.features, default_k(count, classes))
    found = score_labels([case.features], labels, neighbours, case.anchors, device="cpu", policy=RepairPolicy(repair))
    quality, refined = found.columns["label_quality"], found.columns["refined_label"]
    wrong, scored = labels != truth, np.isfinite(quality)
    kept = selection_metrics(quality[scored], found.columns["clean"][scored], wrong[scored])
    right = labels == truth
    return Row(
        case=case.name,
        rows=count,
        noise=float(wrong.mean()),
        found=found.fused.noise_rate,
        low=found.fused.noise_interval[0],
        high=found.fused.noise_interval[1],
        model=found.fused.noise_model,
        auroc=kept.clean_auroc,
        f1=kept.clean_f1,
        best_f1=best_cut_f1(quality[scored], right[scored]),
        cleanlab_f1=cleanlab_f1(case, classes),
        before=float(right.mean()),
        after=float((refined == truth).mean()),
        best=best_fixed_rule(found.columns, labels, truth),
        ece=calibration_error(quality[scored], right[scored]),
    )


def oracle(case: Case, repair: str = "sure") -> tuple[float, float]:
    """Share of right labels after the repair, and the ECE, of a pool fitted to the truth with a T counted by the truth.

    A mark rather than a bound: what these sources and one T for all pictures give where nothing has to be estimated from
    noisy labels. An overconfident pool can repair a little more, at the price of its calibration.
    """
    labels, truth, count = case.labels, case.truth, len(case.labels)
    classes = int(max(truth.max(), labels.max())) + 1
    neighbours = find_neighbours(case.features, default_k(count, classes))
    images, duplicates = as_rows([case.features], "images"), near_duplicates(neighbours, 0.985)
    sources = label_sources(images, labels, classes, neighbours, case.anchors, duplicates, device="cpu")
    votes = np.stack([log_votes(source(np.arange(count)), np.arange(classes)) for source in sources.values()])
    same = np.eye(classes)
    even = Pool(np.full(len(votes), 1 / len(votes)), np.zeros(classes), np.ones(1), same, np.inf)
    counted = np.zeros((classes, classes))
    np.add.at(counted, (truth, labels), 1)
    transition = counted / np.maximum(counted.sum(axis=1, keepdims=True), 1)
    best = fit_pool(votes, truth, same[None], even)._replace(transition=transition)
    posterior = best.true_given(votes, labels)
    after = RepairPolicy(repair).repair_labels(posterior, labels, shown=True)
    return float((after == truth).mean()), calibration_error(posterior[np.arange(count), labels], labels == truth)


def cleanlab_f1(case: Case, classes: int) -> float:
    """F1 of the labels kept by the best of cleanlab's filters, with the same out-of-fold probabilities."""
    probability = probe_probabilities(case.features, case.labels, classes).astype(np.float64)
    present = np.unique(case.labels)
    if len(present) < 2:
        return float("nan")
    probability = probability[:, present] / probability[:, present].sum(axis=1, keepdims=True)
    labels, best = np.searchsorted(present, case.labels), 0.0
    for name in FILTERS:
        try:
            kept = ~find_label_issues(labels, probability, filter_by=name, n_jobs=1)
        except (ValueError, AssertionError):  # some filters need more labels of every class than there are
            continue
        right = case.labels == case.truth
        best = max(best, 2 * float((kept & right).sum()) / max(float(kept.sum() + right.sum()), 1))
    return best


def best_cut_f1(quality: NDArray[Any], right: NDArray[np.bool_]) -> float:
    """F1 of the labels kept by the best cut of their quality."""
    hits = np.cumsum(right[np.argsort(-quality)])
    return float((2 * hits / (np.arange(1, len(right) + 1) + right.sum())).max())


def best_fixed_rule(columns: dict[str, NDArray[Any]], labels: Index, truth: Index) -> float:
    """Share of right labels by the best limit, on their quality or on the confidence of the predicted label."""
    predicted = columns["predicted_label"]
    signs = (
        1 - np.nan_to_num(columns["label_quality"], nan=1.0),
        np.nan_to_num(columns["predicted_confidence"], nan=0.0),
    )
    return max(float((np.where(sign > limit, predicted, labels) == truth).mean()) for sign in signs for limit in LIMITS)


def grid_rows(count: int, split: str) -> Iterator[Row]:
    """Drawn classes; those whose names are exchanged are left out, as nothing in the data could tell."""
    first = FIRST_SEED["chosen" if split == "chosen" else "unseen"]
    for seed in range(first, first + count):
        case = draw_case(seed)
        data = draw(case)
        if not exchanged(case, data) and len(np.unique(data.labels)) > 1:
            name = f"grid {case.kind} {case.rate:.0%}, {case.classes} classes"
            yield judge(Case(name, data.features, data.labels, data.truth, data.anchors))


def summary(rows: list[Row]) -> dict[str, float]:
    """The figures that the label scores are judged by; noise rates of cases with at most 40 % noise."""
    counted = [row for row in rows if row.noise <= 0.41]
    large = [row.high - row.low for row in counted if row.rows >= 4000]
    lost = [row.before - row.after for row in rows if row.after < row.before]
    gain = sum(row.best - row.before for row in rows)
    return {
        "cases": len(rows),
        "mean error of the noise rate": float(np.mean([abs(row.found - row.noise) for row in counted])),
        "largest": max((abs(row.found - row.noise) for row in counted), default=float("nan")),
        "intervals that hold it": float(np.mean([row.low <= row.noise <= row.high for row in counted])),
        "widest interval of 4,000 rows and more": max(large, default=float("nan")),
        "mean F1 of the kept labels": float(np.mean([row.f1 for row in rows])),
        "mean F1 of cleanlab's best filter": float(np.mean([row.cleanlab_f1 for row in rows])),
        "F1 below cleanlab's by more than .002": sum(row.f1 < row.cleanlab_f1 - 0.002 for row in rows),
        "the same with the best cut": sum(row.best_f1 < row.cleanlab_f1 - 0.002 for row in rows),
        "cases with fewer right labels after": len(lost),
        "mean loss there": float(np.mean(lost)) if lost else 0.0,
        "share of the best rule's gain": sum(row.after - row.before for row in rows) / gain if gain else float("nan"),
        "largest ECE": max((row.ece for row in rows), default=float("nan")),
        "mean ECE": float(np.mean([row.ece for row in rows])),
    }


def print_rows(rows: Iterator[Row]) -> list[Row]:
    """Print rows as they come."""
    print(
        f"{'case':26}{'rows':>6} {'noise':>6}{'found':>7}  {'interval':14} {'model':9}{'AUROC':>6} {'F1':>6} {'cleanlab':>8}"
        "  right before, after, best  ECE"
    )
    done = []
    for row in rows:
        print(
            f"{row.case:26}{row.rows:>6} {row.noise:6.1%}{row.found:7.1%}  {row.low:5.1%} to {row.high:5.1%} {row.model:9}"
            f"{row.auroc:6.3f} {row.f1:6.3f} {row.cleanlab_f1:8.3f}  {row.before:.3f} {row.after:.3f} {row.best:.3f}"
            f"{' worse' if row.after < row.before else '      '}     {row.ece:.3f}",
            flush=True,
        )
        done.append(row)
    return done


def drawn(rows: int, width: int, classes: int, rng: np.random.Generator) -> tuple[Float32, Index]:
    """Overlapping classes in features whose spectrum falls as that of real ones does."""
    truth = rng.integers(0, classes, rows)
    spread = 1 / np.sqrt(1 + np.arange(width))
    centres = 0.6 * rng.standard_normal((classes, width)) * spread
    return (centres[truth] + rng.standard_normal((rows, width)) * spread).astype(np.float32), truth


def prepared(features: Float32) -> Float32:
    """As the probe sees them: unit length, centred, mean square 1."""
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    unit -= unit.mean(axis=0)
    return np.asarray(unit / np.sqrt(np.mean(unit**2)), dtype=np.float32)


def sklearn_probabilities(features: Float32, labels: Index, classes: int) -> Float32:
    """What the probe does, with scikit-learn: out of fold, with the same strengths."""
    rows, folds = prepared(features), StratifiedKFold(5, shuffle=True, random_state=0)
    found = [
        cross_val_predict(
            LinearDiscriminantAnalysis(solver="lsqr", shrinkage=strength),
            rows,
            labels,
            cv=folds,
            method="predict_proba",
        )
        for strength in STRENGTHS
    ]
    return np.asarray(min(found, key=lambda some: log_loss(labels, some, labels=np.arange(classes))), dtype=np.float32)


def speed(rows: int, width: int) -> dict[str, float]:
    """The probe over scikit-learn on the same rows, the same folds in number and the same strengths."""
    rng = np.random.default_rng(0)
    features, truth = drawn(rows, width, 10, rng)
    labels = symmetric(truth, 10, 0.4, rng).labels
    start = time.perf_counter()
    probe_probabilities(features, labels, 10)
    middle = time.perf_counter()
    sklearn_probabilities(features, labels, 10)
    ours, theirs = middle - start, time.perf_counter() - middle
    return {
        "probe_seconds": round(ours, 2),
        "sklearn_seconds": round(theirs, 2),
        "times_as_fast": round(theirs / ours, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--split", choices=SPLITS, default="unseen")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--repair", choices=REPAIRS, default="sure")
    parser.add_argument("--grid", type=int, default=0, help="drawn cases to judge as well")
    parser.add_argument("--oracle", action="store_true", help="also judge a model that is fitted to the truth")
    parser.add_argument("--speed", action="store_true", help="time the probe against scikit-learn as well")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--width", type=int, default=1_280)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = print_rows(judge(case, options.repair) for case in cases(options.split) if options.only in case.name)
    result: dict[str, Any] = {"rows": [row._asdict() for row in rows], "real": summary(rows)}
    if options.grid:
        drawn_rows = list(grid_rows(options.grid, options.split))
        result |= {"grid_rows": [row._asdict() for row in drawn_rows], "grid": summary(drawn_rows)}
    if options.oracle:
        for case in cases(options.split):
            if options.only in case.name:
                after, ece = oracle(case, options.repair)
                result.setdefault("oracle", {}).update({f"{case.name}: right": after, f"{case.name}: ECE": ece})
    if options.speed:
        result["speed"] = speed(options.rows, options.width)
    for part in ("real", "grid", "oracle", "speed"):
        for name, value in result.get(part, {}).items():
            print(f"{part:7} {name:45} {value:.4g}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
