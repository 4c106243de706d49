"""A Parquet, CSV or JSON-lines file about the samples of a run, joined by shard and index, by shard and key, or by key."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system.array_types import Index

JOINS = (("shard", "index"), ("shard", "key"), ("key",))


class KeyedFile:
    """The table of a file; `setting` is its name in errors. Raises ConfigError if it cannot be joined."""

    def __init__(self, path: Path, setting: str, needs: str) -> None:
        self.path, self._setting = path, setting
        if path.is_dir():
            raise self.error(f"is a folder; give a file with {needs}")
        try:
            self.table = _read(path)
        except FileNotFoundError as error:
            raise self.error(f"is not there; it needs {needs}") from error
        except (OSError, pa.ArrowInvalid) as error:
            raise self.error(f"is not a readable Parquet, CSV or JSON-lines file: {error}") from error
        names = set(self.table.column_names)
        self._by = next((by for by in JOINS if names.issuperset(by)), ())
        if not self._by:
            raise self.error(f"has the columns {', '.join(sorted(names))}; it needs {needs}")

    @property
    def columns(self) -> list[str]:
        """Names of the columns other than shard, key and index."""
        return [name for name in self.table.column_names if name not in ("shard", "index", "key")]

    def rows_of(self, table: pa.Table) -> Index:
        """Find the file's row for each row of `table` (with shard, key and index), (N,); -1 if there is none."""
        keys = self._keys(self.table)
        row_of = {key: row for row, key in enumerate(keys)}
        if len(row_of) < len(keys):
            remedy = "a column shard" if self._by == ("key",) else "a column index, the sample's position in its shard"
            again = next(key for row, key in enumerate(keys) if row_of[key] != row)
            problem = f"names {len(keys) - len(row_of):,} samples twice, such as {'/'.join(map(str, again))}"
            raise self.error(f"{problem}; remove the wrong row, or add {remedy}")
        return np.array([row_of.get(key, -1) for key in self._keys(table)], np.int64)

    def error(self, problem: str) -> ConfigError:
        """Make an error that names the setting and the file."""
        return ConfigError(f"{self._setting}: {self.path} {problem}", self._setting, self.path)

    def _keys(self, table: pa.Table) -> list[tuple[object, ...]]:
        parts = [table[name].to_pylist() for name in self._by]
        read = [
            values if name == "index" else [str(value) for value in values]
            for name, values in zip(self._by, parts, strict=True)
        ]
        return list(zip(*read, strict=True))


def _read(path: Path) -> pa.Table:
    suffix = path.suffix.lower()
    if suffix in (".jsonl", ".ndjson"):
        return pyarrow.json.read_json(path)
    if suffix not in (".csv", ".tsv"):
        return pq.read_table(path)
    text = {"key": pa.string(), "shard": pa.string()}  # keys such as 000012 must not be read as numbers
    parse = pyarrow.csv.ParseOptions(delimiter="\t" if suffix == ".tsv" else ",")
    return pyarrow.csv.read_csv(path, None, parse, pyarrow.csv.ConvertOptions(column_types=text))
