"""Input (`Request`) and output (`SampleSource`) of the readers; functions to read a download and make sample parts."""

import csv
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.settings import Limits
from noisegate.pipeline.shards.decode import FORMATS, BadSample, decode_image
from noisegate.pipeline.shards.read import IMAGE_PARTS

from .kinds import Kind

_WHOLE = 64_000_000  # bytes; larger files are identified by their size and a digest of their beginning


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
    image_column: str | None = None
    text_column: str | None = None
    label_column: str | None = None


@dataclass(frozen=True)
class Sample:
    """A key, the file or row it comes from, and a function that makes its parts and may raise BadSample."""

    key: str
    origin: str
    parts: Callable[[], dict[str, bytes]]


@dataclass(frozen=True)
class SampleSource:
    """Samples by number, so that a stopped job can go on at any sample.

    classes: class names by id, if there are labels. files: the lists that the samples come from, which must be unchanged
    when a job goes on. facts: more for the record, such as how many captions were moved.
    """

    count: int
    sample: Callable[[int], Sample]
    files: tuple[Path, ...]
    classes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


def find(folder: Path, *names: str) -> Path | None:
    """Return the first of these names that exists below `folder`."""
    return next((folder / name for name in names if (folder / name).exists()), None)


def need(request: Request, *names: str) -> Path:
    """Like `find` in the download's folder, but raise ConfigError if none exists."""
    if not request.folder.is_dir():
        what = "this is a file" if request.folder.exists() else "no such folder"
        raise unusable(request.folder, f"{what}; give the folder of {request.kind.source}: {request.kind.expected}")
    path = find(request.folder, *names)
    if path is None:
        raise missing(request, " or ".join(names))
    return path


def missing(request: Request, what: str) -> ConfigError:
    """Make the error for missing files; it names the files and the downloads they come from."""
    kind = request.kind
    return unusable(
        request.folder, f"has no {what}; {kind.name} --split {request.split} needs {kind.expected} (from {kind.source})"
    )


def unusable(path: Path, problem: str) -> ConfigError:
    """Make the error for a file or folder of a download that cannot be used."""
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

    Quotes around cells are removed, except in a file with tabs where they would join lines: there they are part of captions.
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
        array: NDArray[Any] = np.load(path, mmap_mode="r" if mmap else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise unusable(path, f"is no .npy of numbers: {error}") from error
    return array


def digest(paths: Iterable[Path]) -> dict[str, str]:
    """Return each file's SHA-256 by name; for a large file the size, and the SHA-256 of its first 64 MB."""
    digests = {}
    for path in paths:
        with path.open("rb") as file:
            size = path.stat().st_size
            digests[path.name] = f"{hashlib.sha256(file.read(_WHOLE)).hexdigest()} of {min(size, _WHOLE)}/{size} bytes"
    return digests


CHECKS = ("header", "full")
_NAMES = {"JPEG": "jpg", "MPO": "jpg", "PNG": "png", "WEBP": "webp"}


def picture_file(path: Path, check: str = "header") -> dict[str, bytes]:
    """Return one part with the file's bytes, named by the file's suffix, or by its content if that is not a picture's suffix.

    Raise BadSample if the file is missing or not a picture; `full` decodes all of it, `header` only its beginning.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise BadSample("no_image", f"{path.name} is not there") from error
    except OSError as error:
        raise BadSample("bad_image", f"{path.name} cannot be read: {error.strerror}") from error
    return picture_bytes(data, check, path.suffix.lower().lstrip(".") if is_picture(path) else None)


def picture_bytes(data: bytes, check: str = "header", part: str | None = None) -> dict[str, bytes]:
    """Return one part with these bytes, named `part` or by their content; raise BadSample if they are not a picture."""
    if check == "full":
        decode_image(data, Limits())
    content = _format(data)
    name = part or _NAMES.get(content)
    if name is None:
        raise BadSample("bad_image", f"a {content} file; shards hold JPEG, PNG and WebP")
    return {name: data}


def _format(data: bytes) -> str:
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return str(image.format)
    except Exception as error:  # Pillow's plugins raise errors of any type for broken files
        reason = "not a readable JPEG, PNG, WebP or GIF" if data else "0 bytes"
        raise BadSample("bad_image", reason) from error


def is_picture(path: Path) -> bool:
    """Whether the file's suffix is one of those that shards hold."""
    return path.suffix.lower().lstrip(".") in IMAGE_PARTS


def png_part(pixels: NDArray[np.uint8]) -> bytes:
    """Encode (H, W, 3) pixels as a PNG, without loss."""
    packed = io.BytesIO()
    Image.fromarray(pixels).save(packed, "PNG")
    return packed.getvalue()


def array_part(array: NDArray[Any], float16: bool = False) -> bytes:
    """Encode an array as .npy of float32 or float16; raise BadSample if a number is not finite."""
    with np.errstate(over="ignore"):  # reported below
        kept = np.ascontiguousarray(array, dtype=np.float16 if float16 else np.float32)
    if not np.isfinite(kept).all():
        what = "too large for float16" if np.isfinite(array).all() else "not finite"
        raise BadSample("bad_image", f"features that are {what}")
    packed = io.BytesIO()
    np.lib.format.write_array(packed, kept, version=(1, 0), allow_pickle=False)
    return packed.getvalue()


def json_part(record: Mapping[str, Any]) -> bytes:
    """Encode a record as JSON; the order of its fields is kept."""
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace")


def key_of(split: str, number: int) -> str:
    """Make the key of a sample: letters, digits and `-`; keys sort by number.

    >>> key_of("train", 12)
    'train-0000012'
    """
    return f"{re.sub(r'[^a-z0-9]', '-', split)}-{number:07d}"


def label_parts(picture: Mapping[str, bytes], image_id: str, label: int, known: Mapping[str, Any]) -> dict[str, bytes]:
    """Make the parts of a labelled picture: its class is in `cls` and in the json; `known` adds fields such as clean_label."""
    record = {"image_id": image_id, "label": label, **known}
    return {**picture, "cls": str(label).encode(), "json": json_part(record)}


def picture_samples(
    request: Request,
    folder: Path,
    names: Sequence[str],
    labels: Sequence[int],
    files: tuple[Path, ...],
    classes: tuple[str, ...] = (),
    known: Callable[[int], Mapping[str, Any]] = lambda number: {},
    facts: Mapping[str, Any] | None = None,
) -> SampleSource:
    """Samples of picture files below `folder` with their labels, in this order."""
    if not names:
        raise unusable(request.folder, f"--split {request.split} lists no pictures; check its files")
    check_classes(labels, classes, request.folder)

    def sample(number: int) -> Sample:
        name, label = names[number], int(labels[number])

        def parts() -> dict[str, bytes]:
            if label < 0:
                raise BadSample("bad_label", "the label is no class number")
            return label_parts(picture_file(folder / name, request.check), name, label, known(number))

        return Sample(key_of(request.split, number), name, parts)

    return SampleSource(len(names), sample, files, classes, facts or {})


def check_classes(labels: Sequence[int], classes: Sequence[str], place: Path) -> None:
    """Raise ConfigError if a label has no class."""
    largest = max(labels, default=-1)
    if classes and largest >= len(classes):
        raise unusable(place, f"a label is {largest}, and there are {len(classes)} classes; check its lists")
