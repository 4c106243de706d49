"""Write a run's result in the format of another tool.

`FORMATS` lists the formats. To add one, write a module with a function `write(rows, out, options) -> Written` and name it in
`FORMATS`. `rows.py` reads the rows of a run and defines the types; `export` checks the output path.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from noisegate.pipeline.errors import ConfigError, did_you_mean
from noisegate.pipeline.runs.where import Where, parse_where
from noisegate.pipeline.system.output_files import old_folder, whole_file, whole_folder
from noisegate.pipeline.system.stores import store_url

from . import croissant
from .cleanlab import write_issues
from .datacomp import write_uids
from .flat import write_flat, write_keys
from .huggingface import write_dataset
from .lance import write_lance
from .recipes import RECIPES, find_recipe
from .rows import Format, Options, RunRows
from .shards import write_shards
from .to_store import exporting_to_store

__all__ = ["FORMATS", "RECIPES", "Exported", "export"]

FORMATS: Mapping[str, Format] = {
    "keys": Format(write_keys, options=("with_shard",)),
    "datacomp": Format(write_uids),
    "parquet": Format(partial(write_flat, kind="parquet"), options=("columns",)),
    "csv": Format(partial(write_flat, kind="csv"), options=("columns", "spreadsheet_safe")),
    "jsonl": Format(partial(write_flat, kind="jsonl"), options=("columns",)),
    "shards": Format(write_shards, is_folder=True, options=("add_columns",)),
    "datasets": Format(write_dataset, is_folder=True, options=("columns",)),
    "lance": Format(write_lance, is_folder=True, options=("columns",)),
    "cleanlab": Format(write_issues, options=("spreadsheet_safe",)),
}
REPEATING = ("keys", "parquet", "csv", "jsonl")  # formats that may contain a sample more than once
RECORD = "_export.json"  # marks an exported folder; only a folder with this file is ever replaced


@dataclass(frozen=True)
class Exported:
    """Counts of an export: rows in the run, rows that the rule kept, rows written.

    `left_out` counts the others by reason; `empty_shards` had no sample to write.
    """

    kind: str
    out: str
    rows: int
    kept: int
    written: int
    files: list[str] = field(repr=False)  # may be thousands
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
    recipe: str | None = None,
    share: float | None = None,
    seed: int = 0,
    columns: Sequence[str] | None = None,
    with_shard: bool = False,
    spreadsheet_safe: bool = False,
    add_columns: Mapping[str, str] | None = None,
    review_labels: bool = False,
    overwrite: bool = False,
) -> Exported:
    """Write the run in `folder` to `out` as one of `FORMATS`, only the rows for which `where` holds.

    `recipe` is one of `RECIPES`, which takes a `share` of these rows, at random by `seed` if it draws them. `columns` chooses
    the columns of flat files and datasets (default: key, shard and all filled scores), `with_shard` writes `shard/key`,
    `spreadsheet_safe` puts an apostrophe before texts of a CSV that a spreadsheet would take for a formula, `add_columns` maps
    json fields to the columns that fill them in rewritten shards, `review_labels` writes the label of a person's mark in place
    of the given one. Memory holds one shard's table, never the data. `out` is complete or absent. Croissant metadata are
    written to the folder as `croissant.json`, or beside the file as `NAME.croissant.json`. Raises ConfigError when the export
    would be empty.
    """
    if kind not in FORMATS:
        known = f"{', '.join(FORMATS)}{did_you_mean(kind, FORMATS)}"
        raise ConfigError(f"export as {kind!r} is unknown; use {known}", "as", kind)
    chosen = FORMATS[kind]
    given = {"columns": columns, "with_shard": with_shard or None, "add_columns": add_columns or None}
    given["spreadsheet_safe"] = spreadsheet_safe or None
    for name, value in given.items():
        if value is not None and name not in chosen.options:
            users = ", ".join(other for other, form in FORMATS.items() if name in form.options)
            flag = name.replace("_", "-")
            raise ConfigError(f"{flag} has no meaning for {kind}; it goes with {users}", name, value)
    if share is not None and recipe is None:
        raise ConfigError.of("share", share, "is that of a recipe; add --recipe clip-score")
    if recipe is not None and find_recipe(recipe).repeats and kind not in REPEATING:
        raise ConfigError.of("recipe", recipe, f"repeats rows, which {kind} cannot hold; use {', '.join(REPEATING)}")
    url = store_url(out)
    if url is not None:
        with exporting_to_store(url, folder, RECORD if chosen.is_folder else None, overwrite) as path:
            done = export(
                folder,
                path,
                kind,
                where=where,
                recipe=recipe,
                share=share,
                seed=seed,
                columns=columns,
                with_shard=with_shard,
                spreadsheet_safe=spreadsheet_safe,
                add_columns=add_columns,
                review_labels=review_labels,
            )
        return replace(done, out=url, files=[f"{url}{file.removeprefix(str(path))}" for file in done.files])
    rule = parse_where(where) if isinstance(where, str) else where
    rows, target = RunRows(folder, rule, review_labels, recipe, share, seed), Path(out)
    _check_out(rows, target, chosen.is_folder, overwrite)
    record = {
        "as": kind,
        "run": store_url(folder) or str(folder),
        "where": rule.text if rule else None,
        **({"review_labels": True} if review_labels else {}),
        **({"recipe": recipe, "share": share or rows.recipe.share, "seed": seed} if recipe and rows.recipe else {}),
        "noisegate": version("noisegate"),
        "table_version": rows.facts["table_version"],
    }
    options = Options(columns, with_shard, add_columns or {}, record, spreadsheet_safe)
    name = f"{Path(folder).resolve().name}-{kind}"
    if chosen.is_folder:
        with whole_folder(target) as new:
            result = chosen.write(rows, new, options)
            rows.refuse_nothing(result.written)
            counts = {"rows": rows.rows, "kept": rows.kept, "written": result.written, "left_out": result.left_out}
            data = [path for path in _files_in(new) if path.suffix != ".md"]
            with whole_file(new / croissant.FILE) as file:
                file.write(croissant.describe(name, new, data, record, result))
            with whole_file(new / RECORD) as file:
                file.write(json.dumps({**record, **counts}, indent=1).encode() + b"\n")
        files = [path for path in _files_in(target) if path.name not in (RECORD, croissant.FILE)]
    else:
        result = chosen.write(rows, target, options)
        files = [target]
        with whole_file(target.with_name(f"{target.name}.{croissant.FILE}")) as file:
            file.write(croissant.describe(name, target.parent, files, record, result))
    return Exported(
        kind=kind,
        out=str(out),
        rows=rows.rows,
        kept=rows.kept,
        written=result.written,
        files=[str(path) for path in files],
        bytes=sum(path.stat().st_size for path in files),
        left_out=result.left_out,
        empty_shards=result.empty_shards,
        unscored_shards=rows.unscored,
    )


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _check_out(rows: RunRows, out: Path, is_folder: bool, overwrite: bool) -> None:
    """Raise ConfigError when `out` exists, or contains its source, or lies in it."""

    def refuse(problem: str) -> ConfigError:
        return ConfigError(f"out {out} {problem}", "out", out)

    if is_folder and old_folder(out).exists() and not out.exists():  # killed between the two renames of `whole_folder`
        old_folder(out).rename(out)
    target, run = out.resolve(), rows.run.path.resolve()
    if target.is_relative_to(run) or run.is_relative_to(target):
        raise refuse(f"and the run {rows.run.path} lie in one another; use a place beside it")
    for url in rows.shards.values():
        if "://" not in url and Path(url).resolve().is_relative_to(target):
            raise refuse(f"is, or holds, the shard {url}; use another place, so that the data stays")
    if not out.exists() or (is_folder and out.is_dir() and not any(out.iterdir())):
        return
    if out.is_dir() != is_folder:
        raise refuse("is a file; name a folder" if is_folder else "is a folder; name a file")
    if not overwrite:
        raise refuse("is there already; choose another, or use --overwrite")
    if is_folder and not (out / RECORD).exists():
        raise refuse(f"is not an export (it has no {RECORD}), so it is not replaced; choose another")
