"""What OSA costs over plain training: time per step, then what the table costs while loading (benchmarks.train_data).

    python -m benchmarks.train [--rounds 40] [--batch-size 64] [--model embedded] [--steps-only] [--json]

Both methods train the same network on the same batches, already in memory, in turns in one process, as processor time; the
ratio is that of the lower quartiles, with the baseline against itself beside it. A step is the loop's own: forward, backward,
clipping and AdamW.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from noisegate import annotate, load_estimator
from noisegate.pipeline.datasets.scenes import write_scenes
from noisegate.pipeline.system.progress import Progress
from noisegate.trainers.config import TrainConfig, build_method
from noisegate.trainers.data import Batch, WeightedShards
from noisegate.trainers.loop.loop import Loop
from noisegate.trainers.loop.run_context import PICTURE, RunContext, Streams
from noisegate.trainers.loop.run_folder import TrainFolder
from noisegate.trainers.losses import weighted
from noisegate.trainers.methods.osa import Osa
from noisegate.trainers.targets import build_target

LIMIT = 1.01
METHODS = ("baseline", "osa")


def loop_of(name: str, folder: Path, model: str, batch_size: int) -> tuple[Loop, list[Batch]]:
    """A loop about to train by a method, and an epoch's batches for it."""
    config = TrainConfig.parse(
        {
            "data": {"shards": [str(folder / "shards")], "table": str(folder / "run"), "batch_size": batch_size},
            "target": {"name": "clip", "model": model},
            "method": {"name": name},
            "loop": {"device": "cpu"},
        }
    )
    method, target = build_method(config), build_target(config.target)
    data = WeightedShards(
        config.data.shards,
        config.data.table,
        batch_size=batch_size,
        columns=method.columns(),
        image=target.image_transform(True),
        text=target.tokenizer,
        fields=(PICTURE,),
    )
    fabric = Fabric(accelerator="cpu", devices=1)
    context = RunContext(config, [target], data, fabric.device, 1, lambda text: None)
    streams = Streams(data, 0)
    loop = Loop(config, fabric, method, [target], context, streams, TrainFolder(folder), None, Progress(), None, "rsum")
    method.start(context)
    target.train()
    return loop, list(data)


def step(loop: Loop, batch: Batch) -> float:
    """Seconds of one update."""
    began = time.process_time()
    loss, _ = loop.backward({"all": batch})
    loop.update()
    assert loss is not None
    return time.process_time() - began


def step_ratio(folder: Path, model: str, batch_size: int, rounds: int) -> dict[str, float]:
    """Two loops of each method, so that the baseline against itself shows how far the ratio can be trusted."""
    names = [(name, copy) for copy in (0, 1) for name in METHODS]
    loops = {name: loop_of(name[0], folder, model, batch_size) for name in names}
    taken: dict[tuple[str, int], list[float]] = {name: [] for name in names}
    for turn in range(rounds + 2):
        first = turn % len(names)
        order = [*names[first:], *names[:first]]
        for name in order if turn % 2 else reversed(order):
            loop, batches = loops[name]
            taken[name].append(step(loop, batches[turn % len(batches)]))
    middle = {name: _typical(times[2:]) for name, times in taken.items()}  # the first two warm up
    baseline, osa = (_typical([*taken[name, 0][2:], *taken[name, 1][2:]]) for name in METHODS)
    return {
        "ratio": osa / baseline,
        "baseline_over_itself": middle["baseline", 1] / middle["baseline", 0],
        "baseline_ms": 1e3 * baseline,
        "osa_ms": 1e3 * osa,
        "added_ms": added_ms(loops["osa", 0][0], loops["osa", 0][1][0]),
        "rounds": rounds,
    }


def added_ms(loop: Loop, batch: Batch, times: int = 300) -> float:
    """Milliseconds of what only OSA does: take the weights, look whether there are any, weigh the losses, forward and back."""
    method = loop.method
    assert isinstance(method, Osa)
    each = torch.rand(len(batch), requires_grad=True)
    began = time.process_time()
    for _ in range(times):
        weight = method.weights(batch)
        assert int((weight > 0).sum())
        total = weighted(each, weight, mode=method.config.mode, mean_weight=method.mean_weight)
        assert total is not None
        total.backward()
    with_osa, began = time.process_time() - began, time.process_time()
    for _ in range(times):
        each.mean().backward()
    return 1e3 * (with_osa - (time.process_time() - began)) / times


def _typical(seconds: list[float]) -> float:
    """The lower quartile: what others do on the machine only ever adds."""
    return statistics.quantiles(seconds, n=4)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--steps-only", action="store_true", help="leave out benchmarks.train_data")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_scenes(folder / "shards", 4 * given.batch_size, 2, seed=0)
        annotate(
            sorted((folder / "shards").glob("*.tar")), folder / "run", estimator=load_estimator("embedded"), workers=0
        )
        found: dict[str, Any] = {"step": step_ratio(folder, given.model, given.batch_size, given.rounds)}
    if not given.steps_only:
        command = [sys.executable, "-m", "benchmarks.train_data", "--json"]
        ran = subprocess.run(
            command, check=False, stdout=subprocess.PIPE, text=True
        )  # 1: beyond its goal, which it says
        if ran.returncode > 1 or not ran.stdout:
            sys.exit(ran.returncode or 1)
        found["data"] = json.loads(ran.stdout)
    if given.json:
        print(json.dumps(found))
        return
    s = found["step"]
    print(f"time per step, osa over baseline: {s['ratio']:.4f} (goal at most {LIMIT})")
    print(f"  baseline over itself, for comparison: {s['baseline_over_itself']:.4f}")
    print(f"  {s['osa_ms']:.1f} ms and {s['baseline_ms']:.1f} ms of processor time, {s['rounds']} rounds in turns")
    print(f"  what only osa does, alone: {s['added_ms']:.3f} ms, {s['added_ms'] / s['baseline_ms']:.3%} of a step")
    for name, join in found.get("data", {}).get("join", {}).items():
        print(f"loading with the join over without, {name}: {join['ratio']:.4f}")
    if "data" in found:
        print(f"memory: {json.dumps(found['data']['memory'])}")


if __name__ == "__main__":
    main()
