"""Finding and reading the files of a download; one that is missing is named, with where it usually comes from."""

import csv
import hashlib
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError

from .source import Request

__all__ = ["digest", "find", "missing", "need", "read_array", "read_lines", "read_rows", "read_text"]

_WHOLE = 64_000_000  # larger files are known by their size and their beginning


def find(folder: Path, *names: str) -> Path | None:
    """The first of these that is there, by a name relative to the folder."""
    return next((folder / name for name in names if (folder / name).exists()), None)


def need(request: Request, *names: str) -> Path:
    """The same; raises ConfigError where none is there."""
    if not request.folder.is_dir():
        what = "is a file" if request.folder.exists() else "is not there"
        raise ConfigError(
            f"source {request.folder} {what}; give the folder of {request.kind.source}: {request.kind.expected}"
        )
    found = find(request.folder, *names)
    if found is None:
        raise missing(request, " or ".join(names))
    return found


def missing(request: Request, what: str) -> ConfigError:
    """What to say about files that are not there."""
    kind = request.kind
    return ConfigError(
        f"source {request.folder} has no {what}; {kind.name} --split {request.split} needs {kind.expected} "
        f"(from {kind.source})"
    )


def read_text(path: Path) -> str:
    """UTF-8, with or without a mark at its beginning."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; give a readable file") from error


def read_lines(path: Path) -> list[str]:
    """Lines without their ends and the blanks around; empty ones keep their place, because lines are counted."""
    lines = read_text(path).split("\n")  # not splitlines: captions may hold \x85 or \u2028
    return [line.strip() for line in (lines if lines[-1] else lines[:-1])]


def read_rows(path: Path) -> list[list[str]]:
    """Cells of a .csv with commas, or of any other file with tabs; empty lines are left out.

    Quotes around cells are taken off, unless they would join lines of a file with tabs: then they belong to the captions.
    """
    text = read_text(path)
    try:
        if path.suffix.lower() == ".csv":
            return [row for row in csv.reader(io.StringIO(text, newline="")) if any(row)]
        lines = [line.rstrip("\r") for line in text.split("\n") if line.strip()]
        rows = list(csv.reader(lines, delimiter="\t"))
        return rows if len(rows) == len(lines) else list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    except csv.Error as error:
        raise ConfigError(f"{path} is no table: {error}; write one row per line") from error


def read_array(path: Path, mmap: bool = True) -> NDArray[Any]:
    """An .npy without pickle, left on disk unless `mmap` is false."""
    try:
        found: NDArray[Any] = np.load(path, mmap_mode="r" if mmap else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(f"{path} is no .npy of numbers: {error}") from error
    return found


def digest(paths: Iterable[Path]) -> dict[str, str]:
    """What a file was when the job began: its SHA-256, or of a large one its size and the SHA-256 of its beginning."""
    found = {}
    for path in paths:
        with path.open("rb") as file:
            size = path.stat().st_size
            found[path.name] = f"{hashlib.sha256(file.read(_WHOLE)).hexdigest()} of {min(size, _WHOLE)}/{size} bytes"
    return found
