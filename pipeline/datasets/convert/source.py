"""What a reader gets (`Request`) and gives (`SampleSource`), and how it finds and reads the files of a download."""

import csv
import hashlib
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError

from .kinds import Kind

_WHOLE = 64_000_000  # bytes; larger files are known by their size and their beginning


@dataclass(frozen=True)
class Request:
    """One split of a download, and the settings that its kind may take."""

    kind: Kind
    folder: Path
    split: str
    check: str = "header"
    layout: str | None = None
    rows: str | None = None
    images: Path | None = None
    float16: bool = False
    noise_file: Path | None = None
    labels: str | None = None
    label_file: Path | None = None
    classes: int | None = None


@dataclass(frozen=True)
class Sample:
    """A key, the file or row it comes from, and a function that makes its parts and may raise BadSample."""

    key: str
    origin: str
    parts: Callable[[], dict[str, bytes]]


@dataclass(frozen=True)
class SampleSource:
    """Samples by number, so that a stopped job can go on at any of them.

    classes: their names by id, where there are labels. files: the lists that the samples come from, which must be unchanged
    when a job goes on. facts: more for the record, such as how many captions were moved.
    """

    count: int
    sample: Callable[[int], Sample]
    files: tuple[Path, ...]
    classes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


def find(folder: Path, *names: str) -> Path | None:
    """The first of these names below `folder` that exists."""
    return next((folder / name for name in names if (folder / name).exists()), None)


def need(request: Request, *names: str) -> Path:
    """Like `find` in the download's folder; raises ConfigError where none exists."""
    if not request.folder.is_dir():
        what = "this is a file" if request.folder.exists() else "no such folder"
        raise unusable(request.folder, f"{what}; give the folder of {request.kind.source}: {request.kind.expected}")
    found = find(request.folder, *names)
    if found is None:
        raise missing(request, " or ".join(names))
    return found


def missing(request: Request, what: str) -> ConfigError:
    """The error for files that are not there: names them, and the downloads they come from."""
    kind = request.kind
    return unusable(
        request.folder, f"has no {what}; {kind.name} --split {request.split} needs {kind.expected} (from {kind.source})"
    )


def unusable(path: Path, problem: str) -> ConfigError:
    """The error for a download's file or folder that cannot be used."""
    return ConfigError(f"source {path}: {problem}", "source", path)


def read_text(path: Path) -> str:
    """Read UTF-8, with or without a byte-order mark."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise unusable(path, f"is no UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except OSError as error:
        raise unusable(path, f"cannot be read: {error.strerror}; give a readable file") from error


def read_lines(path: Path) -> list[str]:
    """Read stripped lines; empty ones stay, because lines are counted."""
    lines = read_text(path).split("\n")  # not splitlines: captions may hold \x85 or \u2028
    return [line.strip() for line in (lines if lines[-1] else lines[:-1])]


def read_rows(path: Path) -> list[list[str]]:
    """Read the cells of a .csv with commas, or of any other file with tabs; empty lines are left out.

    Quotes around cells are removed, unless they would join lines of a file with tabs: then they belong to the captions.
    """
    text = read_text(path)
    try:
        if path.suffix.lower() == ".csv":
            return [row for row in csv.reader(io.StringIO(text, newline="")) if any(row)]
        lines = [line.rstrip("\r") for line in text.split("\n") if line.strip()]
        rows = list(csv.reader(lines, delimiter="\t"))
        return rows if len(rows) == len(lines) else list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    except csv.Error as error:
        raise unusable(path, f"is no table: {error}; write one row per line") from error


def read_array(path: Path, mmap: bool = True) -> NDArray[Any]:
    """Open an .npy without pickle, mapped from disk unless `mmap` is false."""
    try:
        found: NDArray[Any] = np.load(path, mmap_mode="r" if mmap else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise unusable(path, f"is no .npy of numbers: {error}") from error
    return found


def digest(paths: Iterable[Path]) -> dict[str, str]:
    """Each file's SHA-256 by name; of a large file, of its first 64 MB, with its size."""
    found = {}
    for path in paths:
        with path.open("rb") as file:
            size = path.stat().st_size
            found[path.name] = f"{hashlib.sha256(file.read(_WHOLE)).hexdigest()} of {min(size, _WHOLE)}/{size} bytes"
    return found
