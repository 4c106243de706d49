"""Folders of pictures and tables of samples, read as if they were tars.

A source is cut into virtual shards of `ROWS` samples. A virtual shard is a tar that is made while it is read, so digests,
samples by position, resuming and everything downstream work as for tars. Its URL is `SCHEME:PLACE/NAME-000012.tar`:
`folder:PATH/…`, or `table:PATH?image=COLUMN&text=COLUMN&label=COLUMN/…`.

To add a source, write a module with a `RowSource` (`samples.py`) and name the function that opens it in `SCHEMES`; let
`find_virtual` recognise its files. Samples are numbered by their sorted names (folders) or by their rows (tables): a sample
added in the middle changes all shards after it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

import pyarrow as pa

from noisegate.pipeline.errors import ConfigError, ShardError

from .folder import find_in_folder, open_folder
from .huggingface import HUB, hub_tables, saved_tables
from .samples import ROWS, FilePart, RowSource, SampleParts, TableColumns
from .table import CAPTION_FILES, TableSource, find_in_tables, is_table
from .virtual_tar import VirtualTar

__all__ = [
    "HUB",
    "ROWS",
    "FilePart",
    "RowSource",
    "SampleParts",
    "TableColumns",
    "VirtualTar",
    "estimate_size",
    "find_tables",
    "find_virtual",
    "is_table",
    "is_virtual",
    "open_source",
    "open_virtual",
    "read_classes",
    "refuse_tasks",
    "virtual_size_and_time",
]

SCHEMES: Mapping[str, Callable[[str], RowSource]] = {"folder": open_folder, "table": TableSource}
_UNREADABLE = (OSError, pa.ArrowException, IndexError, KeyError, ValueError, ConfigError)


def is_virtual(url: str) -> bool:
    """Return whether this is the URL of a virtual shard."""
    scheme, colon, rest = url.partition(":")
    return bool(colon) and scheme in SCHEMES and not rest.startswith("//")


def find_virtual(source: str | Path, columns: TableColumns) -> list[str]:
    """List the virtual shards of a folder, a table or `hf-dataset:NAME`; none for a folder without pictures or tables.

    Raises ConfigError for a source that cannot be read.
    """
    if str(source).startswith(HUB):
        return find_tables(hub_tables(str(source)), columns)
    path = Path(source)
    if not path.is_dir():
        return find_tables([path], columns)
    captions = [path / name for name in CAPTION_FILES if (path / name).is_file()]
    if captions:
        return find_tables(captions[:1], columns, path.resolve().name)
    below = sorted(file for name in CAPTION_FILES for file in path.glob(f"*/{name}"))
    if below:
        raise ConfigError.of("shards", path, f"has captions in its sub-folders; use one, such as {below[0].parent}")
    folder = find_in_folder(path)
    if folder is None:
        return find_tables(saved_tables(path), columns)
    return _number(folder, path.resolve().name)


def find_tables(paths: list[Path], columns: TableColumns, name: str | None = None) -> list[str]:
    """List the virtual shards of tables, which share class numbers; `name` is the shards' name (default: the file's)."""
    return [url for prefix, path in find_in_tables(paths, columns) for url in _number(prefix, name or path.stem)]


def _number(prefix: str, name: str) -> list[str]:
    name = name.replace(".", "_") or "root"
    return [f"{prefix}/{name}-{number:06d}.tar" for number in range(-(-len(open_source(prefix)) // ROWS))]


def open_source(prefix: str) -> RowSource:
    """Open the source of `SCHEME:PLACE`."""
    scheme, _, place = prefix.partition(":")
    return SCHEMES[scheme](place)


def _split(url: str) -> tuple[RowSource, slice]:
    prefix, _, name = url.rpartition("/")
    number = int(PurePosixPath(name).stem.rpartition("-")[2])
    return open_source(prefix), slice(number * ROWS, (number + 1) * ROWS)


def open_virtual(url: str) -> VirtualTar:
    """Open a virtual shard as a tar; raise ShardError if its source cannot be read."""
    try:
        source, rows = _split(url)
        samples = source.read(rows)
        if not samples:
            raise IndexError("its samples are gone")
        return VirtualTar(samples)
    except _UNREADABLE as error:
        raise ShardError(f"shard {url} cannot be opened: {error}", "shards", url) from error


def virtual_size_and_time(url: str) -> tuple[int | None, float]:
    """Return size in bytes, and time of the last change of table, folders or any file; raise ShardError.

    The size is None if the table contains the pictures, because it would have to be read. A change of any row changes the time.
    """
    try:
        source, _ = _split(url)
        if source.file_bytes is not None:
            return None, source.changed
        changed = source.changed
    except _UNREADABLE as error:
        raise ShardError(f"shard {url} cannot be opened: {error}", "shards", url) from error
    with open_virtual(url) as tar:
        return tar.size, max(tar.changed, changed)


def estimate_size(url: str) -> int:
    """Estimate the size in bytes without reading pictures; raise ShardError."""
    size, _ = virtual_size_and_time(url)
    if size is not None:
        return size
    source, rows = _split(url)
    return (source.file_bytes or 0) * min(ROWS, len(source) - int(rows.start)) // len(source)


def refuse_tasks(urls: Iterable[str], tasks: Sequence[str]) -> None:
    """Raise ConfigError if a folder or a table has no parts for any of these tasks."""
    needs = {"pairs": "captions", "labels": "classes"}
    for prefix in dict.fromkeys(url.rpartition("/")[0] for url in urls if is_virtual(url)):
        served = open_source(prefix).tasks
        if not set(served) & set(tasks):
            lacking, place = " or ".join(needs[task] for task in tasks), prefix.partition(":")[2]
            if prefix.startswith("table:"):
                place = place.rpartition("?")[0]
            problem = f"needs {lacking}, which {place} does not have; use --task {','.join(served)}"
            raise ConfigError.of("task", ",".join(tasks), problem)


def read_classes(urls: Iterable[str]) -> tuple[str, ...]:
    """Return the class names of virtual shards whose labels are names; none if labels are numbers.

    Raises ConfigError if two sources number their classes differently.
    """
    prefixes = list(dict.fromkeys(url.rpartition("/")[0] for url in urls if is_virtual(url)))
    named = {prefix: names for prefix in prefixes if (names := open_source(prefix).classes)}
    for prefix, names in named.items():
        first = next(iter(named))
        if names != named[first]:
            problem = (
                f"and {first} have other class names, so that their numbers differ; join them, or number the classes"
            )
            raise ConfigError.of("shards", prefix, problem)
    return next(iter(named.values()), ())
