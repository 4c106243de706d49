"""Columns of methods for a whole run, from its kept embeddings: `noisegate rescore --with`."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from noisegate.pipeline.errors import ConfigError, TableError
from noisegate.pipeline.runs.mapped_rows import MappedRows
from noisegate.pipeline.runs.rows import RowBlocks, Rows
from noisegate.pipeline.runs.table import RunFolder, read_metadata, replace_columns
from noisegate.pipeline.system.array_types import Float32

from .crcl import crcl_columns
from .galc import RECONSTRUCTION
from .gsl import gsl_columns
from .lnc import lnc_columns

__all__ = ["METHODS", "Found", "OneStep", "learn_columns", "usual_temperature", "write_columns"]

METHODS: Mapping[str, Callable[..., dict[str, Float32]]] = {
    "lnc": lnc_columns,
    "crcl": crcl_columns,
    "gsl": gsl_columns,
}
"""Every method that can say something before training, by name."""
RECORD = "one_step"
"""the tables' metadata of these columns, by method"""
HELD = 2**29
"""numbers of either side that are held in memory: a million rows of 512; more are read for one batch at a time"""


@dataclass(frozen=True)
class OneStep:
    """Which methods' columns, in what batches. `temperature` is CRCL's τ; None: `usual_temperature` of the run."""

    methods: tuple[str, ...] = ()
    batch: int = 128
    permutations: int = 5
    temperature: float | None = None

    def __post_init__(self) -> None:
        for name in self.methods:
            if name not in METHODS:
                raise ConfigError(f"with {name!r} is unknown; use some of {','.join(METHODS)}")
        if self.batch < 2 or self.permutations < 1:
            raise ConfigError(f"batch {self.batch}, permutations {self.permutations}: use 128 and 5, at least 2 and 1")
        if self.temperature is not None and not self.temperature > 0:
            raise ConfigError(f"temperature {self.temperature} cannot divide cosines; use 0.05, or 0.01 for a CLIP")


@dataclass(frozen=True)
class Found:
    """Columns (rows of the run,) and what is recorded of each method."""

    columns: dict[str, Float32]
    records: dict[str, dict[str, Any]]


def usual_temperature(run: Mapping[str, Any]) -> float:
    """0.01, CLIP's own, where open_clip's pretrained weights made the embeddings; 0.05 for all others (METHODS 10)."""
    model = run.get("model") or {}
    name = str(model.get("model", ""))
    others = name.startswith(("python:", "hf:")) or name == "embedded"
    return 0.01 if model.get("pretrained") and not others else 0.05


def learn_columns(
    run: RunFolder, stems: Sequence[str], wanted: OneStep, seed: int, note: Callable[[str], None]
) -> Found | None:
    """What the methods say of all pairs of the run; no table is changed. None where no method is asked for."""
    if not wanted.methods:
        return None
    images, texts = _rows(run, stems, "image"), _rows(run, stems, "text")
    if images.width != texts.width or not images.width:
        raise TableError(
            f"{run.path}: --with {','.join(wanted.methods)} compares images with texts in one space, and these have "
            f"{images.width} and {texts.width} numbers; use a run of pairs by one model"
        )
    columns: dict[str, Float32] = {}
    records: dict[str, dict[str, Any]] = {}
    for name in wanted.methods:
        record: dict[str, Any] = {"batch": wanted.batch, "permutations": wanted.permutations, "seed": seed}
        if name == "crcl":
            record["temperature"] = wanted.temperature or usual_temperature(run.read_run() or {})
        found = METHODS[name](images, texts, **record)
        columns |= found
        if name == "gsl":
            record["note"] = RECONSTRUCTION
        records[name] = record | {"columns": _digest(found)}
        note(f"{name}: {_described(name, found, record)}")
    return Found(columns, records)


def write_columns(run: RunFolder, stems: Sequence[str], found: Found | None) -> None:
    """Put them into the tables, beside those of other methods that are there."""
    start = 0
    for stem in stems if found is not None else ():
        assert found is not None
        metadata = read_metadata(run.table(stem))
        rows = slice(start, start + metadata["shard"]["rows"])
        start = rows.stop
        records = {**(metadata.get(RECORD) or {}), **found.records}
        if records == metadata.get(RECORD):
            continue
        columns = {name: values[rows] for name, values in found.columns.items()}
        run.write_table(stem, replace_columns(run.read(stem), columns, {**metadata, RECORD: records}))


def _rows(run: RunFolder, stems: Sequence[str], part: Literal["image", "text"]) -> Rows:
    """(N, d) of all shards, zeros for samples that failed; in memory where that is not too much."""
    rows = MappedRows.of_run(run, stems, part)
    return rows if len(rows) * rows.width > HELD else RowBlocks(rows.take(np.arange(len(rows))))


def _digest(columns: Mapping[str, Float32]) -> str:
    """Of the values of the whole run, so that tables of two makings are told apart."""
    digest = hashlib.sha256()
    for name in sorted(columns):
        digest.update(name.encode() + np.ascontiguousarray(columns[name]).tobytes())
    return digest.hexdigest()[:16]


def _described(name: str, columns: Mapping[str, Float32], record: Mapping[str, Any]) -> str:
    first, values = next(iter(columns.items()))
    known = values[~np.isnan(values)]
    share = f"{first} above 0.5 for {np.mean(known > 0.5):.1%} of {len(known):,} pairs" if len(known) else "no pairs"
    extra = f", τ = {record['temperature']:g}" if "temperature" in record else ""
    return f"{share} (batches of {record['batch']}, {record['permutations']} permutations{extra})" + (
        f"; {record['note']}" if "note" in record else ""
    )
