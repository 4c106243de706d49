"""How well wrong labels are found and repaired: each source, cleanlab's way, TANGO's, a plain product, and the fusion.

python benchmarks/labels.py                    # human noise of CIFAR-10N where its features are, else drawn features
python benchmarks/labels.py --speed --json     # the probe's time over scikit-learn's as well (minutes)
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cleanlab.filter import find_label_issues
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from noisegate.pipeline.datasets.noise.labels import instance_dependent, symmetric
from noisegate.pipeline.inspect.metrics.selection import selection_metrics
from noisegate.pipeline.labels.fusion import fuse
from noisegate.pipeline.labels.probe import FIRST, STRENGTHS, probe_probabilities
from noisegate.pipeline.labels.tango import refine, visual_consistency
from noisegate.pipeline.neighbours import find_neighbours
from noisegate.pipeline.system.array_types import Float32, Index, Mask

FEATURES = Path(__file__).resolve().parents[1] / ".." / "shared" / "data" / "cifar10n-features.npz"


class Judged(NamedTuple):
    """One opinion: a score (N,), which labels it keeps (N,), and what it would make of them (N,)."""

    score: NDArray[Any]
    clean: Mask
    repaired: Index


def levels(path: Path) -> Iterator[tuple[str, Float32, Index, Index]]:
    """(name, features, given labels, true labels) for each kind of noise."""
    if path.exists():
        with np.load(path) as data:
            features, truth = data["features"].astype(np.float32), data["clean_label"].astype(np.int64)
            given = {name: data[name].astype(np.int64) for name in ("worse_label", "random_label1", "aggre_label")}
        for name, labels in given.items():
            yield name, features, labels, truth
        return
    rng = np.random.default_rng(0)
    features, truth = drawn(4000, 256, 10, rng)
    yield "symmetric 40 %", features, symmetric(truth, 10, 0.4, rng).labels, truth
    yield "instance 40 %", features, instance_dependent(truth, features, 10, 0.4, rng).labels, truth
    yield "symmetric 10 %", features, symmetric(truth, 10, 0.1, rng).labels, truth


def drawn(rows: int, width: int, classes: int, rng: np.random.Generator) -> tuple[Float32, Index]:
    """Overlapping classes in features whose spectrum falls as that of real ones does."""
    truth = rng.integers(0, classes, rows)
    spread = 1 / np.sqrt(1 + np.arange(width))
    centres = 0.6 * rng.standard_normal((classes, width)) * spread
    return (centres[truth] + rng.standard_normal((rows, width)) * spread).astype(np.float32), truth


def by_prediction(posterior: Float32, labels: Index) -> Judged:
    """The posterior at the label; kept where it is the largest; repaired by the largest."""
    predicted = posterior.argmax(axis=1)
    return Judged(posterior[np.arange(len(labels)), labels], predicted == labels, predicted)


def prepared(features: Float32) -> Float32:
    """As the probe sees them: unit length, centred, mean square 1."""
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    unit -= unit.mean(axis=0)
    return np.asarray(unit / np.sqrt(np.mean(unit**2)), dtype=np.float32)


def sklearn_probabilities(features: Float32, labels: Index, classes: int) -> Float32:
    """What the probe does, with scikit-learn: out of fold, and the strengths in the same order up to the same end."""
    rows, folds = prepared(features), StratifiedKFold(5, shuffle=True, random_state=0)

    def out_of_fold(strength: float) -> tuple[float, NDArray[Any]]:
        model = LogisticRegression(C=1 / (strength * 0.8 * len(labels)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            found = cross_val_predict(model, rows, labels, cv=folds, method="predict_proba")
        return float(log_loss(labels, found, labels=np.arange(classes))), found

    best_loss, best = out_of_fold(FIRST)
    for ladder in ([s for s in STRENGTHS if s < FIRST], [s for s in reversed(STRENGTHS) if s > FIRST]):
        improved = False
        for strength in ladder:
            loss, found = out_of_fold(strength)
            if loss >= best_loss:
                break
            best_loss, best, improved = loss, found, True
        if improved:
            break
    return np.asarray(best, dtype=np.float32)


def judge(features: Float32, labels: Index, classes: int) -> dict[str, Judged]:
    """Every opinion on one set of labels."""
    neighbours = find_neighbours(features, 200)
    wide, near = (visual_consistency(neighbours.indices[:, :k], labels, classes) for k in (200, 50))
    probe = probe_probabilities(features, labels, classes)
    regression = sklearn_probabilities(features, labels, classes)
    product = (wide + 1e-3) * (near + 1e-3) * probe
    issues = find_label_issues(labels, regression.astype(np.float64))
    tango = refine(labels, classes, neighbours=neighbours)
    fused = fuse({"neighbours": wide, "near neighbours": near, "probe": probe}, labels, classes)
    confidence = regression[np.arange(len(labels)), labels]
    return {
        "leave all as they are": Judged(np.zeros(len(labels)), np.ones(len(labels), dtype=bool), labels),
        "p_vis, k = 50": by_prediction(near, labels),
        "p_vis, k = 200": by_prediction(wide, labels),
        "probe": by_prediction(probe, labels),
        "cleanlab": Judged(confidence, ~issues, np.where(issues, regression.argmax(axis=1), labels)),
        "TANGO, no anchors": Judged(tango.q, tango.clean_tango, tango.label.astype(np.int64)),
        "product": by_prediction(product / product.sum(axis=1, keepdims=True), labels),
        "fused": Judged(fused.label_quality, fused.clean, fused.refined_label.astype(np.int64)),
    }


def figures(opinion: Judged, labels: Index, truth: Index) -> dict[str, float]:
    metrics = selection_metrics(opinion.score, opinion.clean, labels != truth)
    return {
        "clean_auroc": round(metrics.clean_auroc, 4),
        "clean_f1": round(metrics.clean_f1, 4),
        "repaired_accuracy": round(float(np.mean(opinion.repaired == truth)), 4),
    }


def speed(rows: int, width: int) -> dict[str, float]:
    """The probe over scikit-learn on the same rows, the same folds in number and the same search for the strength."""
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
    parser.add_argument("--features", type=Path, default=FEATURES, help="npz with features, clean_label and *_label*")
    parser.add_argument("--speed", action="store_true", help="time the probe against scikit-learn as well")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--width", type=int, default=1_280)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result: dict[str, Any] = {}
    for name, features, labels, truth in levels(options.features):
        opinions = judge(features, labels, int(truth.max()) + 1)
        result[name] = {method: figures(opinion, labels, truth) for method, opinion in opinions.items()}
        if not options.json:
            print(f"\n{name}: {np.mean(labels != truth):.1%} of {len(labels):,} labels are wrong")
            print(f"{'':24}{'clean AUROC':>12}{'clean F1':>12}{'repaired':>12}")
            for method, row in result[name].items():
                print(f"{method:24}" + "".join(f"{value:12.4f}" for value in row.values()))
    if options.speed:
        result["speed"] = speed(options.rows, options.width)
        if not options.json:
            print(f"\nprobe at {options.rows:,} x {options.width:,}: {result['speed']}")
    if options.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
