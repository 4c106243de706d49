"""The service under load: throughput over the offline job's on the same pairs, latencies, and what happens beyond capacity.

A real `noisegate serve` on loopback and a real `annotate` take turns in one run; clients send bodies that were made before.

    python -m benchmarks.service [--pairs 192] [--model ViT-B-32 --pretrained random:0] [--only hangs] [--json]

`service_load` measures clients beside one another and levels of load, `service_attacks` hangs and memory under attack.
"""

import argparse
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import service_attacks, service_load
from benchmarks.annotate import write_shards
from benchmarks.serving import BETA, bodies, latencies, load, serving
from noisegate.pipeline.annotate import annotate
from noisegate.pipeline.estimators import load_estimator

OVERLOAD_QUEUE = 64


def throughput(given: argparse.Namespace, folder: Path, pattern: str) -> dict[str, float]:
    """At saturation over offline, and latencies at low and at full load."""
    model = ["--model", given.model, *(["--pretrained", given.pretrained] if given.pretrained else [])]
    estimator = load_estimator(given.model, given.pretrained)
    ratios: list[float] = []
    figures: dict[str, float] = {}
    with serving(*model) as server:
        port = server.port
        load(port, bodies(pattern, 8)[:4], 2)  # warm
        for turn in range(given.rounds):
            summary = annotate(pattern, folder / f"out{turn}", estimator=estimator, beta=BETA)
            assert summary.pairs_per_second
            seconds, answers = load(port, bodies(pattern, 16), given.clients)
            scored = sum(n for _, _, n in answers)
            if scored != given.pairs // 2 * 2:
                raise SystemExit(f"{scored} of {given.pairs} pairs were scored: {Counter(a[0] for a in answers)}")
            ratios.append(scored / seconds / summary.pairs_per_second)
            figures["offline_pairs_per_second"] = summary.pairs_per_second
            figures["full_p50_ms"], figures["full_p99_ms"] = latencies(answers)
        _, answers = load(port, bodies(pattern, 1)[:60], 1)
        figures["low_p50_ms"], figures["low_p99_ms"] = latencies(answers)
    return {"service_over_offline": float(np.median(ratios)), **figures}


def overload(pattern: str) -> dict[str, float]:
    """Many clients against a short queue: every request is answered, or refused at once with a time to come back."""
    options = ("--model", "ViT-B-32", "--pretrained", "random:0")
    limits = ("--queue-items", str(OVERLOAD_QUEUE), "--max-items", "16")
    requests = bodies(pattern, 8) * 4
    with serving(*options, *limits) as server:
        port = server.port
        _, answers = load(port, requests, 48)
        alive = server.is_ready() or server.is_ready()
    codes = Counter(code for code, _, _ in answers)
    refused = [seconds for code, seconds, _ in answers if code in (429, 503)]
    return {
        "overload_sent": len(requests),
        "overload_answered": codes[200],
        "overload_refused": codes[429] + codes[503],
        "overload_hung_or_lost": len(requests) - codes[200] - codes[429] - codes[503],
        "overload_refusal_p99_ms": 1000 * float(np.quantile(refused, 0.99)) if refused else float("nan"),
        "overload_alive_after": float(alive),
    }


PARTS = ("throughput", "overload", "fairness", "load", "hangs", "memory")
GOALS = {
    "service_over_offline": "≥ 0.85",
    "overload_hung_or_lost": "0",
    "overload_alive_after": "1",
    **service_load.GOALS,
    **service_attacks.GOALS,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--model", default="ViT-B-32")
    parser.add_argument("--pretrained", default="random:0")
    parser.add_argument("--only", choices=PARTS, action="append", help="repeatable; default: all")
    parser.add_argument("--seconds", type=float, default=20, help="of each level of load")
    parser.add_argument("--memory-budget", default="1.5GB")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    model = ["--model", given.model, *(["--pretrained", given.pretrained] if given.pretrained else [])]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pattern = write_shards(folder / "shards", 2, given.pairs // 2, 640, 480)
        parts = {
            "throughput": lambda: throughput(given, folder, pattern),
            "overload": lambda: overload(pattern),
            "fairness": lambda: service_load.fairness(model, pattern, given.seconds),
            "load": lambda: service_load.levels(model, pattern, given.seconds),
            "hangs": lambda: service_attacks.hangs(model, pattern),
            "memory": lambda: service_attacks.memory(given.memory_budget),
        }
        figures: dict[str, Any] = {}
        for part in given.only or PARTS:
            found = parts[part]()
            figures |= found
            if not given.json:
                print_figures(part, found)
    if given.json:
        print(json.dumps(figures))


def print_figures(part: str, figures: dict[str, Any]) -> None:
    print(f"# {part}", flush=True)
    for name, value in figures.items():
        print(f"{name:34} {value:10.3f}  {('goal ' + GOALS[name]) if name in GOALS else ''}", flush=True)


if __name__ == "__main__":
    main()
