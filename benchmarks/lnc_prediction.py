"""What LNC predicts of right and of wrong pairs: by Eq. 9 of its paper, and by the hinges of NCR's code.

    python -m benchmarks.lnc_prediction BENCH [--rate 0.2] [--seed 0]

BENCH is what --out of noisegate bench was. Both are trained as in the bench; printed are tenth, median and ninetieth percent
of P, which decides how much of a pair's label is believed, over the pairs that are right in truth and those that are not.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

from noisegate.pipeline.datasets.noise.shards import TRUTH_FILE
from noisegate.trainers.bench.preset_files import load_preset
from noisegate.trainers.bench.scene_bench import plan_cell, prepare_scenes
from noisegate.trainers.train import train

PRESET = Path(__file__).parent / "presets" / "pair-parts.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path)
    parser.add_argument("--rate", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    preset = load_preset(str(PRESET))
    prepared = prepare_scenes(preset.data, given.rate, given.bench, print)
    wrong = pq.read_table(prepared.shards / TRUTH_FILE)["noisy"].to_numpy()
    for method, words in (("lnc", "Eq. 9"), ("lnc@hinges", "hinges")):
        cell = plan_cell(preset, prepared, method, given.rate, given.seed, given.bench)
        with tempfile.TemporaryDirectory(prefix="noisegate-") as folder:
            prediction = train({**cell.config, "out": folder}, quiet=True).sample_columns["lnc_prediction"]
        for name, rows in (("right", ~wrong), ("wrong", wrong)):
            low, middle, high = np.nanquantile(prediction[rows], [0.1, 0.5, 0.9])
            print(f"{words:8} {name} pairs: {low:.2f}  {middle:.2f}  {high:.2f}", flush=True)


if __name__ == "__main__":
    main()
