"""Where `select` loses to the oracle: by wrong samples that it keeps, or by right ones that it leaves out.

    python -m benchmarks.oracle_gap BENCH [--preset scenes-classification] [--rate 0.6] [--seeds 0,1,2]

BENCH is what --out of noisegate bench was. The same training four times: on the table's clean samples, on those of them that
are right in truth, on all that are right (the oracle), and on all that are right with the wrong ones that the table keeps.
"""

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from noisegate.pipeline.runs.table import RunFolder, read_metadata, replace_columns
from noisegate.pipeline.system.array_types import Mask
from noisegate.trainers.bench.cells import run_cell
from noisegate.trainers.bench.preset_files import load_preset
from noisegate.trainers.bench.scene_bench import PreparedScenes, plan_cell, prepare_scenes

SETS: dict[str, Callable[[Mask, Mask], Mask]] = {
    "what the table keeps (select)": lambda kept, right: kept,
    "of these what is right": lambda kept, right: kept & right,
    "what is right (oracle)": lambda kept, right: right,
    "what is right, and what the table keeps": lambda kept, right: kept | right,
}


def chosen(prepared: PreparedScenes, choose: Callable[[Mask, Mask], Mask], folder: Path) -> tuple[PreparedScenes, int]:
    """The data with another set of samples in the place of the truth, and how many these are."""
    table, truth, other = RunFolder(prepared.table), RunFolder(prepared.truth), RunFolder(folder)
    shutil.copytree(prepared.truth, folder)
    count = 0
    for stem in list(table.stems()):
        kept, right = (np.asarray(run.read(stem, ["clean"])["clean"].fill_null(False)) for run in (table, truth))
        mask = choose(kept.astype(bool), right.astype(bool))
        count += int(mask.sum())
        one = truth.read(stem)
        other.write_table(stem, replace_columns(one, {"clean": pa.array(mask)}, read_metadata(truth.table(stem))))
    return replace(prepared, truth=folder, clean=count), count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path)
    parser.add_argument("--preset", default="scenes-classification")
    parser.add_argument("--rate", type=float, default=0.6)
    parser.add_argument("--seeds", default="0,1,2")
    given = parser.parse_args()
    preset = load_preset(given.preset)
    prepared = prepare_scenes(preset.data, given.rate, given.bench, print)
    with tempfile.TemporaryDirectory(prefix="noisegate-") as name:
        for number, (words, choose) in enumerate(SETS.items()):
            data, count = chosen(prepared, choose, Path(name) / str(number))
            figures = []
            for seed in map(int, given.seeds.split(",")):
                found = run_cell(plan_cell(preset, data, "oracle", given.rate, seed, Path(name)))
                if found.error is not None:
                    raise SystemExit(found.error)
                figures.append(found.figures[preset.figure.name])
            spread = statistics.stdev(figures) if len(figures) > 1 else 0.0
            print(f"{words:42} {count:6,} samples  {statistics.mean(figures):5.1f} ± {spread:.1f}", flush=True)


if __name__ == "__main__":
    main()
