"""What a whole set of shards will take, from a few seconds on some of them: time, disk and money, with the assumptions.

Reading, decoding and encoding overlap, so that the slowest of them sets the pace; scores follow when all is encoded:

    seconds per sample = max(read, decode / workers, encode + write, all work / processors) + score
"""

import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators import as_estimator
from noisegate.pipeline.shards.locate import find_shards
from noisegate.pipeline.shards.workers import DecodeOptions, default_workers
from noisegate.pipeline.system.processes import count_processors

from .devices import DEVICES, KnownDevice
from .measure import Clock, measure
from .predict import Machine, Plan, make_plan

__all__ = ["Machine", "Plan", "make_plan", "plan"]

CPU_PRICE = 0.05  # per processor and hour: an assumption
LABEL_NEIGHBOURS = 200  # default_k for large classes


def plan(
    shards: str | Path | Iterable[str | Path],
    *,
    estimator: Any,
    options: DecodeOptions | None = None,
    seconds: float = 10.0,
    workers: int | None = None,
    device: str | None = None,
    prices: Mapping[str, float] | None = None,
    k: int | None = None,
    keep_embeddings: bool = True,
    clock: Clock = time.perf_counter,
) -> Plan:
    """Look at some shards for about `seconds` and predict what annotating all of them takes; nothing is written.

    `estimator` as for `annotate`; `prices` per hour by device name, `here` for this one. Raises ConfigError or ShardError
    where nothing can be measured.
    """
    if seconds <= 0:
        raise ConfigError(f"seconds {seconds:g} is no time to measure; use 10", "seconds", seconds)
    if workers is not None and workers < 0:
        raise ConfigError(f"workers {workers} is not a number of processes; use 0 (none) or more", "workers", workers)
    known = {"here", *(one.name for one in DEVICES)}
    if unknown := sorted(set(prices or {}) - known):
        raise ConfigError(
            f"price of {unknown[0]!r}: no such device; use 1.20 for this one, or one of {', '.join(sorted(known))}",
            "price",
            unknown[0],
        )
    found = find_shards(shards)
    options = options or DecodeOptions()
    model = as_estimator(estimator)
    measured = measure(found, model, options, seconds, clock)
    machine = this_machine(device, default_workers() if workers is None else workers, (prices or {}).get("here"))
    neighbours = (k or LABEL_NEIGHBOURS) if "labels" in options.tasks else 0
    return make_plan(measured, model.identity.model, len(found), machine, neighbours, keep_embeddings, prices or {})


def this_machine(device: str | None, workers: int, price: float | None) -> Machine:
    """What this process may use."""
    available = count_processors()
    torch = sys.modules.get("torch")
    name = device or "auto"
    if name == "auto":
        name = "cuda" if torch is not None and torch.cuda.is_available() else "cpu"
    on_cpu = name == "cpu"
    threads = min(available, torch.get_num_threads()) if on_cpu and torch is not None else 1
    if price is not None:
        return Machine(name, workers, available, threads, price, True)
    named = _named(torch.cuda.get_device_name(name)) if name.startswith("cuda") and torch is not None else None
    return Machine(name, workers, available, threads, named.price if named else CPU_PRICE * available)


def _named(name: str) -> KnownDevice | None:
    """The known device that a driver's name means.

    >>> _named("NVIDIA A100-SXM4-80GB").name, _named("some other")
    ('A100', None)
    """
    words = name.replace("-", " ").upper().split()
    return next((one for one in DEVICES if all(word in words for word in one.name.upper().split())), None)
