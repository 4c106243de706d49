"""Compute columns of methods for a whole run from its kept embeddings: `noisegate rescore --with`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np

from noisegate.pipeline.errors import ConfigError, TableError
from noisegate.pipeline.neighbours import NeighbourSearch
from noisegate.pipeline.neighbours.disk_search import find_or_build_graph
from noisegate.pipeline.pairs.calibration import QUALITY
from noisegate.pipeline.pairs.pair_pool import POOL, draw_pairs
from noisegate.pipeline.pairs.pair_quality import TEMPERATURE
from noisegate.pipeline.runs.rows import MappedRows, RowBlocks, Rows
from noisegate.pipeline.runs.table import RunFolder, digest_columns, read_metadata, replace_columns
from noisegate.pipeline.system.array_types import Float32, Index
from noisegate.pipeline.system.progress import counted

from . import filters
from .joined import joined_columns
from .pair_batches import check_batches

METHODS = ("lnc", "crcl", "gsl")
"""methods with columns that need no training: NAME_columns of the module NAME here, loaded late because it imports torch"""
RECORD = "one_step"
"""key of the tables' metadata that says how the columns were made, by method"""
HELD_NUMBERS = 2**29
"""most numbers of one side kept in memory: a million rows of 512; larger runs are read one batch at a time"""


