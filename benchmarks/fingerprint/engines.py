"""The same job by other processes: decoding workers, several encoders, several nodes; and the commands that run it whole."""

import json
from pathlib import Path

from . import inputs
from .recorder import Recorder

__all__ = ["record_engines"]

PRESET = {
    "base": "scenes-retrieval",
    "summary": "A bench of seconds:",
    "data": {"train": 96, "held_out": 32},
    "updates": 4,
    "config": {"data": {"batch_size": 16}},
    "rates": [0.4],
    "seeds": [0],
    "methods": ["baseline", "osa", "oracle"],
}


def record_engines(recorder: Recorder) -> None:
    """Tables must not depend on who encodes."""
    shards = f"{inputs.noisy()}/*.tar"
    how: dict[str, tuple[object, ...]] = {
        "workers": ("--workers", 2),
        "devices": ("--workers", 0, "--devices", 2),
        "first-node": ("--workers", 0, "--nodes", 2, "--node-rank", 0),
        "second-node": ("--workers", 0, "--nodes", 2, "--node-rank", 1),
    }
    for name, words in how.items():
        out = Path("engine-nodes" if "node" in name else f"engine-{name}")
        # its text lists shards in the order in which they were done, which processes decide
        recorder.quiet(f"engines/{name}", "annotate", shards, "--out", out, "--quiet", "--json", *words)
        if name != "first-node":
            recorder.run(f"engines/{name}", out)
    recorder.command("engines/demo", "demo", "--out", "demo", "--count", 60, "--json")
    Path("tiny.yaml").write_text(json.dumps(PRESET), encoding="utf-8")
    recorder.quiet("engines/bench", "bench", "--preset", "tiny.yaml", "--jobs", 1, "--out", "bench", "--json")
