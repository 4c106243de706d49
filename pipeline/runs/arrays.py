"""Make a run from embeddings on disk: tables without scores, which the usual scoring then fills.

Reads plain `.npy` files and the folders that clip-retrieval writes (`img_emb/img_emb_0.npy`, `text_emb/text_emb_0.npy`,
`metadata/metadata_0.parquet`, or the same files side by side). Each file becomes one table.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators.base import Identity, invalid_embedding, normalise, row_cosines

from .embeddings import write_embeddings
from .table import VERSION, RunFolder, table_from

MODEL = "arrays"  # the model's name in the identity of a run that was made from arrays
KEY_COLUMNS = ("key", "uid", "image_path", "path", "url")
ROWS_AT_ONCE = 65_536  # rows normalised at a time, in float64
_LAYOUT = {"images": ("img_emb", ".npy"), "texts": ("text_emb", ".npy"), "metadata": ("metadata", ".parquet")}


@dataclass(frozen=True)
class ArrayPart:
    """One image array, with texts and metadata of the same rows; `start` is the number of its first row in the run.

    `widths` are the widths of image and text embeddings, 0 for no texts; `key` is the metadata's column of keys.
    """

    stem: str
    start: int
    rows: int
    widths: tuple[int, int]
    images: Path
    texts: Path | None = None
    metadata: Path | None = None
    key: str | None = None


def find_parts(images: Path, texts: Path | None = None, metadata: Path | None = None) -> list[ArrayPart]:
    """Find the array files and match images with texts and metadata, in folders by the numbers in the file names.

    `images` may be clip-retrieval's output folder, which has texts and metadata too. Only headers and keys are read. Raises
    ConfigError for files that are missing, unreadable or do not belong together.
    """
    if (images / "img_emb").is_dir() or any(images.glob("img_emb_*.npy")):
        texts = texts or (images if _has_files(images, "texts") else None)
        metadata = metadata or (images if _has_files(images, "metadata") else None)
    image_files = _list_files(images, "images")
    text_files = _match_files(texts, "texts", image_files) if texts else {}
    tables = _match_files(metadata, "metadata", image_files) if metadata else {}
    parts: list[ArrayPart] = []
    start = 0
    for number, path in image_files.items():
        part = _read_headers(path, text_files.get(number), tables.get(number), start)
        if parts and part.widths != parts[0].widths:
            raise ConfigError.of("images", path, f"has widths {part.widths}, not {parts[0].widths}; use one model")
        parts.append(part)
        start += part.rows
    return parts


def _has_files(folder: Path, name: str) -> bool:
    """Return whether clip-retrieval's output folder has texts, or metadata."""
    prefix, suffix = _LAYOUT[name]
    return (folder / prefix).is_dir() or any(folder.glob(f"{prefix}_*{suffix}"))


def _list_files(path: Path, name: str) -> dict[tuple[Any, ...], Path]:
    """List the file at `path`, or the files of that folder, by the distinguishing numbers in their names and in that order."""
    prefix, suffix = _LAYOUT[name]
    if path.is_file():
        return {(): path}
    folder = path / prefix if (path / prefix).is_dir() else path
    files = sorted(folder.glob(f"{prefix}*{suffix}")) or sorted(folder.glob(f"*{suffix}"))
    if not files:
        raise ConfigError.of(name, path, f"is neither a file nor a folder with *{suffix} files")
    return dict(sorted(zip(_number_files(files), files, strict=True)))


def _number_files(files: Sequence[Path]) -> list[tuple[Any, ...]]:
    """Return the numbers in each name that differ between files (`img_emb_0`: 0); the names if the numbers are not unique."""
    numbers = [tuple(map(int, re.findall(r"\d+", path.stem))) for path in files]
    if len({len(some) for some in numbers}) > 1:
        numbers = [some[-1:] for some in numbers]
    places = [place for place, column in enumerate(zip(*numbers, strict=False)) if len(set(column)) > 1]
    differing: list[tuple[Any, ...]] = [tuple(some[place] for place in places) for some in numbers]
    return differing if len(set(differing)) == len(files) else [(path.stem,) for path in files]


