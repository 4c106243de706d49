"""Predict what annotating all shards takes from what was measured on some of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy import stats

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.pairs.pair_pool import POOL

from .devices import DEVICES, LEAST_GFLOPS, PAPER, PAPER_GFLOPS, Machine, paper_rate
from .measure import Measurements


@dataclass(frozen=True)
class Estimate:
    """A value and half of its 95 % interval; nan if there is only one measurement."""

    value: float
    half: float = 0.0

    def times(self, other: "Estimate") -> "Estimate":
        """Multiply; relative errors add as squares."""
        value = self.value * other.value
        parts = [part.half / part.value if part.value else 0.0 for part in (self, other)]
        return Estimate(value, abs(value) * math.hypot(*parts))

    def plus(self, other: "Estimate") -> "Estimate":
        return Estimate(self.value + other.value, math.hypot(self.half, other.half))

    def scaled(self, factor: float) -> "Estimate":
        return Estimate(self.value * factor, self.half * factor)

    def to_dict(self) -> dict[str, float | None]:
        """As JSON values with both ends of the interval, None if unknown."""
        known = math.isfinite(self.half)
        ends = (max(0.0, self.value - self.half), self.value + self.half) if known else (None, None)
        return {"value": self.value, "low": ends[0], "high": ends[1]}


def ratio(amounts: Sequence[float], counts: Sequence[float]) -> Estimate:
    """Σ amounts / Σ counts with the interval of a ratio over batches of unequal size (Student's t).

    >>> ratio([2.0, 4.0], [1, 2])
    Estimate(value=2.0, half=0.0)
    >>> ratio([3.0], [2])
    Estimate(value=1.5, half=nan)
    """
    pairs = [(amount, count) for amount, count in zip(amounts, counts, strict=True) if count > 0]
    if not pairs:
        return Estimate(0.0, math.nan)
    a, c = np.array(pairs, dtype=np.float64).T
    value, n = float(a.sum() / c.sum()), len(a)
    if n < 2:
        return Estimate(value, math.nan)
    error = math.sqrt(float(((a - value * c) ** 2).sum()) / (n * (n - 1))) / float(c.mean())
    return Estimate(value, float(stats.t.ppf(0.975, n - 1)) * error)


def advice(limit: str, busiest: str, needed: int, machine: Machine) -> list[str]:
    """List flags that would make the run faster, by the limiting stage and the stage that uses most of the processors."""
    if limit == "read":
        return ["the store is the limit: bring the shards nearer, or read from several hosts (--nodes N --node-rank R)"]
    if limit == "decode" and machine.workers < min(needed, machine.processors):
        return [f"--workers {min(needed, machine.processors)}: decoding is the limit, and processors are free"]
    if limit == "decode" or (limit == "processors" and busiest == "decode"):
        return [
            f"{needed:,} decode workers would keep up with the device; here are {machine.processors:,} processors",
            "--draft decodes large JPEGs at a part of their size",
            "more hosts: --engine ray, or --nodes N --node-rank R",
        ]
    if machine.device == "cpu":
        return ["the model is the limit: a GPU (--device cuda) does the same much faster"]
    return [
        "the model is the limit, as it should be: more devices share the shards, with --devices all, or --engine ray"
    ]


def assumptions(
    measured: Measurements, shards: int, machine: Machine, neighbours: int, process_seconds: float
) -> list[str]:
    """List the assumptions of the forecast; `process_seconds`: one process's time per sample to read, tokenise and write."""
    read, whole = len(measured.shards_read), all(shard.whole for shard in measured.shards_read)
    lines = []
    if not (read == shards and whole):
        lines.append(
            f"the other shards are like the {read:,} looked into"
            + ("" if len(measured.sizes) >= shards else f"; sizes were asked of {len(measured.sizes):,}")
        )
    lines.append("this machine stays as busy as it was just now; intervals are 95 % over batches, not over other days")
    lines.append(
        "reading, decoding and encoding overlap; decode workers do not slow one another while processors are free"
    )
    lines.append(
        "tables and embeddings were packed in memory: the disk's own time is not in it, nor is loading the model"
    )
    given = "given" if machine.price_given else "assumed; give yours with --price 1.20"
    lines.append(f"this machine costs {machine.price:.2f} an hour ({given})")
    if measured.gflops and measured.gflops < LEAST_GFLOPS:
        lines.append(
            f"this model takes {measured.gflops:.2g} GFLOP per sample, too little to fill a GPU: known devices are left out"
        )
        return lines
    lines.append(
        f"known devices: OSA's own figure, a billion pairs in 75 hours on an {PAPER.name}, times the makers' dense 16-bit "
        "matrix throughput over its 71 TFLOPS: an estimate, nothing was run there"
    )
    if measured.gflops:
        lines.append(
            f"this model takes {measured.gflops:.1f} GFLOP per sample (counted by torch; attention's own products may be "
            f"missing), the paper's {PAPER_GFLOPS}"
        )
    else:
        lines.append("torch cannot count this model's operations: known devices are for ViT-B-32, the paper's")
    rate = 1 / max(process_seconds, 1e-9)
    lines.append(
        "their prices per hour are assumptions too (--price A100=1.80), and they need the decode workers and the encoder "
        f"processes in the table: one process reads, tokenises and writes about {rate:,.0f} samples/s; "
        "--devices cuda:0,cuda:0 are two on one GPU"
    )
    if neighbours:
        lines.append(
            f"labels: {neighbours} neighbours per row are stored; the neighbour search itself is not in the time, it grows "
            "faster than the data (docs/scale.md)"
        )
    return lines


@dataclass(frozen=True)
class Stage:
    """Seconds per sample of one stage, and the thread, process or device that does it."""

    name: str
    seconds: Estimate
    by: str


@dataclass(frozen=True)
class Disk:
    """Bytes that a run writes, without the shards themselves."""

    tables: float
    embeddings: float
    neighbours: float

    @property
    def total(self) -> float:
        return self.tables + self.embeddings + self.neighbours


@dataclass(frozen=True)
class DeviceForecast:
    """The whole set on one known device: an estimate from published figures, not measured.

    `workers_needed` to decode and `processes_needed` to read, tokenise and write keep the device busy.
    """

    name: str
    hours: float
    price: float
    money: float
    samples_per_second: float
    workers_needed: int
    processes_needed: int
    measured_by_paper: bool


@dataclass(frozen=True)
class RunForecast:
    """The prediction for all shards. `limit` is the stage that sets the pace; `workers_needed` keep up with the device."""

    model: str
    shards: int
    bytes: Estimate
    samples: Estimate
    looked_at: Mapping[str, float]
    failed_share: float
    stages: tuple[Stage, ...]
    machine: Machine
    seconds: Estimate
    limit: str
    workers_needed: int
    money: Estimate
    disk: Disk
    devices: tuple[DeviceForecast, ...]
    gflops_per_sample: float | None
    advice: tuple[str, ...]
    assumptions: tuple[str, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values: seconds, bytes and the price's currency; estimates as value, low, high."""
        return {
            **asdict(self),
            **{name: getattr(self, name).to_dict() for name in ("bytes", "samples", "seconds", "money")},
            "stages": [{"name": s.name, "seconds_per_sample": s.seconds.to_dict(), "by": s.by} for s in self.stages],
            "samples_per_second": self.samples.value / self.seconds.value if self.seconds.value else None,
            "disk": asdict(self.disk) | {"total": self.disk.total},
        }


def forecast_run(
    measured: Measurements,
    model: str,
    shards: int,
    machine: Machine,
    neighbours: int = 0,
    keep_embeddings: bool = True,
    prices: Mapping[str, float] | None = None,
) -> RunForecast:
    """Predict time, disk and money for all `shards`. `neighbours`: per row of the graph, 0 for none."""
    size, samples = _totals(measured, shards)
    if samples.value < 1:
        raise ConfigError.of("shards", shards, "hold hardly any samples; is this the right list of shards?")
    per_shard = samples.value / shards
    stages = _stages(measured, per_shard)
    pace, limit = _pace(stages, machine)
    tokens = ratio([batch.tokens for batch in measured.batches], [batch.samples for batch in measured.batches])
    process_seconds = stages["read"].seconds.value + tokens.value + stages["write"].seconds.value
    devices = _forecast_devices(samples.value, stages, process_seconds, measured.gflops, prices or {})
    compared = Estimate(measured.quality * min(1.0, samples.value / POOL))  # on the CPU; negligible on a GPU
    stages["score"] = replace(stages["score"], seconds=stages["score"].seconds.plus(compared))
    total = pace.plus(stages["score"].seconds).times(samples)
    decode, device = stages["decode"].seconds.value, stages["encode"].seconds.value + stages["write"].seconds.value
    busy = stages["encode"].seconds.value * machine.threads
    needed = max(1, math.ceil(decode / max(stages["read"].seconds.value, device, 1e-12)))
    row = (measured.table_bytes - measured.table_start) / measured.rows
    disk = Disk(
        tables=samples.value * row + shards * measured.table_start,
        embeddings=samples.value * 2 * 2 * measured.width if keep_embeddings else 0.0,
        neighbours=samples.value * neighbours * (8 if samples.value < 2**31 else 12),
    )
    looked_at = {
        "shards": len(measured.shards_read),
        "samples": sum(shard.samples for shard in measured.shards_read),
        "bytes": sum(shard.bytes for shard in measured.shards_read),
        "seconds": measured.seconds,
    }
    return RunForecast(
        model=model,
        shards=shards,
        bytes=size,
        samples=samples,
        looked_at=looked_at,
        failed_share=measured.failed / looked_at["samples"],
        stages=tuple(stages.values()),
        machine=machine,
        seconds=total,
        limit=limit,
        workers_needed=needed,
        money=total.scaled(machine.price / 3600),
        disk=disk,
        devices=devices,
        gflops_per_sample=measured.gflops,
        advice=tuple(advice(limit, "decode" if decode > busy else "encode", needed, machine)),
        assumptions=tuple(assumptions(measured, shards, machine, neighbours, process_seconds)),
        notes=tuple(measured.notes),
    )


def _totals(measured: Measurements, shards: int) -> tuple[Estimate, Estimate]:
    """Extrapolate bytes and samples of all shards from the measured shards."""
    mean = ratio(measured.sizes, [1] * len(measured.sizes))
    size = Estimate(float(sum(measured.sizes))) if len(measured.sizes) == shards else mean.scaled(shards)
    read = measured.shards_read
    if len(read) == shards and all(shard.whole for shard in read):
        return size, Estimate(float(sum(shard.samples for shard in read)))
    density = ratio([shard.samples for shard in read], [shard.bytes for shard in read])
    return size, density.times(size)


def _stages(measured: Measurements, per_shard: float) -> dict[str, Stage]:
    batches, rows = measured.batches, measured.rows
    counts = [batch.samples for batch in batches]
    opening = float(np.mean([shard.opening for shard in measured.shards_read])) / per_shard

    def at_once(repeats: Sequence[float], start: float) -> Estimate:
        each = ratio([max(0.0, seconds - start) for seconds in repeats], [rows] * len(repeats))
        return each.plus(Estimate(start / per_shard))

    read = ratio([batch.read for batch in batches], [batch.read_samples for batch in batches])
    timed = (
        Stage("read", read.plus(Estimate(opening)), "the reading thread"),
        Stage("decode", ratio([batch.decode for batch in batches], counts), "each decode worker"),
        Stage("encode", ratio([batch.encode for batch in batches], counts), "the device"),
        Stage("write", at_once(measured.write, measured.write_start), "the encoder's process"),
        Stage("score", at_once(measured.score, measured.score_start), "when all is encoded"),
    )
    return {stage.name: stage for stage in timed}


def _pace(stages: Mapping[str, Stage], machine: Machine) -> tuple[Estimate, str]:
    """Compute the seconds per sample while encoding, and the limiting stage."""
    read, decode, encode, write = (stages[name].seconds for name in ("read", "decode", "encode", "write"))
    if machine.workers == 0:
        whole = read.plus(decode).plus(encode).plus(write)
        return whole, max(("read", read), ("decode", decode), ("encode", encode), key=lambda stage: stage[1].value)[0]
    busy = read.plus(decode).plus(write).plus(encode.scaled(machine.threads)).scaled(1 / machine.processors)
    candidates = {
        "read": read,
        "decode": decode.scaled(1 / machine.workers),
        "encode": encode.plus(write),
        "processors": busy,
    }
    limit = max(candidates, key=lambda name: candidates[name].value)
    return candidates[limit], limit


def _forecast_devices(
    samples: float,
    stages: Mapping[str, Stage],
    process_seconds: float,
    gflops: float | None,
    prices: Mapping[str, float],
) -> tuple[DeviceForecast, ...]:
    """Forecast every known device; `process_seconds` per sample is an encoder process's work on the CPU."""
    if gflops is not None and gflops < LEAST_GFLOPS:
        return ()
    forecasts = []
    for device in DEVICES:
        rate, price = paper_rate(device, gflops), prices.get(device.name, device.price)
        hours = (samples / rate + samples * stages["score"].seconds.value) / 3600
        workers = max(1, math.ceil(rate * stages["decode"].seconds.value))
        processes = max(1, math.ceil(rate * process_seconds))
        by_paper = device is PAPER and gflops is None
        forecasts.append(DeviceForecast(device.name, hours, price, hours * price, rate, workers, processes, by_paper))
    return tuple(forecasts)
