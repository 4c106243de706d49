"""Embeddings from anywhere as a run: arrays on disk become tables without scores, which the usual scoring then fills.

Knows plain `.npy` files and the folders that clip-retrieval writes (`img_emb/img_emb_0.npy`, `text_emb/text_emb_0.npy`,
`metadata/metadata_0.parquet`): each file becomes one table.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from .embeddings import write_embeddings
from .errors import ConfigError
from .estimators.base import Identity, normalise
from .table import VERSION, RunFolder, table_from

__all__ = ["ArrayPart", "find_parts", "write_parts"]

KEY_COLUMNS = ("key", "uid", "image_path", "path", "url")


@dataclass(frozen=True)
class ArrayPart:
    """One image array with what belongs to the same rows."""

    stem: str
    images: Path
    texts: Path | None = None
    metadata: Path | None = None


def find_parts(images: Path, texts: Path | None = None, metadata: Path | None = None) -> list[ArrayPart]:
    """Pair image files with text and metadata files, by their numbers where folders are given.

    `images` may be clip-retrieval's output folder itself: its `text_emb` and `metadata` are then found beside it.
    """
    if images.is_dir() and (images / "img_emb").is_dir():
        texts = texts or (images / "text_emb" if (images / "text_emb").is_dir() else None)
        metadata = metadata or (images / "metadata" if (images / "metadata").is_dir() else None)
        images = images / "img_emb"
    left = _files(images, "images", ".npy")
    others: dict[str, list[Path] | None] = {
        "texts": _files(texts, "texts", ".npy") if texts else None,
        "metadata": _files(metadata, "metadata", ".parquet") if metadata else None,
    }
    for name, found in others.items():
        if found is not None and len(found) != len(left):
            raise ConfigError(f"{name}: {len(found)} files for {len(left)} of images; there must be one for each")
    stems = [path.stem for path in left]
    texts_found, metadata_found = others["texts"], others["metadata"]
    return [
        ArrayPart(stem, path, texts_found[i] if texts_found else None, metadata_found[i] if metadata_found else None)
        for i, (stem, path) in enumerate(zip(stems, left, strict=True))
    ]


def _files(path: Path, name: str, suffix: str) -> list[Path]:
    if path.is_file():
        return [path]
    found = sorted(path.glob(f"*{suffix}"), key=_number) if path.is_dir() else []
    if not found:
        raise ConfigError(f"{name}: {path} is neither a file nor a folder with *{suffix} files")
    return found


def _number(path: Path) -> tuple[int, str]:
    digits = re.findall(r"\d+", path.stem)
    return (int(digits[-1]) if digits else -1, path.name)


def write_parts(
    run: RunFolder, parts: Sequence[ArrayPart], labels: NDArray[np.int64] | None, joint: bool, reading: dict[str, Any]
) -> Identity:
    """Write a table without scores and an embedding file for each part; returns the identity of the arrays.

    `labels` (N,) runs over all parts, negative for none. `joint` says that images and texts share one space, so that
    their cosine means something.
    """
    digest = hashlib.sha256()
    shapes = []
    start = 0
    for part in parts:
        images = _array(part.images, "images")
        texts = _array(part.texts, "texts") if part.texts else np.zeros((len(images), 0), np.float32)
        if len(texts) != len(images):
            raise ConfigError(f"texts: {part.texts} has {len(texts)} rows, {part.images} has {len(images)}")
        given = None if labels is None else labels[start : start + len(images)]
        if given is not None and len(given) != len(images):
            raise ConfigError(
                f"labels: {len(labels) if labels is not None else 0} for more rows of images; give one for each row"
            )
        start += len(images)
        for array in (images, texts):
            digest.update(str(array.shape).encode() + np.ascontiguousarray(array).tobytes())
        shapes.append((images.shape[1], texts.shape[1]))
        _write_part(run, part, images, texts, given, joint and texts.shape[1] == images.shape[1], reading)
    if labels is not None and start != len(labels):
        raise ConfigError(f"labels: {len(labels):,} for {start:,} rows of images; give one for each row")
    if len(set(shapes)) > 1:
        raise ConfigError(
            f"images and texts have several widths, {sorted(set(shapes))}; all files must come from one model"
        )
    return Identity("arrays", digest.hexdigest(), "before noisegate", "none", "float16", (("numpy", np.__version__),))


def _write_part(
    run: RunFolder,
    part: ArrayPart,
    images: NDArray[np.float32],
    texts: NDArray[np.float32],
    labels: NDArray[np.int64] | None,
    joint: bool,
    reading: dict[str, Any],
) -> None:
    unit_images, unit_texts = normalise(images), normalise(texts) if texts.shape[1] else texts
    bad_image = np.asarray(~unit_images.any(axis=1))
    bad_text = np.asarray(~unit_texts.any(axis=1)) if texts.shape[1] else np.zeros(len(images), bool)
    invalid = bad_image | bad_text
    errors = [
        f"the {'image' if first else 'text'} embedding is zero or not finite" if first or second else None
        for first, second in zip(bad_image, bad_text, strict=True)
    ]
    similarity = np.full(len(images), np.nan, np.float32)
    if joint:
        similarity = np.clip(np.einsum("nd,nd->n", unit_images, unit_texts, dtype=np.float64), -1, 1).astype(np.float32)
        similarity[invalid] = np.nan
    shard = {
        "name": part.images.name,
        "sha256": "",
        "size": part.images.stat().st_size,
        "rows": len(images),
        "damage": None,
    }
    columns = {
        "key": _keys(part, len(images)),
        "index": np.arange(len(images)),
        "status": np.where(invalid, "invalid", "ok").tolist(),
        "error": errors,
        "similarity": similarity,
        "label": None if labels is None else pa.array(labels, pa.int32(), mask=labels < 0),
        "flags": [[] for _ in range(len(images))],
    }
    metadata = {"table_version": VERSION, "shard": shard, "reading": reading, "scorer": None}
    write_embeddings(run.embeddings(part.stem), unit_images, unit_texts, {"shard": shard})
    run.write_table(part.stem, table_from({k: v for k, v in columns.items() if v is not None}, metadata))


def _keys(part: ArrayPart, count: int) -> list[str]:
    """Keys from the metadata's first column of a known name, else row numbers."""
    if part.metadata is not None:
        table = pq.read_table(part.metadata)
        if len(table) != count:
            raise ConfigError(f"metadata: {part.metadata} has {len(table)} rows, {part.images} has {count}")
        name = next((column for column in KEY_COLUMNS if column in table.column_names), None)
        if name is not None:
            return [str(key) for key in table[name].to_pylist()]
    return [f"{row:09d}" for row in range(count)]


def _array(path: Path, name: str) -> NDArray[np.float32]:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}: {path} is not a readable .npy array: {error}") from error
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise ConfigError(f"{name}: {path} holds {array.dtype} of shape {array.shape}; want numbers (N, d)")
    return np.asarray(array, np.float32)
