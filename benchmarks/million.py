"""A run of many tiny pairs from shards to neighbours: processor time and memory of each stage, and how they grow.

    python -m benchmarks.million [--rows 10000,100000,1000000] [--exact 1000000] [--k 20] [--json]

Pictures of 4 x 4 pixels, in shards of 1,000, and a model that costs next to nothing and gives 64 numbers. Each stage is a
process of its own and works on what the one before it left: `annotate` (read, decode, encode, write tables and embeddings,
learn β and score), `rescore` (learn β, calibration and pool
again; tables that have these scores are left), `neighbours` (exact, k of every picture's embedding, for sizes up to
`--exact`). Exponents are slopes of log processor time, and of log peak memory, over log rows.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.memory import peak_mb
from benchmarks.tiny_shards import WIDTH, ByteModel, tiny_shard

MODEL = "python:benchmarks.million:WideModel"
SHARD, NUMBERS = 1000, 64
STAGES = ("annotate", "rescore", "neighbours")
Figures = dict[str, float]


@cache
def _turn() -> NDArray[np.float32]:
    """(48, 64) with orthonormal rows: cosines stay what they are."""
    drawn = np.random.default_rng(0).standard_normal((NUMBERS, WIDTH))
    return np.linalg.qr(drawn)[0].T.astype(np.float32)


class WideModel:
    """What `ByteModel` reads, in 64 numbers."""

    identity = "wide-bytes-1"

    def encode_images(self, images: Sequence[Image.Image]) -> NDArray[np.float32]:
        return ByteModel().encode_images(images) @ _turn()

    def encode_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return ByteModel().encode_texts(texts) @ _turn()


def do_stage(name: str, folder: Path, k: int) -> int:
    """Do one stage on `folder` and return how many rows it had."""
    if name == "annotate":
        from noisegate.pipeline.annotate import annotate
        from noisegate.pipeline.estimators import ModelSpec

        return annotate(
            folder / "shards", folder / "out", estimator=ModelSpec(MODEL), beta="intersection", workers=0
        ).samples
    if name == "rescore":
        from noisegate.pipeline.rescore import rescore

        return rescore(folder / "out").samples
    from noisegate.pipeline.neighbours import NeighbourSearch, find_neighbours_on_disk
    from noisegate.pipeline.runs.rows import MappedRows
    from noisegate.pipeline.runs.table import RunFolder

    run = RunFolder(folder / "out")
    stems = [entry["table"] for entry in (run.read_run() or {})["shards"]]
    rows, search = MappedRows.of_run(run, stems, "image"), NeighbourSearch(None, "flat")
    find_neighbours_on_disk(rows, k, folder / "neighbours.safetensors", made_from="benchmark", search=search)
    return len(rows)


def stage_and_print(name: str, folder: Path, k: int) -> None:
    began, cpu = time.perf_counter(), time.process_time()
    rows = do_stage(name, folder, k)
    took = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu, "peak_mb": peak_mb()}
    print(json.dumps({"rows": rows, **{key: round(value, 2) for key, value in took.items()}}))


def measure(rows: int, stages: Sequence[str], k: int) -> dict[str, Figures]:
    """Figures of each stage for so many rows."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        for shard in range(-(-rows // SHARD)):
            tiny_shard(Path(name) / "shards" / f"s-{shard:06d}.tar", min(SHARD, rows - shard * SHARD), shard)
        for stage in stages:
            words = [sys.executable, "-m", "benchmarks.million", "--stage", stage, name, "--k", str(k)]
            answer = subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True).stdout
            found[stage] = json.loads(answer)
            print(stage, answer.strip(), file=sys.stderr, flush=True)
    return found


def exponent(sizes: Sequence[Figures], what: str) -> float | None:
    """Slope of log `what` over log rows; None for one size."""
    if len(sizes) < 2:
        return None
    rows, values = (np.log([size[name] for size in sizes]) for name in ("rows", what))
    return round(float(np.polyfit(rows, values, 1)[0]), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="10000,100000,1000000")
    parser.add_argument("--exact", type=int, default=1_000_000, help="most rows whose neighbours are searched")
    parser.add_argument("--k", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--stage", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.stage:
        return stage_and_print(given.stage[0], Path(given.stage[1]), given.k)
    all_sizes = []
    for rows in map(int, given.rows.split(",")):
        all_sizes.append(measure(rows, STAGES if rows <= given.exact else STAGES[:-1], given.k))
    stages = {stage: [sizes[stage] for sizes in all_sizes if stage in sizes] for stage in STAGES}
    exponents = {
        stage: {what: exponent(sizes, what) for what in ("cpu_seconds", "peak_mb")} for stage, sizes in stages.items()
    }
    if given.json:
        print(json.dumps({"stages": stages, "exponents": exponents}))
        return None
    for stage, sizes in stages.items():
        for size in sizes:
            each = 1e6 * size["cpu_seconds"] / size["rows"]
            print(
                f"{stage:10} {size['rows']:>10,} rows {size['cpu_seconds']:10,.1f} s of processor time "
                f"({each:8.1f} µs a row) {size['peak_mb']:8,.0f} MB"
            )
        print(f"{stage:10} exponents: {exponents[stage]}")
    return None


if __name__ == "__main__":
    main()
