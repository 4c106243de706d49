"""A run's result in the format of other tools: key lists, DataComp subsets, flat files, shards, datasets, cleanlab."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from noisegate.pipeline.errors import ConfigError, did_you_mean
from noisegate.pipeline.runs.where import Where, parse_where
from noisegate.pipeline.system.output_files import whole_file, whole_folder

from .output import RECORD, check_place
from .source import Source

__all__ = ["KINDS", "Exported", "export"]

KINDS = {
    "keys": "one key per line",
    "datacomp": "DataComp's subset file of uids, .npy",
    "parquet": "one flat Parquet file",
    "csv": "one CSV file",
    "jsonl": "one file of JSON lines",
    "shards": "webdataset shards of the kept samples",
    "datasets": "a folder for Hugging Face datasets, with the pictures",
    "cleanlab": "cleanlab's frame of label issues, .csv or .parquet",
}
_FOLDERS = ("shards", "datasets")
_TAKES = {
    "columns": ("parquet", "csv", "jsonl", "datasets"),
    "with_shard": ("keys",),
    "add_columns": ("shards",),
}


@dataclass(frozen=True)
class Exported:
    """What was written: of `rows` in the run the rule `kept` some, of which `written` are in the files.

    `left_out` says why the others are not; `empty_shards` had no sample to write.
    """

    kind: str
    out: str
    rows: int
    kept: int
    written: int
    files: list[str]
    bytes: int
    left_out: Mapping[str, int] = field(default_factory=dict)
    empty_shards: list[str] = field(default_factory=list)
    unscored_shards: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def export(
    folder: str | Path,
    out: str | Path,
    kind: str,
    *,
    where: str | Where | None = None,
    columns: Sequence[str] | None = None,
    with_shard: bool = False,
    add_columns: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write the run in `folder` to `out` as one of `KINDS`, only the rows for which `where` holds.

    `columns` chooses those of flat files and datasets (default: key, shard and all scores that are there), `with_shard`
    writes `shard/key`, `add_columns` maps json fields to the columns that fill them in rewritten shards. Memory holds one
    shard's table, never the data. `out` is there whole or not at all. Raises ConfigError when nothing would be in it.
    """
    if kind not in KINDS:
        raise ConfigError(f"export as {kind!r} is unknown; use {', '.join(KINDS)}{did_you_mean(kind, KINDS)}")
    given = {"columns": columns is not None, "with_shard": with_shard, "add_columns": bool(add_columns)}
    for name, takers in _TAKES.items():
        if given[name] and kind not in takers:
            raise ConfigError(f"{name.replace('_', '-')} has no meaning for {kind}; it goes with {', '.join(takers)}")
    rule = parse_where(where) if isinstance(where, str) else where
    source, target = Source(Path(folder), rule), Path(out)
    check_place(source, target, kind in _FOLDERS, overwrite)
    record = {
        "as": kind,
        "run": str(folder),
        "where": rule.text if rule else None,
        "noisegate": version("noisegate"),
        "table_version": source.facts["table_version"],
    }
    if kind in _FOLDERS:
        return _folder(source, target, kind, columns, add_columns or {}, record)
    return _file(source, target, kind, columns, with_shard, record)


def _file(
    source: Source, out: Path, kind: str, columns: Sequence[str] | None, with_shard: bool, record: Mapping[str, Any]
) -> Exported:
    left_out: dict[str, int] = {}
    if kind == "keys":
        from .flat import write_keys

        written = write_keys(source, out, with_shard)
    elif kind == "datacomp":
        from .datacomp import write_uids

        written, repeated = write_uids(source, out)
        left_out = {"uid listed already": repeated} if repeated else {}
    elif kind == "cleanlab":
        from .cleanlab import write_issues

        written, unscored = write_issues(source, out)
        left_out = {"no label score": unscored} if unscored else {}
    else:
        from .flat import write_flat

        written = write_flat(source, out, kind, columns, record)
    return Exported(
        kind=kind,
        out=str(out),
        rows=source.rows,
        kept=source.kept,
        written=written,
        files=[str(out)],
        bytes=out.stat().st_size,
        left_out=left_out,
        unscored_shards=source.unscored,
    )


def _folder(
    source: Source,
    out: Path,
    kind: str,
    columns: Sequence[str] | None,
    add: Mapping[str, str],
    record: Mapping[str, Any],
) -> Exported:
    empty: list[str] = []
    with whole_folder(out) as folder:
        if kind == "shards":
            from .shards import write_shards

            written, left_out, empty = write_shards(source, folder, add)
        else:
            from .huggingface import write_dataset

            written, left_out = write_dataset(source, folder, columns, record)
        source.refuse_nothing(written)
        counts = {"rows": source.rows, "kept": source.kept, "written": written, "left_out": dict(left_out)}
        with whole_file(folder / RECORD) as file:
            file.write(json.dumps({**record, **counts}, indent=1).encode() + b"\n")
    files = sorted(path for path in out.rglob("*") if path.is_file() and path.name != RECORD)
    return Exported(
        kind=kind,
        out=str(out),
        rows=source.rows,
        kept=source.kept,
        written=written,
        files=[str(path) for path in files],
        bytes=sum(path.stat().st_size for path in files),
        left_out=dict(left_out),
        empty_shards=empty,
        unscored_shards=source.unscored,
    )
