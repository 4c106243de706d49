"""Embeddings kept beside the tables: one safetensors file per shard, float16 matrices `image` and `text`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from .errors import TableError
from .table import write_atomically

__all__ = ["embeddings_match", "read_embeddings", "write_embeddings"]


def write_embeddings(path: Path, images: NDArray[Any], texts: NDArray[Any], metadata: dict[str, Any]) -> None:
    """Store unit rows (N, d) as float16; a row of zeros has no embedding."""
    arrays = {"image": images.astype(np.float16), "text": texts.astype(np.float16)}
    plain = {name: json.dumps(value, sort_keys=True) for name, value in sorted(metadata.items())}
    write_atomically(path, save(arrays, metadata=plain))


def read_embeddings(path: Path, part: str, rows: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
    """Rows (all, or those named) of `image` or `text` as float32, read through a memory map."""
    try:
        with safe_open(path, framework="numpy") as file:
            matrix = file.get_tensor(part)
    except (OSError, SafetensorError) as error:
        raise TableError(
            f"embeddings {path} cannot be read: {error}; score the shard again with --overwrite"
        ) from error
    chosen: NDArray[Any] = matrix if rows is None else matrix[rows]
    return chosen.astype(np.float32)


def embeddings_match(path: Path, rows: int) -> bool:
    """Whether the file is there, whole, and has this many rows."""
    try:
        with safe_open(path, framework="numpy") as file:
            return bool(file.get_slice("image").get_shape()[0] == rows == file.get_slice("text").get_shape()[0])
    except (OSError, SafetensorError):
        return False
