"""Export marks to a CSV or Parquet file, and import marks that were made elsewhere."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.runs.reviews import SAMPLE, Mark
from noisegate.pipeline.runs.table import RunFolder
from noisegate.pipeline.system.output_files import whole_file

from .show import read_class_names

SCHEMA = pa.schema(
    [
        ("shard", pa.string()),
        ("index", pa.int64()),
        ("key", pa.string()),
        ("image_sha256", pa.string()),  # hex
        ("text_sha256", pa.string()),
        ("mark", pa.string()),
        ("label", pa.int64()),
        ("reviewer", pa.string()),
        ("at", pa.string()),  # ISO 8601, UTC
    ]
)
_SUFFIXES = (".csv", ".parquet")


def export_marks(folder: str | Path, out: str | Path) -> int:
    """Write the valid marks to a CSV or Parquet file, by its suffix; return their number; raise ConfigError for none."""
    target = _check_suffix("export", Path(out))
    run = RunFolder.to_read(folder)
    run.recorded()
    marks = run.reviews.read()
    if not marks:
        command = shlex.join(["noisegate", *run.browse_words()])
        raise ConfigError.of("run", folder, f"has no marks yet; make some: {command}, then Browse")
    columns = [list(column) for column in zip(*map(_plain, marks), strict=True)]
    table = pa.table(columns, schema=SCHEMA)
    with whole_file(target) as file:
        (pyarrow.csv.write_csv if target.suffix == ".csv" else pq.write_table)(table, file)
    return len(marks)


def _plain(mark: Mark) -> tuple[Any, ...]:
    values = [value.hex() if isinstance(value, bytes) else value for value in astuple(mark)]
    return (*values[:-1], datetime.fromtimestamp(mark.at, UTC).isoformat())


def import_marks(folder: str | Path, source: str | Path) -> tuple[int, int]:
    """Add all marks of a CSV or Parquet file, or none; return how many were added, and how many samples have changed.

    The file needs `mark`, and `index` or `key`, with `shard` where the run has several; digests, `label`, `reviewer` and `at`
    are optional. A mark whose digests differ from the table's is left out; a mark without digests counts for the present
    sample. Raises ConfigError with the row for a sample that the run does not have, or a mark that makes no sense.
    """
    path = _check_suffix("import", Path(source))
    run = RunFolder.to_read(folder)
    run.recorded()
    rows = _read(path)
    finder, classes = _SampleFinder(run, path), len(read_class_names(run))
    marks, changed = [], 0
    for number, row in enumerate(rows, 1):
        sample = finder.find(number, row)
        given = {name: row[name] for name in ("key", "image_sha256", "text_sha256") if row.get(name)}
        if any(value != _hex(sample[name]) for name, value in given.items()):
            changed += 1
            continue
        try:
            at = datetime.fromisoformat(row["at"]).timestamp() if row.get("at") else 0.0
            label = None if row.get("label") in (None, "") else int(row["label"])
            marks.append(Mark.of_row(sample, row.get("mark"), label, row.get("reviewer") or None, at, classes))
        except (ConfigError, ValueError, TypeError) as error:
            raise ConfigError.of("import", path, f"row {number}: {error}") from error
        if marks[-1].mark is None:
            raise ConfigError.of("import", path, f"row {number} has no mark; use keep, drop or relabel")
    if marks:
        run.reviews.write(marks)
    return len(marks), changed


def _check_suffix(setting: str, path: Path) -> Path:
    if path.suffix not in _SUFFIXES:
        raise ConfigError.of(setting, path, "is neither .csv nor .parquet; use marks.csv")
    return path


def _read(path: Path) -> list[dict[str, Any]]:
    """Read the rows; empty texts become None, and unknown columns are left out."""
    known = {field.name: pa.string() for field in fields(Mark)} | {"index": pa.int64()}
    try:
        if path.suffix == ".csv":
            options = pyarrow.csv.ConvertOptions(column_types=known, strings_can_be_null=True)
            table = pyarrow.csv.read_csv(path, convert_options=options)
        else:
            table = pq.read_table(path)
        rows: list[dict[str, Any]] = table.select([name for name in known if name in table.column_names]).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise ConfigError.of("import", path, f"cannot be read: {error}") from error
    if "mark" not in table.column_names or not {"index", "key"} & set(table.column_names):
        raise ConfigError.of("import", path, f"has {', '.join(table.column_names)}; it needs mark, and index or key")
    return rows


def _hex(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


class _SampleFinder:
    """Find the sample of a row by shard and position, or by shard and key; caches the tables it has read."""

    def __init__(self, run: RunFolder, source: Path) -> None:
        self._run, self._source = run, source
        self._stems = list(run.stems())
        self._tables: dict[str, tuple[pa.Table, Mapping[str, Sequence[int]]]] = {}

    def find(self, number: int, row: Mapping[str, Any]) -> dict[str, Any]:
        stem = row.get("shard") or (self._stems[0] if len(self._stems) == 1 else None)
        if stem not in self._stems:
            raise self._wrong(number, f"shard {stem!r} is no part of the run, which has {', '.join(self._stems[:3])}")
        table, by_key = self._table(stem)
        index = row.get("index")
        if index is None:
            places = by_key.get(str(row.get("key")), ())
            if len(places) != 1:
                problem = f"is the key of {len(places)} samples; give the index" if places else "is not there"
                raise self._wrong(number, f"{row.get('key')!r} in {stem} {problem}")
            index = places[0]
        if not 0 <= index < len(table):
            raise self._wrong(number, f"shard {stem} has no sample {index}; it has {len(table):,}")
        return {"shard": stem, **table.slice(index, 1).to_pylist()[0]}

    def _table(self, stem: str) -> tuple[pa.Table, Mapping[str, Sequence[int]]]:
        if stem not in self._tables:
            table = self._run.read(stem, [*SAMPLE[1:], "label"])
            by_key: dict[str, list[int]] = {}
            for i, key in enumerate(table["key"].to_pylist()):
                by_key.setdefault(key, []).append(i)
            self._tables[stem] = (table, by_key)
        return self._tables[stem]

    def _wrong(self, number: int, problem: str) -> ConfigError:
        return ConfigError.of("import", self._source, f"row {number}: {problem}")
