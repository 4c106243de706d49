"""Read tables of samples: CSV, TSV, JSON lines, Parquet, Arrow, and captions in one JSON file."""

import csv
import os
import re
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.shards.read import IMAGE_PARTS, MISSING

from .coco import read_json_captions
from .columns import (
    choose_columns,
    is_bytes,
    is_text,
    name_classes,
    named_by_datasets,
    read_label,
    refuse_addresses,
)
from .samples import ROWS, FilePart, SampleParts, TableColumns

TABLES = (".csv", ".tsv", ".jsonl", ".parquet", ".arrow", ".json")
CAPTION_FILES = (  # in a folder of pictures, as ImageFolder of Hugging Face and Kaggle's Flickr8k have them
    *("metadata.csv", "metadata.jsonl", "metadata.parquet"),
    *("captions.csv", "captions.tsv", "captions.jsonl", "captions.txt"),
)
_MAGIC = {b"\xff\xd8": "jpg", b"\x89PNG": "png", b"RIFF": "webp"}
_BLOCK_BYTES = 1 << 25  # of text that pyarrow parses at once; a row must not be longer
_LOOKED_AT = 20  # rows whose pictures are searched in other folders
_NAME_CHARS = 60  # most characters of a picture's name in its key
_NOT_IN_KEYS = re.compile(r"[^\w-]+")
_FOLDERS = 100  # most other folders to search


def is_table(path: str) -> bool:
    """Return whether a file of this name is read as a table of samples."""
    return path.lower().endswith(TABLES) or Path(path).name.lower() == "captions.txt"


class TableSource:
    """The rows of one file. `place` is `PATH?image=COLUMN&text=COLUMN&label=COLUMN&folder=PICTURES&classes=folder`.

    Paths are relative to the table's folder, or to `folder` in it. Labels that are names are numbered by name; with
    `classes=folder` all files of the same kind in the folder share the numbers.
    """

    def __init__(self, place: str) -> None:
        path, _, query = place.rpartition("?")
        options = dict(parse_qsl(query))
        self.path, self._classes_of_folder = Path(path), options.pop("classes", "") == "folder"
        self._pictures = Path(path).parent / options.pop("folder", "")
        self._columns = TableColumns(**options)

    def __len__(self) -> int:
        return count_rows(self.path)

    @property
    def tasks(self) -> tuple[str, ...]:
        served = {"pairs": self._columns.text, "labels": self._columns.label}
        return tuple(task for task, column in served.items() if column)

    @property
    def changed(self) -> float:
        facts = self.path.stat()
        return max(facts.st_mtime, facts.st_ctime)  # a file that is replaced by a copy may keep its modification time

    @property
    def file_bytes(self) -> int | None:
        kind = read_schema(self.path).field(self._columns.image or "").type
        in_table = is_bytes(kind) or (pa.types.is_struct(kind) and self._struct_has_bytes())
        return self.path.stat().st_size if in_table else None

    def _struct_has_bytes(self) -> bool:
        """Return whether a Hugging Face table contains pictures, not paths; of a Parquet file only the footer is read."""
        if not _is_parquet(self.path):
            return any(isinstance(picture, bytes) for picture in self._read_pictures(slice(0, 1)))
        footer = pq.read_metadata(self.path)
        chunks = (
            footer.row_group(g).column(c) for g in range(footer.num_row_groups) for c in range(footer.num_columns)
        )
        contents = [chunk for chunk in chunks if chunk.path_in_schema == f"{self._columns.image}.bytes"]
        return any(chunk.statistics is None or chunk.statistics.null_count < chunk.num_values for chunk in contents)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        label = self._columns.label
        if label is None:
            return ()
        schema = read_schema(self.path)
        if not is_text(schema.field(label).type):
            return named_by_datasets(schema, label)
        files = [self.path]
        if self._classes_of_folder:
            files = sorted(file for file in self.path.parent.iterdir() if file.suffix == self.path.suffix)
        return name_classes(
            name
            for file in files
            if label in read_schema(file).names
            for name in _distinct(str(file), label, *_stamp(file))
        )

    def read(self, rows: slice) -> list[SampleParts]:
        table = _read_columns(self.path, self._columns, rows)
        pictures = self._pictures_of(table)
        texts = _cells(table[self._columns.text]) if self._columns.text else []
        labels = _cells(table[self._columns.label]) if self._columns.label else []
        is_named = bool(labels) and is_text(table.schema.field(self._columns.label).type)
        number = {name: str(place) for place, name in enumerate(self.classes)} if is_named else {}
        samples = []
        for row, picture in enumerate(pictures):
            parts: dict[str, bytes | FilePart] = dict([self._picture_part(picture)])
            if texts and texts[row] is not None:
                text = texts[row]
                parts["txt"] = text if isinstance(text, bytes) else str(text).encode()
            if labels and (label := read_label(labels[row])) is not None:
                parts["cls"] = number.get(label, label).encode()
            samples.append(SampleParts(make_key(rows.start + row, picture), parts))
        return samples

    def _read_pictures(self, rows: slice) -> list[Any]:
        return self._pictures_of(_read_columns(self.path, TableColumns(self._columns.image), rows))

    def _pictures_of(self, table: pa.Table) -> list[Any]:
        """Return each row's picture: bytes, a path, or None."""
        column = table[self._columns.image]
        if not pa.types.is_struct(column.type):
            names = is_text(column.type)
            return [os.fsdecode(cell) if names and cell is not None else cell for cell in _cells(column)]
        fields = [column.type.field(place).name for place in range(column.type.num_fields)]
        contents = pc.struct_field(column, "bytes").to_pylist() if "bytes" in fields else [None] * len(table)
        paths = pc.struct_field(column, "path").to_pylist() if "path" in fields else [None] * len(table)
        return [path if content is None else content for content, path in zip(contents, paths, strict=True)]

    def _picture_part(self, picture: Any) -> tuple[str, bytes | FilePart]:
        if isinstance(picture, bytes):
            return next((part for magic, part in _MAGIC.items() if picture.startswith(magic)), "jpg"), picture
        if not isinstance(picture, str) or not picture.strip():
            return f"jpg{MISSING}", f"the column {self._columns.image} is empty".encode()
        path = _locate(self._pictures, picture)
        suffix = PurePosixPath(path).suffix.lower().removeprefix(".")
        return suffix if suffix in IMAGE_PARTS else "jpg", FilePart(path, picture)


