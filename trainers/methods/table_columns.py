"""Check that a folder of weight tables holds what a method needs, before anything is loaded."""

from collections.abc import Iterable
from pathlib import Path

import pyarrow.compute as pc

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.runs import ALL_COLUMNS, COLUMNS, RunFolder

_MADE_BY = {
    "osa_weight": "noisegate annotate SHARDS --out TABLE",
    "similarity": "noisegate annotate SHARDS --out TABLE",
    "neighbourhood": "noisegate rescore TABLE --neighbourhood",
}
_LABELS = "noisegate annotate SHARDS --task labels --classes NAMES --out TABLE"


def open_finished_run(table: Path | None, setting: str) -> RunFolder:
    """Open the run in `table`; raise ConfigError where there is none or it is not finished."""
    if table is None:
        raise ConfigError(
            f"{setting} needs a weight table; give data.table, made by: noisegate annotate SHARDS --out tables",
            "data.table",
        )
    run = RunFolder(table)
    recorded = run.read_run()
    if recorded is None:
        raise ConfigError(
            f"data.table={table}: no run there; make one with: noisegate annotate SHARDS --out {table}, or give its folder",
            "data.table",
            table,
        )
    if recorded.get("finished") is False:
        raise ConfigError(
            f"data.table={table}: this run is not finished; run the same annotate command again, it goes on",
            "data.table",
            table,
        )
    if next(run.stems(), None) is None:
        raise ConfigError(
            f"data.table={table}: no tables there; run the same annotate command again", "data.table", table
        )
    return run


def require_columns(table: Path | None, columns: Iterable[str], setting: str) -> None:
    """Raise ConfigError where a column does not exist or is empty in all tables; `setting` is NAME=VALUE."""
    run = open_finished_run(table, setting)
    for name in columns:
        if name == "shard":
            continue
        if name not in ALL_COLUMNS:
            raise ConfigError(
                f"{setting}: a table has no column {name!r}; it has {', '.join(COLUMNS)}",
                setting.partition("=")[0],
                name,
            )
        if not any(pc.any(run.read(stem, [name])[name].is_valid()).as_py() for stem in run.stems()):
            raise ConfigError(
                f"{setting}: the column {name} of data.table={table} is empty; fill it with: {_made_by(name)}",
                setting.partition("=")[0],
                name,
            )


def _made_by(column: str) -> str:
    if column in COLUMNS:
        return _MADE_BY.get(column, _LABELS)
    return f"noisegate rescore TABLE --with {column.partition('_')[0]}"