@dataclass(frozen=True)
class OneStep:
    """Settings of the columns to compute.

    `temperature` is the τ of CRCL and negCLIPLoss; None means `default_temperature` of the run for CRCL, and the τ of the run's
    `pair_quality` for negCLIPLoss.

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

    @property
    def joins_only(self) -> bool:
        """Whether no column is computed from embeddings."""
        return self.join is not None and not self.methods

    def __post_init__(self) -> None:
        for name in self.methods:
            if name not in (*METHODS, *FILTERS):
                raise ConfigError.of("with", name, f"is unknown; use some of {','.join((*METHODS, *FILTERS))}")
        if "normsim" in self.methods and self.target is None:
            raise ConfigError("normsim needs target pictures; add --target with a folder, a run or a .npy", "target")
        if "normsim" not in self.methods:
            for name, value, unused in (("target", self.target, None), ("norm", self.norm, np.inf)):
                if value != unused:
                    raise ConfigError.of(name, value, "is for normsim; add --with normsim, or leave it out")
        check_batches(self.batch, self.permutations)
        if self.temperature is not None and not {"crcl", "negcliploss"} & set(self.methods):
            problem = "is for crcl and negcliploss; add --with crcl, or leave it out"
            raise ConfigError.of("temperature", self.temperature, problem)
        if self.temperature is not None and not self.temperature > 0:
            raise ConfigError.of("temperature", self.temperature, "cannot divide cosines; use 0.05, or 0.01 for a CLIP")


@dataclass(frozen=True)
class MethodColumns:
    """Columns (rows of the run,) by name, and for each method the record of how it made them."""

    columns: dict[str, Float32]
    records: dict[str, dict[str, Any]]


def default_temperature(run: Mapping[str, Any]) -> float:
    """Return 0.01, CLIP's own τ, if open_clip's pretrained weights made the embeddings; 0.05 for all others."""
    model = run.get("model") or {}
    name = str(model.get("model", ""))
    others = name.startswith(("python:", "hf:")) or name == "embedded"
    return 0.01 if model.get("pretrained") and not others else 0.05


@dataclass(frozen=True)
class MethodInputs:
    """Input of the methods: unit rows (N, d) of both sides in the order of `stems`, and the settings."""

    run: RunFolder
    stems: Sequence[str]
    images: Rows
    texts: Rows
    wanted: OneStep
    seed: int
    note: Callable[[str], None]
    search: NeighbourSearch | None
    device: str

    def draw_pool(self) -> Index:
        """Return the row numbers of the pool that pairs are compared with, the same as for `pair_quality`."""
        places, rows = draw_pairs(self.run, self.stems, POOL, self.seed)
        lengths = [read_metadata(self.run.table(stem))["shard"]["rows"] for stem in self.stems]
        starts: Index = np.cumsum([0, *lengths])[places]
        return starts + rows


Made = tuple[dict[str, Float32], dict[str, Any]]
"""columns (N,) by name, and the record of how they were made"""


def compute_columns(
    run: RunFolder,
    stems: Sequence[str],
    wanted: OneStep,
    seed: int,
    note: Callable[[str], None],
    search: NeighbourSearch | None = None,
    device: str = "auto",
) -> MethodColumns | None:
    """Compute the columns of all pairs of the run without changing tables; None if no column is wanted."""
    if not wanted.methods and wanted.join is None:
        return None
    all_made: dict[str, Made] = {}
    if wanted.join is not None:
        made, record = all_made["join"] = joined_columns(run, stems, wanted.join)
        note(f"join: {', '.join(made)} for {record['samples']:,} of {len(next(iter(made.values()))):,} samples")
    if wanted.methods:
        images, texts = _read_rows(run, stems, "image"), _read_rows(run, stems, "text")
        if not set(wanted.methods) <= {"normsim", "semdedup"} and (images.width != texts.width or not images.width):
            raise TableError.of(
                "with",
                ",".join(wanted.methods),
                f"compares pairs of one width, and {run.path} has {images.width} and {texts.width}; use a run of one model",
            )
        inputs = MethodInputs(run, stems, images, texts, wanted, seed, note, search, device)
        for name in wanted.methods:
            all_made[name] = FILTERS[name](inputs) if name in FILTERS else _run_method(name, inputs)
            note(f"{name}: {_describe(*all_made[name])}")
    return MethodColumns(
        {column: values for made, _ in all_made.values() for column, values in made.items()},
        {name: record | {"columns": digest_columns(made)} for name, (made, record) in all_made.items()},
    )


def _run_method(name: str, inputs: MethodInputs) -> Made:
    """Compute the columns of one of METHODS."""
    module = import_module(f".{name}", __package__)
    wanted = inputs.wanted
    record: dict[str, Any] = {"batch": wanted.batch, "permutations": wanted.permutations, "seed": inputs.seed}
    if name == "crcl":
        record["temperature"] = wanted.temperature or default_temperature(inputs.run.read_run() or {})
    made = getattr(module, f"{name}_columns")(inputs.images, inputs.texts, **record)
    return made, record | ({"note": module.RECONSTRUCTION} if name == "gsl" else {})


def _negcliploss(inputs: MethodInputs) -> Made:
    """Compute negCLIPLoss with the τ of the run's `pair_quality`: the model's own, else the one chosen on the data."""
    recorded = read_metadata(inputs.run.table(inputs.stems[0])).get(QUALITY) or {}
    temperature = inputs.wanted.temperature or recorded.get("temperature", TEMPERATURE)
    pool = inputs.draw_pool()
    made = filters.negcliploss_columns(inputs.images, inputs.texts, pool, temperature)
    return made, {"pool": len(pool), "seed": inputs.seed, "temperature": temperature}


def _csls(inputs: MethodInputs) -> Made:
    pool = inputs.draw_pool()
    made = filters.csls_columns(inputs.images, inputs.texts, pool)
    return made, {"pool": len(pool), "seed": inputs.seed, "k": filters.CSLS_NEIGHBOURS}


def _normsim(inputs: MethodInputs) -> Made:
    wanted = inputs.wanted
    assert wanted.target is not None  # OneStep checks it
    targets = filters.read_targets(wanted.target, inputs.run.read_run() or {}, wanted.trust, inputs.note)
    made = filters.normsim_columns(inputs.images, targets, wanted.norm)
    return made, {"target": wanted.target.name, "targets": len(targets), "norm": f"{wanted.norm:g}"}


def _semdedup(inputs: MethodInputs) -> Made:
    run, stems, k = inputs.run, inputs.stems, filters.DEDUP_NEIGHBOURS
    mapped = MappedRows.of_run(run, stems, "image")
    graph = find_or_build_graph(run, stems, mapped, k, inputs.device, inputs.search, inputs.note)
    order = np.concatenate([run.read(stem, ["similarity"])["similarity"].to_numpy() for stem in stems])
    return filters.semdedup_columns(graph, order.astype(np.float32)), {"k": k}


FILTERS: dict[str, Callable[[MethodInputs], Made]] = {
    "negcliploss": _negcliploss,
    "csls": _csls,
    "normsim": _normsim,
    "semdedup": _semdedup,
}
"""scores of `filters`, which depend on the whole run or on target pictures, not on batches"""


def write_columns(run: RunFolder, stems: Sequence[str], made: MethodColumns | None) -> None:
    """Write the columns into the run's tables; columns of other methods stay."""
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
    """Read the embeddings of all shards, (N, d), zeros for failed samples; in memory unless larger than HELD_NUMBERS."""
    rows = MappedRows.of_run(run, stems, part)
    return rows if len(rows) * rows.width > HELD_NUMBERS else RowBlocks(rows.take(np.arange(len(rows))))


def _describe(columns: Mapping[str, Float32], record: Mapping[str, Any]) -> str:
    """Describe in one line how the first column is spread, and how it was computed."""
    values = next(iter(columns.values()))
    known = values[~np.isnan(values)]
    made = ", ".join(f"{name} {value}" for name, value in record.items() if name != "note")
    note = f"; {record['note']}" if "note" in record else ""
    if not len(known):
        return f"no pair has it ({made}){note}"
    low, middle, high = np.quantile(known, [0.05, 0.5, 0.95])
    return f"median {middle:.3g}, nine in ten from {low:.3g} to {high:.3g}, of {counted(len(known), 'sample')} ({made}){note}"