def make_key(row: int, picture: Any) -> str:
    """Make a key from the row number, and from the name of a picture that is a file.

    >>> make_key(4, "photos/IMG 12.v2.jpg"), make_key(5, b"bytes")
    ('000000004_IMG_12_v2', '000000005')
    """
    if not isinstance(picture, str) or not picture.strip():
        return f"{row:09d}"
    stem = PurePosixPath(picture.replace("\\", "/")).stem
    return f"{row:09d}_{_NOT_IN_KEYS.sub('_', stem)[:_NAME_CHARS]}"


def find_in_tables(paths: Sequence[Path], columns: TableColumns) -> list[tuple[str, Path]]:
    """Return the URL (without shard number) and the path of each table; raise ConfigError for a table that cannot be used."""
    return [(_table_url(path, columns, several=len(paths) > 1), path) for path in paths]


def _table_url(path: Path, wanted: TableColumns, several: bool) -> str:
    columns = choose_columns(path, read_schema(path), wanted)
    if not count_rows(path):
        raise ConfigError.of("shards", path, "has no rows")
    options = {key: value for key, value in vars(columns).items() if value}
    source = TableSource(f"{path}?{urlencode(options, quote_via=quote)}")
    pictures = source._read_pictures(slice(0, ROWS)) if source.file_bytes is None else []
    names = [name for name in pictures if isinstance(name, str) and name.strip()]
    refuse_addresses(path, columns, names)
    if names and (folder := _find_pictures(path, columns.image, names)) != ".":
        options["folder"] = folder
    if several and columns.label and is_text(read_schema(path).field(columns.label).type):
        options["classes"] = "folder"
    return f"table:{path}?{urlencode(options, quote_via=quote, safe='')}"


def _find_pictures(path: Path, column: str | None, names: Sequence[str]) -> str:
    """Find the folder that the paths are relative to, seen from the table's; raise ConfigError if no picture is found.

    Candidates are the table's folder, its sub-folders, its parent and its siblings: the first with the most of the first rows
    wins.
    """

    def count(folder: Path, some: Iterable[str]) -> int:
        return sum(_is_file(_locate(folder, name)) for name in some)

    if count(path.parent, names[:_LOOKED_AT]):
        return "."
    above = path.parent.resolve().parent
    near = [*_folders_in(path.parent), above, *_folders_in(above)]
    best = max(near, key=lambda folder: count(folder, names[:_LOOKED_AT]))
    if count(best, names[:_LOOKED_AT]):
        return os.path.relpath(best, path.parent)
    if not count(path.parent, names):
        problem = (
            f"names pictures in {column} that are not there, such as {names[0][:200]}; paths count from its folder"
        )
        raise ConfigError.of("shards", path, problem)
    return "."


def _folders_in(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))[:_FOLDERS]
    except OSError:  # we may not be allowed to read the parent folder
        return []


