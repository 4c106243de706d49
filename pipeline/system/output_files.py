"""Write files and folders completely or not at all, and turn errors of the disk into messages with a remedy."""

import errno
import glob
import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from noisegate.pipeline.errors import ConfigError, NoisegateError

_HALF_WRITTEN = re.compile(r"\..+\.(tar|parquet|txt|safetensors|json)(\.[0-9a-f]{8})?\.tmp")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.ENOENT)


@contextmanager
def writing_to(out: str | Path) -> Iterator[Path]:
    """Make the folder and yield it; raise ConfigError for a URL, a file, or a place without write permission."""
    if re.match(r"[a-z][a-z0-9+.-]+:/", str(out), re.IGNORECASE):  # one slash: Path removes the other
        raise ConfigError.of("out", out, "is a URL; files are written to a local folder, such as --out results")
    folder = Path(out)
    whole = folder.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    except OSError as error:
        if error.errno in _FULL:
            raise NoisegateError.of(
                "out", out, "has no space left; free some and run the same command again"
            ) from error
        place = Path(error.filename) if error.errno in _REFUSED and isinstance(error.filename, str) else None
        if place is None or not (place.absolute().is_relative_to(whole) or whole.is_relative_to(place.absolute())):
            raise
        raise ConfigError.of("out", out, f"cannot be written: {error.strerror} ({place}); use --out results") from error


def refuse_other_shards(out: Path, names: Collection[str]) -> None:
    """Raise ConfigError if `out` has tars other than `names`: `out/*.tar` would mix them with the new ones."""
    other = sorted(path.name for path in out.glob("*.tar") if path.name not in names)
    if other:
        raise ConfigError.of("out", out, f"holds other shards, such as {other[0]}; use an empty folder")


def remove_half_written(out: Path) -> None:
    """Remove hidden files of killed writers in `out`; only for commands that have the folder to themselves."""
    for path in out.glob(".*.tmp"):
        if _HALF_WRITTEN.fullmatch(path.name) and path.is_file():
            path.unlink(missing_ok=True)


def temporary_name(path: Path) -> Path:
    """Make a new temporary name for `path`: another process that seemed dead may still be writing the same file."""
    return path.with_name(f".{path.name}.{uuid4().hex[:8]}.tmp")


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that gets its name when all is written; after an error or Ctrl-C nothing is left."""
    with writing_to(path.parent):
        for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):  # left by a killed writer
            left.unlink(missing_ok=True)
        with _renamed_when_done(path) as file:
            yield file


@contextmanager
def whole_path(path: Path, temporary: Path | None = None) -> Iterator[Path]:
    """Yield a temporary name for the file that becomes `path`; after an error nothing is left. Nothing is synced to disk.

    temporary: a fixed name, for writers that hold a lock: the next writer overwrites the file of a killed one.
    """
    temporary = temporary or temporary_name(path)
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def _renamed_when_done(path: Path) -> Iterator[BinaryIO]:
    """Write to a temporary name, sync, rename, sync the folder."""
    with whole_path(path) as temporary, temporary.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    _sync(path.parent)


def write_atomically(path: Path, data: Any) -> None:
    """Write all of `data` to `path`, or leave `path` as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _renamed_when_done(path) as file:
        file.write(data)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Make a folder that replaces `path` when it is complete; after an error, nothing is left."""
    new, old = path.with_name(f".{path.name}.tmp"), old_folder(path)
    with writing_to(path.parent):
        for left in (new, old):
            shutil.rmtree(left, ignore_errors=True)
        new.mkdir()
        try:
            yield new
            if path.exists():
                path.rename(old)
            new.rename(path)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        _sync(path.parent)
        shutil.rmtree(old, ignore_errors=True)


def old_folder(path: Path) -> Path:
    """Return the name under which `whole_folder` keeps the old `path` between its two renames."""
    return path.with_name(f".{path.name}.old")


def _sync(folder: Path) -> None:
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
