"""What an epoch of each method costs beside a plain one: `python -m benchmarks.co_teaching`.

Drawn scenes and the small CLIP of `noisegate bench --preset scenes-retrieval`, on one thread. Every method is trained for a
few epochs and for a few more; the difference in processor time is that of epochs alone, without set-up and evaluation.
Methods take turns, and the median of the rounds counts. Goal: two networks cost at most 2.1 plain ones.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from noisegate.trainers.bench.cells import Cell, run_cell
from noisegate.trainers.bench.preset_files import ScenePreset, load_preset
from noisegate.trainers.bench.scene_bench import PreparedScenes, plan_cell, prepare_scenes
from noisegate.trainers.config import merge_trees

METHODS = ("baseline", "osa", "crcl", "ncr", "lnc", "gsl")
GOAL = 2.1
RATE = 0.4


def seconds(preset: ScenePreset, prepared: PreparedScenes, method: str, epochs: int, out: Path) -> float:
    """Processor seconds of a whole training of so many epochs, all of them after the warm-up but the first."""
    cell = plan_cell(preset, prepared, method, RATE, 0, out)
    settings: dict[str, object] = {"loop": {"epochs": epochs, "max_steps": None}}
    if method in ("ncr", "lnc", "gsl"):
        settings["method"] = {"warmup": 1}
    if method == "crcl":
        settings["method"] = {"pieces": [epochs]}
    found = run_cell(Cell(method, RATE, 0, merge_trees(cell.config, settings), out / f"{method}-{epochs}.json"))
    if found.error is not None:
        sys.exit(f"{method}: {found.error}")
    return found.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=2048)
    parser.add_argument("--epochs", type=int, default=8, help="that are timed")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    preset = load_preset("scenes-retrieval")
    preset = preset.with_changes(data={"train": given.scenes, "held_out": 100})
    with tempfile.TemporaryDirectory(prefix="noisegate-") as folder:
        out = Path(folder)
        prepared = prepare_scenes(preset.data, RATE, out, print)
        seconds(preset, prepared, "baseline", 2, out)  # imports and caches
        costs: dict[str, list[float]] = {method: [] for method in METHODS}
        for _ in range(given.rounds):
            for method in METHODS:
                short = seconds(preset, prepared, method, 2, out)
                long = seconds(preset, prepared, method, 2 + given.epochs, out)
                costs[method].append((long - short) / given.epochs)
    plain = statistics.median(costs["baseline"])
    print(f"\n{'method':<10} {'s per epoch':>12} {'over baseline':>14}")
    for method, found in costs.items():
        own = statistics.median(found)
        print(f"{method:<10} {own:>12.2f} {own / plain:>14.2f}")
    print(f"goal for two networks (ncr, lnc, gsl): at most {GOAL}")


if __name__ == "__main__":
    main()