def _locate(folder: Path, name: str) -> str:
    """Return the path of a picture; backslashes of a path written on Windows become slashes."""
    path = str(folder / name)
    return str(folder / name.replace("\\", "/")) if "\\" in name and not _is_file(path) else path


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # no permission, a name that is too long, or a NUL
        return False


def read_schema(path: Path) -> pa.Schema:
    """Read the columns of a table; raise ConfigError if it cannot be read."""
    try:
        return pq.read_schema(path) if _is_parquet(path) else _read_whole(str(path), *_stamp(path)).schema
    except (OSError, ValueError, csv.Error, pa.ArrowException) as error:
        encoding = isinstance(error, UnicodeDecodeError) or "UTF8" in str(error) or "UTF-8" in str(error)
        reason = " ".join(str(error).split())[:300]
        advice = "; save it as UTF-8" if encoding else ""
        raise ConfigError.of("shards", path, f"is no readable table: {reason}{advice}") from error


def count_rows(path: Path) -> int:
    """Count the rows; raise ConfigError, OSError or pyarrow's errors."""
    if _is_parquet(path):
        return int(pq.read_metadata(path).num_rows)
    return len(_read_whole(str(path), *_stamp(path)))


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"


def _stamp(path: Path) -> tuple[int, int]:
    facts = path.stat()
    return facts.st_mtime_ns, facts.st_size


@lru_cache(maxsize=2)
def _read_whole(path: str, time: int, size: int) -> pa.Table:
    """Read a whole table of paths and captions, or map an Arrow file; the file's `time` and `size` are for the cache."""
    kind = path.lower().rpartition(".")[2]
    if kind == "arrow":
        source = pa.memory_map(path)
        try:
            return pa.ipc.open_stream(source).read_all()  # the stream format that `datasets` writes
        except pa.ArrowInvalid:
            return pa.ipc.open_file(source).read_all()
    if kind == "json":
        return read_json_captions(Path(path))
    table = _read_json_lines(path) if kind == "jsonl" else _read_csv(path, "\t" if kind == "tsv" else ",")
    table.validate(full=True)
    return table


def _read_json_lines(path: str) -> pa.Table:
    read = pyarrow.json.ReadOptions(block_size=_BLOCK_BYTES)
    table = pyarrow.json.read_json(path, read)
    dates = [field.name for field in table.schema if pa.types.is_temporal(field.type)]
    if not dates:
        return table
    texts = pa.schema([(name, pa.string()) for name in dates])  # a caption such as 2020-01-01 stays text
    return pyarrow.json.read_json(path, read, pyarrow.json.ParseOptions(explicit_schema=texts))


def _read_csv(path: str, separator: str) -> pa.Table:
    """Read all cells as text, so that a caption 007 or 2020-01-01 is not converted."""
    with Path(path).open(encoding="utf-8-sig", newline="") as file:
        names = next(csv.reader(file, delimiter=separator), [])
    if not names:
        raise ValueError("it is empty")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"it has two columns {twice[0]}")
    return pyarrow.csv.read_csv(
        path,
        pyarrow.csv.ReadOptions(block_size=_BLOCK_BYTES),
        pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=True),
        pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
    )


@lru_cache(maxsize=64)
def _distinct(path: str, column: str, time: int, size: int) -> tuple[str, ...]:
    """Return the distinct labels in a column of text."""
    table = pq.read_table(path, columns=[column]) if _is_parquet(Path(path)) else _read_whole(path, time, size)
    values = pc.unique(table[column]).to_pylist()
    return tuple(dict.fromkeys(label for value in values if (label := read_label(value)) is not None))


def _cells(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column; text as bytes, because a damaged file may contain text that is not UTF-8."""
    if not is_text(column.type):
        return list(column.to_pylist())
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    return list(column.cast(kind).cast(pa.large_binary()).to_pylist())


def _read_columns(path: Path, columns: TableColumns, rows: slice) -> pa.Table:
    """Read some rows of the columns; of a Parquet file only the row groups of these rows are read."""
    names = [name for name in dict.fromkeys(vars(columns).values()) if name]
    if not _is_parquet(path):
        return _read_whole(str(path), *_stamp(path)).select(names).slice(rows.start, rows.stop - rows.start)
    with pq.ParquetFile(path) as file:
        ends = [0]
        for group in range(file.num_row_groups):
            ends.append(ends[-1] + file.metadata.row_group(group).num_rows)
        groups = [g for g in range(file.num_row_groups) if ends[g] < rows.stop and ends[g + 1] > rows.start]
        if not groups:
            return file.schema_arrow.empty_table().select(names)
        return file.read_row_groups(groups, columns=names).slice(rows.start - ends[groups[0]], rows.stop - rows.start)
