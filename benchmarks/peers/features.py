"""Neighbours and wrong labels on the same features: noisegate and cleanlab, by turns.

    python -m benchmarks.peers.environments ENVIRONMENTS cleanlab
    python -m benchmarks.peers.features ENVIRONMENTS [--rows 4000] [--k 50] [--rounds 2] [--json]

Drawn features of overlapping classes, 20 % of the labels wrong. cleanlab: `features_to_knn(...).kneighbors()` (what Datalab
searches with) and `CleanLearning.find_label_issues`, both with their defaults. noisegate: `find_neighbours`, and
`score_labels` on top of it. Both sides on one thread; seconds are of the processor.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.annotate import used
from benchmarks.labels import drawn
from benchmarks.peers.environments import python_of
from benchmarks.peers.turns import Side
from noisegate.pipeline.datasets.noise.labels import symmetric
from noisegate.pipeline.inspect.metrics.selection import selection_metrics
from noisegate.pipeline.labels.scoring import score_labels
from noisegate.pipeline.neighbours import find_neighbours

HERE = Path(__file__).resolve().parent
ONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def same_neighbours(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """Share of all neighbours, as sets by row, that both found."""
    return float(np.mean([len(np.intersect1d(a, b)) / len(a) for a, b in zip(ours, theirs, strict=True)]))


def compare(environments: Path, folder: Path, rows: int, width: int, k: int, rounds: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    features, truth = drawn(rows, width, 10, rng)
    labels = symmetric(truth, 10, 0.2, rng).labels
    np.savez(folder / "data.npz", features=features, labels=labels)
    command = [python_of(environments, "cleanlab"), HERE / "with_cleanlab.py", folder / "data.npz", str(k)]
    side = Side(command, ONE, folder / "cleanlab.log")
    took: dict[str, list[float]] = {name: [] for name in ("neighbours", "issues", "their neighbours", "their issues")}
    for _ in range(rounds + 1):
        before = used()
        graph = find_neighbours(features, k)
        took["neighbours"].append(used() - before)
        scores = score_labels([features], labels, graph, device="cpu")
        took["issues"].append(used() - before)
        for what in ("neighbours", "issues"):
            took[f"their {what}"].append(side.go(f"{what} {folder / what}.npz")["cpu"])
    side.close()
    least = {name: min(values[1:]) for name, values in took.items()}
    theirs = np.load(folder / "neighbours.npz")
    issues = np.load(folder / "issues.npz")
    wrong = labels != truth
    own = selection_metrics(scores.columns["label_quality"], scores.columns["clean"], wrong)
    other = selection_metrics(issues["quality"], ~issues["issue"], wrong)
    return {
        "rows": rows,
        "width": width,
        "k": k,
        "seconds": least,
        "neighbours_times_as_fast": least["their neighbours"] / least["neighbours"],
        "issues_times_as_fast": least["their issues"] / least["issues"],
        "same_neighbours": same_neighbours(graph.indices, theirs["indices"]),
        "largest_difference_of_a_cosine": float(
            np.abs(np.sort(graph.similarities, axis=1) - np.sort(theirs["similarities"], axis=1)).max()
        ),
        "noisegate_auroc": own.clean_auroc,
        "cleanlab_auroc": other.clean_auroc,
        "noisegate_f1": own.clean_f1,
        "cleanlab_f1": other.clean_f1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("environments", type=Path)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--k", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        found = compare(given.environments, Path(name), given.rows, given.width, given.k, given.rounds)
    if given.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:32} {value if isinstance(value, int | dict) else f'{value:.6g}'}")


if __name__ == "__main__":
    main()
