"""Embeddings from anywhere as a run: arrays on disk become tables without scores, which the usual scoring then fills.

Knows plain `.npy` files and the folders that clip-retrieval writes (`img_emb/img_emb_0.npy`, `text_emb/text_emb_0.npy`,
`metadata/metadata_0.parquet`, or the same files side by side): each file becomes one table.
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
ROWS_AT_ONCE = 65_536  # made unit length at a time, in float64
_LAYOUT = {"images": ("img_emb", ".npy"), "texts": ("text_emb", ".npy"), "metadata": ("metadata", ".parquet")}


@dataclass(frozen=True)
class ArrayPart:
    """One image array with what belongs to the same rows. `start` counts its rows on from the parts before it.

    `widths` are the numbers in an image and in a text embedding, 0 for no texts; `key` is the metadata's column of keys.
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
    """Find the files, pair them (by the numbers in their names where folders are given) and see that they fit.

    `images` may be clip-retrieval's output folder itself: texts and metadata are then found in it. Only headers are
    read. Raises ConfigError for files that are missing, unreadable or do not belong together.
    """
    if (images / "img_emb").is_dir() or any(images.glob("img_emb_*.npy")):
        texts = texts or _beside(images, "texts")
        metadata = metadata or _beside(images, "metadata")
    pictures = _files(images, "images")
    captions = _paired(texts, "texts", pictures) if texts else {}
    tables = _paired(metadata, "metadata", pictures) if metadata else {}
    parts: list[ArrayPart] = []
    start = 0
    for number, path in pictures.items():
        part = _part(path, captions.get(number), tables.get(number), start)
        if parts and part.widths != parts[0].widths:
            raise ConfigError.of(
                "images", path, f"has widths {part.widths}, others {parts[0].widths}; use one model for all"
            )
        parts.append(part)
        start += part.rows
    return parts


def _beside(folder: Path, name: str) -> Path | None:
    """Where clip-retrieval's folder has its texts or metadata, None where it has none."""
    prefix, suffix = _LAYOUT[name]
    return folder if (folder / prefix).is_dir() or any(folder.glob(f"{prefix}_*{suffix}")) else None


def _files(path: Path, name: str) -> dict[tuple[Any, ...], Path]:
    """One file, or those of a folder in the order of their numbers, by what tells them apart."""
    prefix, suffix = _LAYOUT[name]
    if path.is_file():
        return {(): path}
    folder = path / prefix if (path / prefix).is_dir() else path
    found = sorted(folder.glob(f"{prefix}*{suffix}")) or sorted(folder.glob(f"*{suffix}"))
    if not found:
        raise ConfigError.of(name, path, f"is neither a file nor a folder with *{suffix} files")
    return dict(sorted(zip(_numbers(found), found, strict=True)))


def _numbers(files: Sequence[Path]) -> list[tuple[Any, ...]]:
    """The numbers in each name that tell it from the others (`img_emb_0`: 0), or the names where no number does."""
    found = [tuple(map(int, re.findall(r"\d+", path.stem))) for path in files]
    if len({len(numbers) for numbers in found}) > 1:
        found = [numbers[-1:] for numbers in found]
    places = [at for at, column in enumerate(zip(*found, strict=False)) if len(set(column)) > 1]
    telling: list[tuple[Any, ...]] = [tuple(numbers[at] for at in places) for numbers in found]
    return telling if len(set(telling)) == len(files) else [(path.stem,) for path in files]


def _paired(path: Path, name: str, images: dict[tuple[Any, ...], Path]) -> dict[tuple[Any, ...], Path]:
    found = _files(path, name)
    if len(found) != len(images):
        raise ConfigError.of(name, path, f"has {len(found)} files for {len(images)} of images; give one for each")
    lost = [file for number, file in images.items() if number not in found]
    if lost:
        raise ConfigError.of(name, path, f"has no file with the number of {lost[0].name}; give one for each")
    return found


def _part(images: Path, texts: Path | None, metadata: Path | None, start: int) -> ArrayPart:
    left = open_array(images, "images", 2)
    right = open_array(texts, "texts", 2) if texts else None
    if right is not None and len(right) != len(left):
        raise ConfigError.of("texts", texts, f"has {len(right):,} rows, {images} has {len(left):,}; give one for each")
    for name, path, array in (("images", images, left), ("texts", texts, right)):
        if array is not None and array.shape[1] == 0:
            raise ConfigError.of(name, path, "has rows without any numbers; want (N, d) with d of 1 or more")
    widths = left.shape[1], 0 if right is None else right.shape[1]
    key = _key_column(metadata, images, len(left)) if metadata else None
    return ArrayPart(images.stem, start, len(left), widths, images, texts, metadata, key)


