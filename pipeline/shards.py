"""Which shards: brace ranges, globs, `::`, lists in a file; local paths and fsspec URLs."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import fsspec

from .errors import ConfigError, ShardError

__all__ = ["Shard", "find_shards"]

_SUFFIXES = (".tar.gz", ".tgz", ".tar")
_PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "hf": "huggingface_hub", "http": "aiohttp"}


@dataclass(frozen=True)
class Shard:
    """One tar file, local or remote. `stem` names its table: `data/x-000012.tar` becomes `x-000012.parquet`."""

    url: str

    @property
    def stem(self) -> str:
        name = PurePosixPath(self.url.split("?")[0]).name
        return next((name[: -len(s)] for s in _SUFFIXES if name.lower().endswith(s)), name)

    @property
    def is_local(self) -> bool:
        return "://" not in self.url

    def open(self) -> IO[bytes]:
        """Open for reading; raises ShardError, which names the shard."""
        try:
            if self.is_local:
                return Path(self.url).open("rb")
            return fsspec.open(self.url, "rb").open()  # type: ignore[no-any-return]
        except Exception as error:  # each fsspec back end raises errors of its own
            raise ShardError(f"shard {self.url} cannot be opened: {type(error).__name__}: {error}") from error

    def size_and_time(self) -> tuple[int | None, float | None]:
        """Bytes and time of the last change in seconds, None where the store does not say."""
        if self.is_local:
            try:
                stat = Path(self.url).stat()
            except OSError as error:
                raise ShardError(f"shard {self.url} cannot be opened: {error.strerror or error}") from error
            return stat.st_size, stat.st_mtime
        try:
            info: dict[str, Any] = fsspec.open(self.url, "rb").fs.info(self.url)
        except Exception as error:
            raise ShardError(f"shard {self.url} cannot be opened: {type(error).__name__}: {error}") from error
        changed: Any = info.get("LastModified") or info.get("mtime") or info.get("created")
        return info.get("size"), changed.timestamp() if hasattr(changed, "timestamp") else None


def find_shards(source: str | Path | Iterable[str | Path]) -> list[Shard]:
    """The shards a user means, in order and without repeats.

    A string may hold brace ranges (`x-{000000..000012}.tar`), globs, several patterns joined by `::`, a folder (all its
    tars), or `@FILE` (also any `.txt` or `.list`): a list with one of the above per line. Raises ConfigError when a
    pattern matches nothing, when two shards would share a table, or for `pipe:` and shell.

    >>> [shard.url for shard in find_shards("s3://b/x-{08..10}.tar::s3://b/y.tar")]
    ['s3://b/x-08.tar', 's3://b/x-09.tar', 's3://b/x-10.tar', 's3://b/y.tar']
    """
    sources = [source] if isinstance(source, str | Path) else list(source)
    urls: dict[str, None] = {}
    for one in sources:
        for url in _expand(str(one)):
            urls[url] = None
    if not urls:
        raise ConfigError("no shards given; try 'data/x-{000000..000012}.tar' or 'data/*.tar'")
    shards = [Shard(url) for url in urls]
    stems: dict[str, str] = {}
    for shard in shards:
        other = stems.setdefault(shard.stem, shard.url)
        if other != shard.url:
            raise ConfigError(
                f"shards {other} and {shard.url} would share the table {shard.stem}.parquet; score them into two folders"
            )
    return shards


def _expand(pattern: str) -> list[str]:
    if pattern.startswith("@") or (pattern.endswith((".txt", ".list")) and "::" not in pattern):
        return _from_list(pattern.removeprefix("@"))
    urls: list[str] = []
    for part in pattern.split("::"):
        if not part.strip():
            continue
        if part.startswith("pipe:") or "|" in part:
            raise ConfigError(f"shard {part!r}: pipes are not run; give a path or a URL such as s3://bucket/x.tar")
        for name in braces(part.strip()):
            urls.extend(_glob(name))
    return urls


def _from_list(path: str) -> list[str]:
    try:
        with fsspec.open(path, "r", encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the list of shards {path} cannot be read: {error}") from error
    return [url for line in lines if line and not line.startswith("#") for url in _expand(line)]


def _glob(name: str) -> list[str]:
    remote = "://" in name
    _check_protocol(name)
    if not remote and Path(name).is_dir():
        found: Sequence[str] = sorted(str(p) for p in Path(name).iterdir() if p.name.lower().endswith(_SUFFIXES))
        if not found:
            raise ConfigError(f"folder {name} holds no .tar or .tar.gz")
        return list(found)
    if not re.search(r"[*?\[]", name.split("?")[0] if remote else name):
        return [name]
    files = fsspec.open_files(name, "rb")
    found = sorted(f.full_name if remote else f.path for f in files)
    if not found:
        raise ConfigError(f"no shard matches {name!r}; quote patterns so that the shell leaves them alone")
    if not remote:  # fsspec makes paths absolute; keep what the user wrote
        return [str(p) for p in sorted(Path().glob(name))] if not Path(name).is_absolute() else list(found)
    return list(found)


def _check_protocol(name: str) -> None:
    if "://" not in name:
        return
    protocol = name.split("://")[0]
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        raise ConfigError(
            f"shard {name}: {protocol} needs a package; pip install {_PACKAGES.get(protocol, 'its fsspec driver')}"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"shard {name}: protocol {protocol!r} is unknown; use a path, s3, gs, hf, http or https"
        ) from error


def braces(pattern: str) -> list[str]:
    """Expand `{a,b}` and numeric ranges `{000..012}` (zeros kept), leftmost first, nested too.

    >>> braces("x-{a,b}{1..2}")
    ['x-a1', 'x-a2', 'x-b1', 'x-b2']
    """
    import braceexpand

    try:
        return list(braceexpand.braceexpand(pattern))
    except ValueError as error:
        raise ConfigError(f"shards {pattern!r}: braces do not match; write x-{{000000..000012}}.tar") from error
