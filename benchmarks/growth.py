"""How the cost of `annotate` grows: 1 x, 10 x and 100 x samples with a model that costs next to nothing.

    python -m benchmarks.growth [--samples 10000] [--rounds 4] [--workers 0] [--json]

Every figure comes from a process of its own, sizes in turn. Processor time (the job's and its decode workers') stands
beside wall time, because the machine may be busy with other things. A job of 100 samples shows what starting costs;
`per sample` is what comes on top of that. Shards are links to ten tars, so that 100 x needs no room of its own.
The second part looks at what grows with the number of shards alone: listing them and writing `_run.json`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.memory import peak_mb
from benchmarks.peers.turns import processor_seconds
from benchmarks.tiny_shards import MODEL, tiny_shard

SIZES = (1, 10, 100)
SHARD = 1000
START = 100  # samples of the job that shows what starting costs
LISTS = (1_000, 10_000, 100_000)
GOALS = {"cpu_100x_over_1x": 1.10, "memory_100x_over_1x": 1.05}


def annotate_and_print(shards: str, out: str, workers: int) -> None:
    """One job; what it took goes to standard output as JSON."""
    from noisegate.pipeline.annotate import annotate
    from noisegate.pipeline.estimators import ModelSpec

    began, cpu = time.perf_counter(), processor_seconds()
    summary = annotate(shards, out, estimator=ModelSpec(MODEL), beta="intersection", workers=workers)
    wall, cpu = time.perf_counter() - began, processor_seconds() - cpu
    print(
        json.dumps(
            {
                "samples": summary.samples,
                "wall": wall,
                "cpu": cpu,
                "peak_mb": peak_mb(),
                "noise": summary.calibration.noise_rate if summary.calibration else None,
            }
        )
    )


def list_and_print(count: int, folder: Path) -> None:
    """What the bookkeeping of `count` shards alone takes: names, and `_run.json` written and read."""
    from noisegate.pipeline.runs.table import VERSION, RunFolder
    from noisegate.pipeline.shards.locate import find_shards

    run, before = RunFolder(folder), peak_mb()
    began = time.process_time()
    shards = find_shards(f"https://host/data/x-{{000000..{count - 1:06d}}}.tar")
    listed = time.process_time() - began
    entries = [{"url": s.url, "table": s.stem, "modified": None, "rows": 10_000, "sha256": 64 * "0"} for s in shards]
    scorer = dict.fromkeys(("model", "weights", "preprocess", "decoder", "dtype"), "") | {"versions": {}}
    rest = {
        "scoring": {"tasks": ["pairs"], "classes": None},
        "reading": {"tasks": ["pairs"]},
        "beta": None,
        "model": None,
    }
    run.write_run({"table_version": VERSION, "scorer": scorer, **rest, "shards": entries})
    size = run.run_file.stat().st_size
    read = run.read_run()
    assert read is not None
    assert len(read["shards"]) == count
    took = {"list_seconds": listed, "seconds": time.process_time() - began, "file_mb": size / 1e6}
    print(json.dumps({"shards": count, **took, "mb": peak_mb() - before}))


def in_a_process(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.growth", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def growth(samples: int, rounds: int, workers: int, folder: Path) -> dict[str, Any]:
    tars = [folder / "tars" / f"t{i}.tar" for i in range(10)]
    for i, tar in enumerate(tars):
        tiny_shard(tar, SHARD, i)
    tiny_shard(folder / "start" / "s-000000.tar", START, 99)
    for times in SIZES:
        (folder / f"x{times}").mkdir()
        for i in range(samples * times // SHARD):
            (folder / f"x{times}" / f"s-{i:06d}.tar").symlink_to(tars[i % len(tars)])
    taken: dict[str, list[dict[str, Any]]] = {}
    for turn in range(rounds):
        for name, every in (("start", 1), ("x1", 1), ("x10", 2), ("x100", 4)):
            if turn % every == 0:  # the larger, the less often: they differ less from one time to the next
                out = folder / f"out-{name}-{turn}"
                taken.setdefault(name, []).append(in_a_process("--annotate", folder / name, out, "--workers", workers))
                print(f"{name}: {taken[name][-1]}", file=sys.stderr, flush=True)
    middle = {
        name: {key: float(np.median([one[key] for one in jobs])) for key in ("samples", "wall", "cpu", "peak_mb")}
        for name, jobs in taken.items()
    }
    start, rows = middle["start"], []
    for times in SIZES:
        found = middle[f"x{times}"]
        more = found["samples"] - start["samples"]
        spread = [(one["cpu"] - start["cpu"]) / more * 1e6 for one in taken[f"x{times}"]]
        rows.append(
            {
                "samples": int(found["samples"]),
                "runs": len(spread),
                "cpu_us_per_sample": (found["cpu"] - start["cpu"]) / more * 1e6,
                "cpu_us_least_most": [min(spread), max(spread)],
                "wall_us_per_sample": (found["wall"] - start["wall"]) / more * 1e6,
                "peak_mb": found["peak_mb"],
            }
        )
    first, last = rows[0], rows[-1]
    return {
        "start_cpu_seconds": start["cpu"],
        "start_peak_mb": start["peak_mb"],
        "sizes": rows,
        "cpu_10x_over_1x": rows[1]["cpu_us_per_sample"] / first["cpu_us_per_sample"],
        "cpu_100x_over_1x": last["cpu_us_per_sample"] / first["cpu_us_per_sample"],
        "wall_100x_over_1x": last["wall_us_per_sample"] / first["wall_us_per_sample"],
        "memory_10x_over_1x": rows[1]["peak_mb"] / first["peak_mb"],
        "memory_100x_over_1x": last["peak_mb"] / first["peak_mb"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=10_000, help="of 1 x; below 10,000 β's own sample is not full")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--annotate", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--list", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.annotate:
        return annotate_and_print(given.annotate[0], given.annotate[1], given.workers)
    if given.list:
        return list_and_print(int(given.list[0]), Path(given.list[1]))
    with tempfile.TemporaryDirectory() as name:
        lists = [in_a_process("--list", count, Path(name) / f"list{count}") for count in LISTS]
        figures = {"lists": lists} | growth(given.samples, given.rounds, given.workers, Path(name))
    if given.json:
        print(json.dumps(figures, indent=1))
        return None
    for name, value in figures.items():
        for line in value if isinstance(value, list) else [value]:
            shown = (
                {k: round(v, 1) if isinstance(v, float) else v for k, v in line.items()}
                if isinstance(line, dict)
                else line
            )
            goal = f"goal ≤ {GOALS[name]}" if name in GOALS else ""
            print(f"{name:20} {shown if isinstance(shown, dict) else f'{shown:8.3f}'}  {goal}")
    return None


if __name__ == "__main__":
    main()
