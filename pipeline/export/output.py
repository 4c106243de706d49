"""Where an export goes: never over something else, and there whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.runs.output_folder import writing_to

from .source import Source

__all__ = ["RECORD", "check_place", "whole_file", "whole_folder"]

RECORD = "_export.json"  # says what an exported folder is; only a folder that has it is ever replaced


def check_place(source: Source, out: Path, folder: bool, overwrite: bool) -> None:
    """Raises ConfigError when `out` exists or holds, or lies in, what it is made from."""
    if folder and _old(out).exists() and not out.exists():  # killed between the two renames of `whole_folder`
        _old(out).rename(out)
    target, run = out.resolve(), source.run.path.resolve()
    if target.is_relative_to(run) or run.is_relative_to(target):
        raise ConfigError(f"out {out} and the run {source.run.path} lie in one another; use a place beside it")
    for url in source.shards.values():
        if "://" not in url and Path(url).resolve().is_relative_to(target):
            raise ConfigError(f"out {out} is, or holds, the shard {url}; use another place, so that the data stays")
    if not out.exists() or (folder and out.is_dir() and not any(out.iterdir())):
        return
    if out.is_dir() != folder:
        raise ConfigError(f"out {out} is a {'file' if folder else 'folder'}; name a {'folder' if folder else 'file'}")
    if not overwrite:
        raise ConfigError(f"out {out} is there already; choose another, or use --overwrite")
    if folder and not (out / RECORD).exists():
        raise ConfigError(f"out {out} is not an export (it has no {RECORD}), so it is not replaced; choose another")


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which gets its name when all is in it; after an error, nothing is left."""
    temporary = path.with_name(f".{path.name}.tmp")
    with writing_to(path.parent):
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync(path.parent)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to write to, which takes the place of `path` when all is in it; after an error, nothing is left."""
    new, old = path.with_name(f".{path.name}.tmp"), _old(path)
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


def _old(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _sync(folder: Path) -> None:
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
