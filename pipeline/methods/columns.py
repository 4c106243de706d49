"""Columns of methods for a whole run, from its kept embeddings: `noisegate rescore --with`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np

from noisegate.pipeline.errors import ConfigError, TableError
from noisegate.pipeline.neighbours import NeighbourSearch
from noisegate.pipeline.neighbours.disk_search import find_or_build_graph
from noisegate.pipeline.pairs.pair_pool import POOL, draw_pairs
from noisegate.pipeline.runs.rows import MappedRows, RowBlocks, Rows
from noisegate.pipeline.runs.table import RunFolder, digest_columns, read_metadata, replace_columns
from noisegate.pipeline.system.array_types import Float32

from .joined import joined_columns
from .pair_batches import check_batches

FILTERS = ("negcliploss", "csls", "normsim", "semdedup")
"""scores of `filters`, which depend on the whole run or on target pictures, not on batches"""
METHODS = ("lnc", "crcl", "gsl")
"""methods with columns that need no training: NAME_columns of the module NAME here, loaded late because it imports torch"""
RECORD = "one_step"
"""key of the tables' metadata that says how the columns were made, by method"""
HELD_NUMBERS = 2**29
"""of either side, kept in memory: a million rows of 512; larger runs are read for one batch at a time"""


@dataclass(frozen=True)
class OneStep:
    """Which columns, in what batches. `temperature` is the τ of CRCL and negCLIPLoss; None: `default_temperature` of the run.

    `target` names NormSim's target pictures (a folder of pictures, a run, a .npy), `norm` is its p, 2 or inf; `trust` allows
    the run's recorded model to encode them. `join` is a file of scores made elsewhere.
    """

    methods: tuple[str, ...] = ()
    batch: int = 128
    permutations: int = 5
    temperature: float | None = None
    target: Path | None = None
    norm: float = float("inf")
    trust: bool = False
    join: Path | None = None

    def __post_init__(self) -> None:
        for name in self.methods:
            if name not in METHODS + FILTERS:
                raise ConfigError.of("with", name, f"is unknown; use some of {','.join(METHODS + FILTERS)}")
        if ("normsim" in self.methods) != (self.target is not None):
            problem = "needs target pictures; add --target FOLDER" if self.target is None else "is that of normsim"
            raise ConfigError.of("target", str(self.target or "normsim"), problem)
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
    run: RunFolder,
    stems: Sequence[str],
    wanted: OneStep,
    seed: int,
    note: Callable[[str], None],
    search: NeighbourSearch | None = None,
    device: str = "auto",
) -> MethodColumns | None:
    """Compute the columns of all pairs of the run; no table is changed. None where nothing is wanted."""
    if not wanted.methods and wanted.join is None:
        return None
    columns: dict[str, Float32] = {}
    records: dict[str, dict[str, Any]] = {}
    if wanted.join is not None:
        made, record = joined_columns(run, stems, wanted.join)
        columns |= made
        records["join"] = record | {"columns": digest_columns(made)}
        note(f"join: {', '.join(made)} for {record['samples']:,} of {len(next(iter(made.values()))):,} samples")
    if not wanted.methods:
        return MethodColumns(columns, records)
    images, texts = _read_rows(run, stems, "image"), _read_rows(run, stems, "text")
    if not set(wanted.methods) <= {"normsim", "semdedup"} and (images.width != texts.width or not images.width):
        raise TableError.of(
            "with",
            ",".join(wanted.methods),
            f"compares pairs of one width, and {run.path} has {images.width} and {texts.width}; use a run of one model",
        )
    temperature = wanted.temperature or default_temperature(run.read_run() or {})
    for name in wanted.methods:
        if name in FILTERS:
            made, record = _compute_filter(
                name, run, stems, images, texts, wanted, temperature, seed, note, search, device
            )
            columns |= made
            records[name] = record | {"columns": digest_columns(made)}
            note(f"{name}: {', '.join(f'{key} {value}' for key, value in record.items())}")
            continue
        module = import_module(f".{name}", __package__)
        record = {"batch": wanted.batch, "permutations": wanted.permutations, "seed": seed}
        if name == "crcl":
            record["temperature"] = temperature
        made = getattr(module, f"{name}_columns")(images, texts, **record)
        columns |= made
        if name == "gsl":
            record["note"] = module.RECONSTRUCTION
        records[name] = record | {"columns": digest_columns(made)}
        note(f"{name}: {_describe(made, record)}")
    return MethodColumns(columns, records)


def _compute_filter(
    name: str,
    run: RunFolder,
    stems: Sequence[str],
    images: Rows,
    texts: Rows,
    wanted: OneStep,
    temperature: float,
    seed: int,
    note: Callable[[str], None],
    search: NeighbourSearch | None,
    device: str,
) -> tuple[dict[str, Float32], dict[str, Any]]:
    """The columns of one of FILTERS, and how they were made."""
    from . import filters

    if name == "normsim":
        assert wanted.target is not None  # OneStep checks it
        targets = filters.read_targets(wanted.target, run.read_run() or {}, wanted.trust)
        record = {"target": wanted.target.name, "targets": len(targets), "norm": str(wanted.norm)}
        return filters.normsim_columns(images, targets, wanted.norm), record
    if name == "semdedup":
        mapped = MappedRows.of_run(run, stems, "image")
        k = filters.DEDUP_NEIGHBOURS
        graph = find_or_build_graph(run, stems, mapped, k, device, search, note)
        order = np.concatenate([run.read(stem, ["similarity"])["similarity"].to_numpy() for stem in stems])
        return filters.semdedup_columns(graph, order.astype(np.float32)), {"k": k}
    places, rows = draw_pairs(run, stems, POOL, seed)
    lengths = [read_metadata(run.table(stem))["shard"]["rows"] for stem in stems]
    pool = np.cumsum([0, *lengths])[places] + rows
    record = {"pool": len(pool), "seed": seed}
    if name == "csls":
        return filters.csls_columns(images, texts, pool), record | {"k": filters.CSLS_NEIGHBOURS}
    made = filters.negcliploss_columns(images, texts, pool, temperature)
    return made, record | {"temperature": temperature}


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
