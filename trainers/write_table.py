"""Write what a training learnt about its samples as weight tables.

One table per shard, rows in tar order, failures included. If the training had tables, they are copied with the method's
columns; otherwise the shards are read again for keys, digests and labels. Rows that were not trained on are null in the
method's columns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators import Identity
from noisegate.pipeline.runs import (
    ALL_COLUMNS,
    VERSION,
    RunFolder,
    folder_lock,
    read_metadata,
    replace_columns,
    table_from,
)
from noisegate.pipeline.settings import DecodeOptions, Limits
from noisegate.pipeline.shards import Decoded, Preprocess, Shard, ShardReader, decode_sample, find_shards
from noisegate.pipeline.system import Mask, writing_to

from .checks import join_rules
from .config import TrainConfig, build_method
from .data import WeightedShards
from .loop.run_folder import TrainFolder
from .methods import METHODS, Method

if TYPE_CHECKING:
    from .train import TrainResult

JUDGEMENT = ("clean", "clean_probability")
"""a method that gives one of these replaces both, because values of two scorers do not fit together"""
READ = ("key", "index", "status", "error", "label", "image_sha256", "text_sha256", "flags")


def check_write_table(out: str | Path, method: str) -> None:
    """Raise ConfigError if the method has nothing to write or `out` holds a run; call this before training."""
    if method in METHODS and METHODS[method].sample_columns is Method.sample_columns:
        raise _nothing_learnt(method)
    if RunFolder(Path(out)).read_run() is not None:
        problem = "holds a run already; choose another folder, such as tables-learnt"
        raise ConfigError.of("write-table", str(out), problem)


def write_table(result: TrainResult, out: str | Path) -> Path:
    """Write `result.sample_columns` as weight tables into the new folder `out`, and return it."""
    if not result.sample_columns:
        raise _nothing_learnt(result.method)
    check_write_table(out, result.method)
    config = TrainConfig.parse(TrainFolder(result.folder).read_config())
    return write_columns(config, result.sample_columns, _method_facts(result, config), out)


def write_columns(
    config: TrainConfig, sample_columns: Mapping[str, NDArray[Any]], facts: Mapping[str, Any], out: str | Path
) -> Path:
    """Write columns (N,) of the data that `config` trains on as weight tables; `facts` tell where they are from, by name."""
    run = RunFolder(Path(out))
    source = None if config.data.table is None else RunFolder.to_read(config.data.table)
    with contextlib.closing(open_training_data(config)) as data, writing_to(out), folder_lock(run.path):
        trained = np.zeros(data.total_rows, bool)
        trained[data.ok_rows()] = True
        shards = {shard.stem: shard for shard in _find_shards(config, source)}
        about = {**_run_facts(source, config, facts["name"]), "method": facts}
        known = {entry["table"]: entry for entry in about.get("shards", [])}
        run.write_run({**about, "shards": [], "finished": False, "complete": False})
        entries = []
        for stem, rows in data.row_keys():
            seen = trained[rows]
            columns = {
                name: _column(name, values[rows], seen) for name, values in _check_columns(sample_columns).items()
            }
            if source is not None:
                metadata = {**read_metadata(source.table(stem)), "method": facts}
                run.write_table(stem, replace_columns(source.read(stem), columns, metadata))
            else:
                metadata = _write_from_shard(run, shards[stem], config, columns, seen, facts)
            entry = known.get(stem, {"table": stem, "rows": len(rows), "sha256": metadata["shard"]["sha256"]})
            entries.append({**entry, "url": shards[stem].url})
        run.write_run({**about, "shards": entries, "finished": True, "complete": True})
    return run.path


def _nothing_learnt(method: str) -> ConfigError:
    problem = "learns nothing about single samples for write-table; use for example crcl (pairs) or tango (labels)"
    return ConfigError.of("method.name", method, problem)


def _check_columns(columns: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    unknown = sorted(set(columns) - set(ALL_COLUMNS))
    if unknown:
        problem = "of the method is not of a weight table; declare it in METHOD_COLUMNS"
        raise ConfigError.of("column", unknown[0], problem)
    if not any(name in columns for name in JUDGEMENT):
        return dict(columns)
    count = len(next(iter(columns.values())))
    return {name: np.full(count, np.nan, np.float32) for name in JUDGEMENT} | dict(columns)


def _column(name: str, values: NDArray[Any], seen: Mask) -> pa.Array:
    """Convert to an Arrow array; null for rows that were not trained on, for nan, and for classes below 0."""
    kind = ALL_COLUMNS[name][0]
    unknown = ~seen | (
        np.isnan(values) if values.dtype.kind == "f" else values < 0 if values.dtype.kind == "i" else False
    )
    if pa.types.is_boolean(kind):
        values = values.astype(bool)
    return pa.array(values, mask=unknown).cast(kind)


def open_training_data(config: TrainConfig) -> WeightedShards:
    """Open the rows that the training drew from, without reading samples."""
    d, rule = config.data, join_rules(config.data.where, build_method(config).where())
    options = d.training_options(config.task.name)
    return WeightedShards(d.shards or None, d.table, **options, batch_size=1, where=rule, image=_identity)


def _identity(image: Any) -> Any:
    return image


def _find_shards(config: TrainConfig, source: RunFolder | None) -> list[Shard]:
    if config.data.shards:
        return find_shards(config.data.shards)
    recorded = (source.read_run() if source else None) or {"shards": []}
    return [Shard(entry["url"]) for entry in recorded["shards"]]


# --- facts for the tables' metadata ---------------------------------------------------------------------------------------


def _method_facts(result: TrainResult, config: TrainConfig) -> dict[str, Any]:
    note = build_method(config).provenance
    return {
        "name": result.method,
        **({"note": note} if note else {}),
        "run": str(result.folder),
        "task": result.task,
        "settings": config.method,
        "target": config.target["name"],
        "seed": config.seed,
        "epochs": result.epochs,
        "steps": result.steps,
        "best": result.best,
        "columns": sorted(result.sample_columns),
        "noisegate": version("noisegate"),
    }


def _run_facts(source: RunFolder | None, config: TrainConfig, name: str) -> dict[str, Any]:
    recorded = source.read_run() if source else None
    if recorded is not None:
        return recorded
    return {
        "table_version": VERSION,
        "noisegate": version("noisegate"),
        "scorer": _scorer(config, name).to_dict(),
        "model": None,
        "scoring": {"tasks": list(_options(config).tasks), "classes": None},
        "reading": _reading(config),
        "beta": None,
        "random_inputs": None,
        "unreadable": {},
    }


def _scorer(config: TrainConfig, name: str) -> Identity:
    """Make the identity of a scorer that is the network trained by method `name`, not a frozen model."""
    return Identity(
        model=f"noisegate train: {name}",
        weights="trained",
        preprocess="by the target",
        decoder="by the target",
        dtype=config.loop.precision,
        versions=(("noisegate", version("noisegate")),),
    )


# --- tables from shards alone ------------------------------------------------------------------------------------------


def _options(config: TrainConfig) -> DecodeOptions:
    task = "pairs" if config.task.name == "retrieval" else "labels"
    return DecodeOptions((task,), config.data.text_field, config.data.label_field)


def _reading(config: TrainConfig) -> dict[str, Any]:
    options, limits = _options(config), Limits()
    known = {name: getattr(limits, name) for name in Limits.__dataclass_fields__}
    fields = {"text_field": options.text_field, "label_field": options.label_field}
    return {"tasks": list(options.tasks), **fields, "limits": known}


def _write_from_shard(
    run: RunFolder,
    shard: Shard,
    config: TrainConfig,
    columns: Mapping[str, pa.Array],
    seen: Mask,
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """Write the table of a shard that was trained on without one; return its metadata."""
    reader = ShardReader(shard)
    samples = list(_decode_samples(reader, _options(config)))
    if len(samples) != len(seen):
        problem = f"has {len(samples):,} samples now, {len(seen):,} when it was trained on; bring the old one back"
        raise ConfigError.of("data.shards", shard.url, problem)
    if config.data.image_part or config.data.captions != "one":  # the training read other parts
        for sample, ok in zip(samples, seen, strict=True):
            if ok:
                sample.status, sample.error = "ok", None
    failed = pa.array([sample.status != "ok" for sample in samples])
    columns = {name: pc.if_else(failed, pa.scalar(None, values.type), values) for name, values in columns.items()}
    described = {
        "name": Path(shard.url).name, "sha256": reader.sha256, "size": reader.size, "rows": len(samples),
        "damage": reader.damage,
    }  # fmt: skip
    metadata = {
        "table_version": VERSION,
        "scorer": _scorer(config, facts["name"]).to_dict(),
        "shard": described,
        "reading": _reading(config),
        "method": dict(facts),
    }
    read: dict[str, Any] = {name: [getattr(sample, name) for sample in samples] for name in READ}
    read["flags"] = [list(sample.flags) for sample in samples]
    table = table_from({**read, **columns}, metadata)
    run.write_table(shard.stem, table)
    return metadata


def _decode_samples(reader: ShardReader, options: DecodeOptions) -> Iterator[Decoded]:
    small = Preprocess(1)  # pictures are decoded only to check that they can be
    for raw in reader:
        sample = decode_sample(raw, small, options)
        sample.pixels = None
        yield sample
