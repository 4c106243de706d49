"""What `noisegate annotate` takes until its encoder gets the first batch, over what the model alone takes to be there.

    python -m benchmarks.startup [--model embedded] [--pretrained TAG] [--rounds 5] [--json]

Both start in fresh processes, by turns, with their files in the system's cache: one imports torch and loads the model, the
other is the command on one shard of two small pictures with one decode worker. Seconds of processor time of that process,
and of the clock. `imported` names heavy libraries that the command had imported by then and the model had not.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.annotate import write_shards

HEAVY = (
    "pandas",
    "sklearn",
    "scipy.stats",
    "timm",
    "transformers",
    "torch._dynamo",
    "faiss",
    "ray",
    "datasets",
    "fsspec",
)
REPORT = """
def report():
    heavy = [name for name in {heavy!r} if name in sys.modules]
    print("startup:", json.dumps({{"cpu": time.process_time(), "imported": heavy}}), flush=True)
    os._exit(0)
"""
MODEL = """
import json, os, sys, time
import torch
from noisegate.pipeline.estimators import load_estimator
load_estimator({model!r}, {pretrained!r}, device="cpu")
report()
"""
COMMAND = """
import json, os, sys, time
from noisegate.pipeline.cli import main
import noisegate.pipeline.engines.shard_task as task
task.encode_samples = lambda *_: report()
sys.argv[1:] = ["annotate", {shards!r}, "--out", {out!r}, "--workers", "1", "--model", {model!r}, *{more!r}]
main()
"""


def run(program: str) -> dict[str, Any]:
    """Seconds of a fresh process until it reports, and what it had imported."""
    code = REPORT.format(heavy=HEAVY) + program
    environment = {**os.environ, "NOISEGATE_EMBED_ONLY": "1", "OMP_NUM_THREADS": "1"}
    began = perf_counter()
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("startup:")]
    if not lines:
        raise SystemExit(f"it did not report:\n{done.stderr[-2000:]}")
    return {"wall": perf_counter() - began, **json.loads(lines[0].removeprefix("startup:"))}


def compare(model: str, pretrained: str | None, rounds: int, folder: Path) -> dict[str, Any]:
    shards = write_shards(folder / "shards", 1, 2, 64, 64)
    more = ["--pretrained", pretrained] if pretrained else []
    alone = MODEL.format(model=model, pretrained=pretrained)
    sides: dict[str, list[dict[str, Any]]] = {"model": [], "command": []}
    for turn in range(rounds + 1):
        command = COMMAND.format(shards=shards, out=str(folder / f"out{turn}"), model=model, more=more)
        for name, program in (("model", alone), ("command", command)):
            found = run(program)
            if turn:  # the first fills the system's cache
                sides[name].append(found)
    median = {n: {k: float(np.median([t[k] for t in turns])) for k in ("cpu", "wall")} for n, turns in sides.items()}
    return {
        **{f"{name}_{kind}": value for name, kinds in median.items() for kind, value in kinds.items()},
        "command_over_model_cpu": median["command"]["cpu"] / median["model"]["cpu"],
        "command_over_model_wall": median["command"]["wall"] / median["model"]["wall"],
        "imported": sorted(set(sides["command"][0]["imported"]) - set(sides["model"][0]["imported"])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--pretrained")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = compare(given.model, given.pretrained, given.rounds, Path(name))
    if given.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:28} {value if isinstance(value, list) else format(value, '8.2f')}")


if __name__ == "__main__":
    main()
