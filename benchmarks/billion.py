"""What a billion pairs take, from the processor time that each stage needs for one: the figures of docs/scale.md.

    python -m benchmarks.billion [--pairs 128] [--json]

The stages of `noisegate plan` on VGA JPEGs with captions of a dozen tokens and a randomly initialised ViT-B-32, one thread,
in processor time instead of wall time, because the machine may be busy; then 100,000 shards of 10,000 pairs like those.
"""

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.annotate import write_shards
from noisegate.pipeline.estimators import load_estimator
from noisegate.pipeline.settings import DecodeOptions
from noisegate.pipeline.shards.locate import find_shards
from noisegate.pipeline.tools.plan.devices import Machine
from noisegate.pipeline.tools.plan.measure import measure
from noisegate.pipeline.tools.plan.predict import forecast_run

SHARDS, PAIRS = 100_000, 10_000
ONE = Machine("cpu", workers=1, processors=1, threads=1, price=0.05)


def billion(pairs: int, folder: Path) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    estimator = load_estimator("ViT-B-32", "random:0", device="cpu")
    shards = find_shards(write_shards(folder, 2, pairs // 2, 640, 480))
    found = measure(shards, estimator, DecodeOptions(), 1e9, time.process_time)
    size = sum(one.bytes for one in found.shards_read) / sum(one.samples for one in found.shards_read)
    whole = replace(
        found, sizes=[round(PAIRS * size)], shards_read=[replace(one, whole=False) for one in found.shards_read]
    )
    return forecast_run(whole, "ViT-B-32", SHARDS, ONE, neighbours=200).to_dict()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=128)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        made = billion(given.pairs, Path(name))
    if given.json:
        print(json.dumps(made))
        return
    samples = made["samples"]["value"]
    print(
        f"{samples:,.0f} pairs, {made['bytes']['value'] / 1e12:,.1f} TB of shards, {made['gflops_per_sample']:.1f} GFLOP a pair"
    )
    for stage in made["stages"]:
        cost = stage["seconds_per_sample"]
        hours = cost["value"] * samples / 3600
        print(f"{stage['name']:8} {1000 * cost['value']:9.4f} ms a pair {hours:12,.0f} processor hours")
    for name, size in made["disk"].items():
        print(f"{name:12} {size / 1e12:8.3f} TB")
    for device in made["devices"]:
        print(
            f"{device['name']:10} {device['hours']:8,.0f} h {device['samples_per_second']:10,.0f}/s "
            f"{device['workers_needed']:6,} decode workers {device['processes_needed']:4,} processes "
            f"{device['money']:10,.0f} at {device['price']:.2f} an hour"
        )
    for text in made["assumptions"]:
        print(f"assumed: {text}")


if __name__ == "__main__":
    main()
