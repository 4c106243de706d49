"""Find shards: brace ranges, globs, `::`, lists in a file; local paths and fsspec URLs."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import urlsplit

import braceexpand
import fsspec

from noisegate.pipeline.errors import ConfigError, ShardError
from noisegate.pipeline.system.stores import check_protocol, describe

from .read import IMAGE_PARTS
from .sources import (
    HUB,
    TableColumns,
    estimate_size,
    find_tables,
    find_virtual,
    is_table,
    is_virtual,
    open_virtual,
    read_classes,
    virtual_size_and_time,
)

_SUFFIXES = (".tar.gz", ".tgz", ".tar")
_LISTS = (".txt", ".list")


@dataclass(frozen=True)
class Shard:
    """One tar file, local or remote. `stem` names its table: `data/x-000012.tar` becomes `x-000012.parquet`.

    >>> Shard("https://host/x-000012.tar.gz?token=abc").stem
    'x-000012'
    """

    url: str

    @property
    def stem(self) -> str:
        name = PurePosixPath(_path(self.url)).name
        return next((name[: -len(s)] for s in _SUFFIXES if name.lower().endswith(s)), name)

    @property
    def is_local(self) -> bool:
        """Whether the shard is a file on this machine."""
        return not self.is_remote and not self.is_virtual

    @property
    def is_virtual(self) -> bool:
        """Whether the shard is made from a folder of pictures or a table while it is read."""
        return is_virtual(self.url)

    @property
    def is_remote(self) -> bool:
        return "://" in self.url

    def open(self) -> IO[bytes]:
        """Open for reading; raises ShardError, which names the shard."""
        try:
            if self.is_virtual:
                return open_virtual(self.url)  # type: ignore[return-value]
            if self.is_local:
                return Path(self.url).open("rb")
            return fsspec.open(self.url, "rb", **_stream_options(self.url)).open()  # type: ignore[no-any-return]
        except ShardError:
            raise
        except Exception as error:  # every fsspec back end has its own types of errors
            raise ShardError(f"shard {self.url} cannot be opened: {describe(error)}", "shards", self.url) from error

    def estimated_size(self) -> int | None:
        """Return the size in bytes, only an estimate for a table that contains pictures; raise ShardError."""
        return estimate_size(self.url) if self.is_virtual else self.size_and_time()[0]

    def size_and_time(self) -> tuple[int | None, float | None]:
        """Return size in bytes and time of the last change in seconds, None if the store does not know; raise ShardError."""
        if self.is_virtual:
            return virtual_size_and_time(self.url)
        try:
            if self.is_local:
                stat = Path(self.url).stat()
                return stat.st_size, stat.st_mtime
            store, path = fsspec.core.url_to_fs(self.url, **_stream_options(self.url))
            info: dict[str, Any] = store.info(path)
        except Exception as error:
            raise ShardError(f"shard {self.url} cannot be opened: {describe(error)}", "shards", self.url) from error
        changed: Any = info.get("LastModified") or info.get("mtime") or info.get("created")
        return info.get("size"), changed.timestamp() if hasattr(changed, "timestamp") else None


def find_shards(source: str | Path | Iterable[str | Path], columns: TableColumns | None = None) -> list[Shard]:
    """Find the shards of a pattern, in order and without repeats.

    A string may hold brace ranges (`x-{000000..000012}.tar`), globs, several patterns joined by `::`, a folder (all its
    tars; a remote one ends in `/`), or `@FILE` (also any `.txt` or `.list`): a list with one of the above per line. A folder of
    pictures, a table (.csv, .tsv, .jsonl, .parquet, COCO's .json) and `hf-dataset:NAME` are cut into virtual shards
    (`sources`); `columns` are those of tables. Globs keep only tars, or tables if they match no tar. Raises ConfigError when a
    pattern matches nothing, when two shards would share a table, or for `pipe:` and shell.

    >>> [shard.url for shard in find_shards("data/x-{08..10}.tar::https://host/y.tar")]
    ['data/x-08.tar', 'data/x-09.tar', 'data/x-10.tar', 'https://host/y.tar']
    """
    sources = [source] if isinstance(source, str | Path) else list(source)
    shards = [
        Shard(url)
        for url in dict.fromkeys(
            url for pattern in sources for url in _expand(str(pattern), (), columns or TableColumns())
        )
    ]
    if not shards:
        raise ConfigError.of("shards", [str(pattern) for pattern in sources], "name no tar; try 'data/*.tar'")
    stems: dict[str, str] = {}
    for shard in shards:
        other = stems.setdefault(shard.stem, shard.url)
        if other != shard.url:
            raise ConfigError.of("shards", shard.url, f"and {other} would share a table; score them into two folders")
    read_classes(shard.url for shard in shards)
    return shards


def _expand(pattern: str, lists: tuple[str, ...], columns: TableColumns) -> list[str]:
    """Expand one pattern; `lists` are the list files that led to it."""
    if is_virtual(pattern):
        return [pattern]
    name = pattern.strip()
    if name.startswith(HUB) or (_is_file(name) and is_table(name)):
        return find_virtual(name, columns)
    if _is_file(name) and not name.endswith(_LISTS):
        _refuse_pictures(name, [name])
        return [str(Path(name))]  # if a file of this name exists, its brackets and braces are part of the name
    urls: list[str] = []
    for part in (part.strip() for part in pattern.split("::")):
        if part.startswith("pipe:") or "|" in part:
            raise ConfigError.of("shards", part, "is a pipe, which is not run; use a path or s3://bucket/x.tar")
        if part.startswith("@") or part.endswith(_LISTS):
            urls.extend(_read_list(part.removeprefix("@"), lists, columns))
        elif part:
            urls.extend(url for name in expand_braces(part) for url in _glob(name, columns))
    return urls


def _read_list(path: str, lists: tuple[str, ...], columns: TableColumns) -> list[str]:
    if path in lists:
        raise ConfigError(f"the list of shards {path} leads back to itself; list shards in it", "shards", path)
    check_protocol("shards", path)
    try:
        with fsspec.open(path, "r", encoding="utf-8-sig") as file:
            lines = [line.strip() for line in file]
    except Exception as error:  # every fsspec back end has its own types of errors
        raise ConfigError(f"the list of shards {path} cannot be read: {describe(error)}", "shards", path) from error
    return [
        url for line in lines if line and not line.startswith("#") for url in _expand(line, (*lists, path), columns)
    ]


def _glob(name: str, columns: TableColumns) -> list[str]:
    """List the shards that match a name without braces, sorted; the name itself if it is not a pattern."""
    name = name.removeprefix("file://")
    remote = "://" in name
    check_protocol("shards", name)
    if not remote:
        name = str(Path(name).expanduser())  # a quoted pattern reaches us with its tilde
    folder = name.endswith("/") if remote else Path(name).is_dir()
    if not folder and not re.search(r"[*?\[]", _path(name)):
        return [name] if _path(name).lower().endswith(_SUFFIXES) else _one_file(name, columns, remote)
    if remote:
        pattern = f"{name}*" if folder else name
        try:
            store, path = fsspec.core.url_to_fs(pattern)
            names = [store.unstrip_protocol(path) for path in store.glob(path)]
        except Exception as error:
            raise ConfigError.of("shards", name, f"cannot be listed: {describe(error)}") from error
    elif folder:
        names = [str(path) for path in Path(name).iterdir()]
    else:
        root = Path(name).anchor
        names = [str(path) for path in Path(root).glob(str(Path(name).relative_to(root))) if path.is_file()]
    shards = sorted(path for path in names if _path(path).lower().endswith(_SUFFIXES))
    if not shards and not remote:
        tables = [Path(path) for path in sorted(names) if is_table(path) and not path.endswith(".json")]
        shards = find_virtual(name, columns) if folder else find_tables(tables, columns)
    if not shards and folder:
        problem = (
            "holds no .tar, no picture (jpg, jpeg, png, webp) and no Parquet; use a pattern such as 'data/*/*.tar'"
        )
        raise ConfigError.of("shards", name, problem)
    if not shards:
        _refuse_pictures(name, names)
        raise ConfigError.of("shards", name, "matches no .tar or .tar.gz; use a pattern such as 'data/x-*.tar'")
    return shards


def _refuse_pictures(pattern: str, files: Iterable[str]) -> None:
    picture = next((file for file in files if Path(file).suffix.lower().removeprefix(".") in IMAGE_PARTS), None)
    if picture is not None:
        folder = picture.rpartition("/")[0] or "."
        raise ConfigError.of("shards", pattern, f"names pictures, not shards; use their folder, {folder}, or a table")


def _one_file(name: str, columns: TableColumns, remote: bool) -> list[str]:
    """List the shards of a file whose name has no wildcards and does not end like a tar's."""
    if remote:
        if is_table(_path(name)):
            raise ConfigError.of("shards", name, "is a table, which is read from a local disk only; copy it here")
        return [name]
    if not _is_file(name):
        raise ConfigError.of("shards", name, "is not there; name a tar, a table or a folder, such as 'data/*.tar'")
    return find_virtual(name, columns) if is_table(name) else [name]


def _path(url: str) -> str:
    """Return the path in a name or URL; `?` begins a query in a web address and is a wildcard elsewhere."""
    return urlsplit(url).path if url.startswith(("http://", "https://")) else url


def _stream_options(url: str) -> dict[str, Any]:
    """fsspec options that read a web address as one stream, without ranges and without aiohttp's limit of 5 minutes.

    Raises ValueError for a chain such as `reference://a::b`, which fsspec reads by what the file b says, templates included.
    `find_shards` makes none, but the record of a run may hold one.
    """
    if "::" in url:
        raise ValueError("it is a chain of URLs, and only plain ones are read")
    if not url.startswith(("http://", "https://")):
        return {}
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=60, sock_read=300)
    return {"block_size": 0, "client_kwargs": {"timeout": timeout}}


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # too long for a name, or holding a NUL
        return False


def expand_braces(pattern: str) -> list[str]:
    """Expand `{a,b}` and numeric ranges `{000..012}` (zeros kept), leftmost first, nested too.

    >>> expand_braces("x-{a,b}{1..2}")
    ['x-a1', 'x-a2', 'x-b1', 'x-b2']
    """
    try:
        return list(braceexpand.braceexpand(pattern))
    except ValueError as error:
        raise ConfigError.of("shards", pattern, "has braces that do not match; use x-{000000..000012}.tar") from error
