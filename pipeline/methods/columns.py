"""Columns of methods for a whole run, from its kept embeddings: `noisegate rescore --with`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import numpy as np

from noisegate.pipeline.errors import ConfigError, TableError
from noisegate.pipeline.runs.rows import MappedRows, RowBlocks, Rows
from noisegate.pipeline.runs.table import RunFolder, digest_columns, read_metadata, replace_columns
from noisegate.pipeline.system.array_types import Float32

from .pair_batches import check_batches

METHODS = ("lnc", "crcl", "gsl")
"""methods with columns that need no training: NAME_columns of the module NAME here, loaded late because it imports torch"""
RECORD = "one_step"
"""key of the tables' metadata that says how the columns were made, by method"""
HELD_NUMBERS = 2**29
"""of either side, kept in memory: a million rows of 512; larger runs are read for one batch at a time"""


@dataclass(frozen=True)
class OneStep:
    """Which methods' columns, in what batches. `temperature` is CRCL's τ; None: `default_temperature` of the run."""

    methods: tuple[str, ...] = ()
    batch: int = 128
    permutations: int = 5
    temperature: float | None = None

    def __post_init__(self) -> None:
        for name in self.methods:
            if name not in METHODS:
                raise ConfigError.of("with", name, f"is unknown; use some of {','.join(METHODS)}")
        check_batches(self.batch, self.permutations)
        if self.temperature is not None and not self.temperature > 0:
            raise ConfigError.of("temperature", self.temperature, "cannot divide cosines; use 0.05, or 0.01 for a CLIP")


@dataclass(frozen=True)
class MethodColumns:
    """Columns (rows of the run,) by name, and the record of how each method made its own."""

    columns: dict[str, Float32]
    records: dict[str, dict[str, Any]]


def default_temperature(run: Mapping[str, Any]) -> float:
    """0.01, CLIP's own, where open_clip's pretrained weights made the embeddings; 0.05 for all others."""
    model = run.get("model") or {}
    name = str(model.get("model", ""))
    others = name.startswith(("python:", "hf:")) or name == "embedded"
    return 0.01 if model.get("pretrained") and not others else 0.05


def compute_columns(
    run: RunFolder, stems: Sequence[str], wanted: OneStep, seed: int, note: Callable[[str], None]
) -> MethodColumns | None:
    """Compute the columns of all pairs of the run; no table is changed. None where no method is wanted."""
    if not wanted.methods:
        return None
    images, texts = _read_rows(run, stems, "image"), _read_rows(run, stems, "text")
    if images.width != texts.width or not images.width:
        raise TableError.of(
            "with",
            ",".join(wanted.methods),
            f"compares pairs of one width, and {run.path} has {images.width} and {texts.width}; use a run of one model",
        )
    columns: dict[str, Float32] = {}
    records: dict[str, dict[str, Any]] = {}
    for name in wanted.methods:
        module = import_module(f".{name}", __package__)
        record: dict[str, Any] = {"batch": wanted.batch, "permutations": wanted.permutations, "seed": seed}
        if name == "crcl":
            record["temperature"] = wanted.temperature or default_temperature(run.read_run() or {})
        made: dict[str, Float32] = getattr(module, f"{name}_columns")(images, texts, **record)
        columns |= made
        if name == "gsl":
            record["note"] = module.RECONSTRUCTION
        records[name] = record | {"columns": digest_columns(made)}
        note(f"{name}: {_describe(made, record)}")
    return MethodColumns(columns, records)


def write_columns(run: RunFolder, stems: Sequence[str], made: MethodColumns | None) -> None:
    """Write the columns into the run's tables, beside those of other methods that are there."""
    if made is None:
        return
    start = 0
    for stem in stems:
        metadata = read_metadata(run.table(stem))
        rows = slice(start, start + metadata["shard"]["rows"])
        start = rows.stop
        records = {**(metadata.get(RECORD) or {}), **made.records}
        if records == metadata.get(RECORD):
            continue
        columns = {name: values[rows] for name, values in made.columns.items()}
        run.write_table(stem, replace_columns(run.read(stem), columns, {**metadata, RECORD: records}))


def _read_rows(run: RunFolder, stems: Sequence[str], part: Literal["image", "text"]) -> Rows:
    """(N, d) of all shards, zeros for samples that failed; in memory unless larger than HELD_NUMBERS."""
    rows = MappedRows.of_run(run, stems, part)
    return rows if len(rows) * rows.width > HELD_NUMBERS else RowBlocks(rows.take(np.arange(len(rows))))


def _describe(columns: Mapping[str, Float32], record: Mapping[str, Any]) -> str:
    first, values = next(iter(columns.items()))
    known = values[~np.isnan(values)]
    share = f"{first} above 0.5 for {np.mean(known > 0.5):.1%} of {len(known):,} pairs" if len(known) else "no pairs"
    extra = f", τ = {record['temperature']:g}" if "temperature" in record else ""
    return f"{share} (batches of {record['batch']}, {record['permutations']} permutations{extra})" + (
        f"; {record['note']}" if "note" in record else ""
    )