def _match_files(path: Path, name: str, images: dict[tuple[Any, ...], Path]) -> dict[tuple[Any, ...], Path]:
    files = _list_files(path, name)
    if len(files) != len(images):
        raise ConfigError.of(name, path, f"has {len(files)} files for {len(images)} of images; give one for each")
    if alone := [file for number, file in images.items() if number not in files]:
        raise ConfigError.of(name, path, f"has no file with the number of {alone[0].name}; give one for each")
    return files


def _read_headers(images: Path, texts: Path | None, metadata: Path | None, start: int) -> ArrayPart:
    shape = open_array(images, "images", 2).shape
    rows, width = open_array(texts, "texts", 2).shape if texts else (shape[0], 0)
    if rows != shape[0]:
        raise ConfigError.of("texts", texts, f"has {rows:,} rows, {images} has {shape[0]:,}; give one for each")
    for name, path, numbers in (("images", images, shape[1]), ("texts", texts, width)):
        if path and not numbers:
            raise ConfigError.of(name, path, "has rows without any numbers; want (N, d) with d of 1 or more")
    key = _find_key_column(metadata, images, rows) if metadata else None
    return ArrayPart(images.stem, start, rows, (shape[1], width), images, texts, metadata, key)


def _find_key_column(path: Path, images: Path, rows: int) -> str:
    try:
        count, schema = pq.read_metadata(path).num_rows, pq.read_schema(path)
    except (OSError, pa.ArrowInvalid) as error:
        reason = " ".join(str(error).split())
        raise ConfigError.of("metadata", path, f"is not a readable Parquet file: {reason}") from error
    if count != rows:
        raise ConfigError.of("metadata", path, f"has {count:,} rows, {images} has {rows:,}; give one for each")
    column = next((name for name in KEY_COLUMNS if name in schema.names), None)
    if column is None:
        raise ConfigError.of("metadata", path, f"has no column called {' or '.join(KEY_COLUMNS)}, where keys come from")
    kind = schema.field(column).type
    if not (pa.types.is_null(kind) or _is_text(kind) or pa.types.is_integer(kind)):
        raise ConfigError.of("metadata", path, f"has {column} of type {kind}; keys are text or whole numbers")
    if missing := sum(not key for key in read_keys(path, column)):
        raise ConfigError.of("metadata", path, f"has {missing:,} rows without {column}; every row needs one")
    return column


def _is_text(kind: pa.DataType) -> bool:
    """Return whether a type is text or bytes: some writers of Parquet do not mark text as UTF-8."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def read_keys(path: Path, column: str) -> list[str]:
    """Read the keys, '' for missing ones."""
    return [
        "" if key is None else key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else str(key)
        for key in pq.read_table(path, columns=[column])[column].to_pylist()
    ]


def open_array(path: Path, name: str, dimensions: int, kinds: str = "fiu") -> NDArray[Any]:
    """Map an `.npy` file of numbers into memory; raise ConfigError about the setting `name` for anything else.

    `kinds` are numpy's letters of the accepted types: f for floats, i and u for whole numbers. Pickles are never loaded.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise ConfigError.of(name, path, "is no file; give an .npy file, as numpy.save writes it") from error
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError.of(name, path, "is no whole .npy file of numbers; write one with numpy.save") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise ConfigError.of(name, path, "holds several arrays; save one of them as .npy with numpy.save")
    if array.ndim != dimensions or array.dtype.kind not in kinds:
        wanted = f"{'numbers' if 'f' in kinds else 'whole numbers'} {'(N, d)' if dimensions == 2 else '(N,)'}"
        raise ConfigError.of(name, path, f"holds {array.dtype} of shape {array.shape}; want {wanted}")
    return array


