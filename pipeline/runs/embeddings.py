"""Embeddings kept beside the tables: one safetensors file per shard, float16 matrices `image` and `text`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from noisegate.pipeline.errors import TableError
from noisegate.pipeline.system.output_files import write_atomically

from .tensor_files import map_tensors

FEW = 20  # rows are read one by one if fewer than 1 in FEW of the file is wanted


def write_embeddings(path: Path, images: NDArray[Any], texts: NDArray[Any], metadata: dict[str, Any]) -> None:
    """Store unit rows (N, d) as float16; a row of zeros has no embedding."""
    arrays = {"image": images.astype(np.float16), "text": texts.astype(np.float16)}
    plain = {name: json.dumps(value, sort_keys=True) for name, value in sorted(metadata.items())}
    write_atomically(path, save(arrays, metadata=plain))


def read_embeddings(path: Path, part: str, rows: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
    """Rows (all, or those named) of `image` or `text` as float32; a few rows do not cost the whole file."""
    try:
        with safe_open(path, framework="numpy") as file:
            stored = file.get_slice(part)
            if rows is not None and 0 < FEW * len(rows) < stored.get_shape()[0]:
                chosen: NDArray[Any] = np.concatenate([stored[row : row + 1] for row in rows.tolist()])
            else:
                chosen = file.get_tensor(part) if rows is None else file.get_tensor(part)[rows]
    except (OSError, SafetensorError) as error:
        raise TableError.of(
            "embeddings", path, f"cannot be read: {error}; run the same annotate command again"
        ) from error
    return chosen.astype(np.float32)


def map_embeddings(path: Path, part: str) -> NDArray[Any]:
    """The float16 matrix `image` or `text` as a memory map: only rows that are used are read."""
    try:
        return map_tensors(path)[0][part]
    except TableError as error:
        raise TableError.of(
            "embeddings", path, f"cannot be read: {error}; run the same annotate command again"
        ) from error


def embeddings_match(path: Path, rows: int, sha256: str) -> bool:
    """Whether the file is there, whole, has this many rows, and was made from the shard with this digest."""
    try:
        with safe_open(path, framework="numpy") as file:
            counts = {file.get_slice(part).get_shape()[0] for part in ("image", "text")}
            shard = json.loads((file.metadata() or {}).get("shard", "{}"))
    except (OSError, SafetensorError):
        return False
    return counts == {rows} and shard.get("sha256") == sha256