def _key_column(path: Path, images: Path, rows: int) -> str:
    try:
        file = pq.read_metadata(path)
        schema = pq.read_schema(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError.of("metadata", path, f"is not a readable Parquet file: {_line(error)}") from error
    if file.num_rows != rows:
        raise ConfigError.of("metadata", path, f"has {file.num_rows:,} rows, {images} has {rows:,}; give one for each")
    found = next((name for name in KEY_COLUMNS if name in schema.names), None)
    if found is None:
        raise ConfigError.of("metadata", path, f"has no column called {' or '.join(KEY_COLUMNS)}, where keys come from")
    kind = schema.field(found).type
    if not (pa.types.is_null(kind) or _is_text(kind) or pa.types.is_integer(kind)):
        raise ConfigError(f"metadata: {found} of {path} is {kind}; keys are text or whole numbers", "metadata", path)
    lacking = sum(not key for key in _read_keys(path, found))
    if lacking:
        raise ConfigError.of("metadata", path, f"has {lacking:,} rows without {found}; every row needs one")
    return found


def _is_text(kind: pa.DataType) -> bool:
    """Text, or its bytes: some writers of Parquet leave out that they are UTF-8."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests)


def _read_keys(path: Path, column: str) -> list[str]:
    """The keys, '' for those that are missing."""
    found = pq.read_table(path, columns=[column])[column].to_pylist()
    return [
        "" if key is None else key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else str(key)
        for key in found
    ]


def open_array(path: Path, name: str, dimensions: int, kinds: str = "fiu") -> NDArray[Any]:
    """A memory map of an `.npy` file of numbers; raises ConfigError, naming the setting, for anything else.

    `kinds` are numpy's letters of the types that will do: f for floats, i and u for whole numbers. Pickled objects are
    never loaded.
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
    """Class numbers (N,), negative for none, one for each row of the images; raises ConfigError where they are not."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ConfigError.of("labels", labels.shape, f"is the shape of {labels.dtype}; want whole numbers (N,)")
    if len(labels) != rows:
        raise ConfigError.of("labels", len(labels), f"do not fit {rows:,} rows of images; give one for each row")
    if len(labels) and labels.max() >= 2**31:
        raise ConfigError.of("labels", int(labels.max()), "is too large for a class; number the classes 0, 1, 2, …")
    return labels.astype(np.int64)


def arrays_identity(parts: Sequence[ArrayPart]) -> Identity:
    """The scorer of a run that is made from these arrays; reads all of them, for their digest."""
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

    `labels` (N,) runs over all parts, negative for none. `joint` says that images and texts share one space, so that
    their cosine means something. `metadata` goes into every table.
    """
    for part in parts:
        images = _unit_rows(part.images, "images")
        texts = _unit_rows(part.texts, "texts") if part.texts else np.zeros((part.rows, 0), np.float32)
        given = None if labels is None else labels[part.start : part.start + part.rows]
        _write_part(run, part, images, texts, given, joint, metadata)


def _unit_rows(path: Path, name: str) -> NDArray[np.float32]:
    """(N, d) rows of length one, zeros for those without a direction."""
    array = open_array(path, name, 2)
    unit = np.empty(array.shape, np.float32)
    start = 0
    for rows in _chunks(array):
        unit[start : start + len(rows)] = normalise(rows)
        start += len(rows)
    return unit


def _chunks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    for start in range(0, len(array), ROWS_AT_ONCE):
        yield np.ascontiguousarray(array[start : start + ROWS_AT_ONCE])


def _write_part(
    run: RunFolder,
    part: ArrayPart,
    images: NDArray[np.float32],
    texts: NDArray[np.float32],
    labels: NDArray[np.int64] | None,
    joint: bool,
    metadata: Mapping[str, Any],
) -> None:
    bad_image = np.asarray(~images.any(axis=1))
    bad_text = np.asarray(~texts.any(axis=1)) if part.texts else np.zeros(part.rows, bool)
    invalid = bad_image | bad_text
    errors = [
        invalid_embedding("image" if no_image else "text") if no_image or no_text else None
        for no_image, no_text in zip(bad_image, bad_text, strict=True)
    ]
    similarity = row_cosines(images, texts) if joint and part.texts else np.full(part.rows, np.nan, np.float32)
    size = part.images.stat().st_size
    shard = {"name": part.images.name, "sha256": "", "size": size, "rows": part.rows, "damage": None}
    keys = _keys(part)
    first = {key: row for row, key in reversed(list(enumerate(keys)))}
    columns = {
        "key": keys,
        "index": np.arange(part.rows),
        "status": np.where(invalid, "invalid", "ok").tolist(),
        "error": errors,
        "similarity": similarity,
        "label": pa.nulls(part.rows, pa.int32()) if labels is None else pa.array(labels, pa.int32(), mask=labels < 0),
        "flags": [[] if first[key] == row else ["duplicate_key"] for row, key in enumerate(keys)],
    }
    write_embeddings(run.embeddings(part.stem), images, texts, {"shard": shard})
    run.write_table(part.stem, table_from(columns, {**metadata, "table_version": VERSION, "shard": shard}))


def _keys(part: ArrayPart) -> list[str]:
    """From the metadata, else row numbers over all parts, so that no two rows of a run share one."""
    if part.metadata is None or part.key is None:
        return [f"{row:09d}" for row in range(part.start, part.start + part.rows)]
    return _read_keys(part.metadata, part.key)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
