"""Predict time, disk and money for a set of shards (`noisegate plan`), and list the assumptions.

`measure` times every stage on some of the shards, `predict` extrapolates to all, `devices` describes this machine and
known GPUs.

Reading, decoding and encoding overlap, so that the slowest stage sets the pace; scoring follows when all is encoded:

    seconds per sample = max(read, decode / workers, encode + write, all work / processors) + score
"""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators import as_estimator
from noisegate.pipeline.settings import DecodeOptions
from noisegate.pipeline.shards.locate import find_shards
from noisegate.pipeline.shards.workers import default_workers

from .devices import DEVICES, Machine, this_machine
from .measure import Clock, measure
from .predict import RunForecast, forecast_run

__all__ = ["Machine", "RunForecast", "forecast_run", "plan"]

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
) -> RunForecast:
    """Measure some shards for about `seconds` and predict what annotating all of them takes; nothing is written.

    `estimator` as for `annotate`; `prices` per hour by device name, `here` for this one. Raises ConfigError or ShardError if
    nothing can be measured.
    """
    if seconds <= 0:
        raise ConfigError(f"seconds {seconds:g} is no time to measure; use 10", "seconds", seconds)
    if workers is not None and workers < 0:
        raise ConfigError.of("workers", workers, "is not a number of processes; use 0 (none) or more")
    known = {"here", *(device.name for device in DEVICES)}
    if unknown := sorted(set(prices or {}) - known):
        raise ConfigError.of("price", unknown[0], f"is of no known device; use {', '.join(sorted(known))}")
    located = find_shards(shards)
    options = options or DecodeOptions()
    model = as_estimator(estimator)
    measured = measure(located, model, options, seconds, clock)
    machine = this_machine(device, default_workers() if workers is None else workers, (prices or {}).get("here"))
    neighbours = (k or LABEL_NEIGHBOURS) if "labels" in options.tasks else 0
    return forecast_run(
        measured, model.identity.model, len(located), machine, neighbours, keep_embeddings, prices or {}
    )