def check_labels(labels: NDArray[Any], rows: int) -> NDArray[np.int64]:
    """Check class numbers (N,), negative for none, and return them as int64; raise ConfigError if they do not fit."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ConfigError.of("labels", labels.shape, f"is the shape of {labels.dtype}; want whole numbers (N,)")
    if len(labels) != rows:
        raise ConfigError.of("labels", len(labels), f"do not fit {rows:,} rows of images; give one for each row")
    if len(labels) and labels.max() >= 2**31:
        raise ConfigError.of("labels", int(labels.max()), "is too large for a class; number the classes 0, 1, 2, …")
    return labels.astype(np.int64)


def arrays_identity(parts: Sequence[ArrayPart]) -> Identity:
    """Make the identity of a run made from these arrays, with a digest of all their bytes."""
    digest = hashlib.sha256()
    for part in parts:
        for name, path in (("images", part.images), ("texts", part.texts)):
            if path is not None:
                array = open_array(path, name, 2)
                digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
                for rows in _chunks(array):
                    digest.update(rows.data)
    versions = (("numpy", np.__version__),)
    return Identity(MODEL, digest.hexdigest(), "before noisegate", "none", "float16", versions)


def write_parts(
    run: RunFolder,
    parts: Sequence[ArrayPart],
    labels: NDArray[np.int64] | None,
    joint: bool,
    metadata: Mapping[str, Any],
) -> None:
    """Write a table without scores and an embedding file for each part.

    `labels` (N,) are the labels of all parts, negative for none. `joint`: images and texts share one space and have a cosine.
    `metadata` goes into every table.
    """
    for part in parts:
        images = _read_unit_rows(part.images, "images")
        texts = _read_unit_rows(part.texts, "texts") if part.texts else np.zeros((part.rows, 0), np.float32)
        bad_image = np.asarray(~images.any(axis=1))
        bad_text = np.asarray(~texts.any(axis=1)) if part.texts else np.zeros(part.rows, bool)
        keys = [f"{row:09d}" for row in range(part.start, part.start + part.rows)]  # unique in the run
        if part.metadata and part.key:
            keys = read_keys(part.metadata, part.key)
        first_rows = {key: row for row, key in reversed(list(enumerate(keys)))}
        given = None if labels is None else labels[part.start : part.start + part.rows]
        columns = {
            "key": keys,
            "index": np.arange(part.rows),
            "status": np.where(bad_image | bad_text, "invalid", "ok").tolist(),
            "error": [
                invalid_embedding("image" if no_image else "text") if no_image or no_text else None
                for no_image, no_text in zip(bad_image, bad_text, strict=True)
            ],
            "similarity": row_cosines(images, texts)
            if joint and part.texts
            else np.full(part.rows, np.nan, np.float32),
            "label": None if given is None else pa.array(given, pa.int32(), mask=given < 0),
            "flags": [[] if first_rows[key] == row else ["duplicate_key"] for row, key in enumerate(keys)],
        }
        size = part.images.stat().st_size
        shard = {"name": part.images.name, "sha256": "", "size": size, "rows": part.rows, "damage": None}
        digest = write_embeddings(run.embeddings(part.stem), images, texts, {"shard": shard})
        described = {**metadata, "table_version": VERSION, "shard": shard, "embeddings": digest}
        run.write_table(part.stem, table_from(columns, described))


def _read_unit_rows(path: Path, name: str) -> NDArray[np.float32]:
    """Read rows of length one, (N, d), zeros for rows without a direction."""
    array = open_array(path, name, 2)
    unit = np.empty(array.shape, np.float32)
    for number, rows in enumerate(_chunks(array)):
        unit[number * ROWS_AT_ONCE :][: len(rows)] = normalise(rows)
    return unit


def _chunks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    for start in range(0, len(array), ROWS_AT_ONCE):
        yield np.ascontiguousarray(array[start : start + ROWS_AT_ONCE])
