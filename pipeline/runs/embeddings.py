"""Embeddings kept beside the tables: one safetensors file per shard, float16 matrices `image` and `text`, memory-mapped."""

import errno
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from noisegate.pipeline.errors import TableError
from noisegate.pipeline.system.output_files import write_atomically

FEW = 20  # rows are read one by one if fewer than 1 in FEW of the file's rows are wanted
_KINDS = {"F16": np.float16, "F32": np.float32, "F64": np.float64, "I32": np.int32, "I64": np.int64}
ALLOCATE = getattr(os, "posix_fallocate", None)
_NAMES = {np.dtype(kind): name for name, kind in _KINDS.items()}


def write_embeddings(path: Path, images: NDArray[Any], texts: NDArray[Any], metadata: dict[str, Any]) -> str:
    """Store unit rows (N, d) as float16; a row of zeros has no embedding. Return the SHA-256 of the file, in hex."""
    arrays = {"image": images.astype(np.float16), "text": texts.astype(np.float16)}
    plain = {name: json.dumps(value, sort_keys=True) for name, value in sorted(metadata.items())}
    data = save(arrays, metadata=plain)
    write_atomically(path, data)
    return hashlib.sha256(data).hexdigest()


def read_embeddings(path: Path, part: str, rows: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
    """Read all or the given rows of `image` or `text` as float32; for a few rows not the whole file is read."""
    try:
        with safe_open(path, framework="numpy") as file:
            stored = file.get_slice(part)
            if rows is not None and 0 < FEW * len(rows) < stored.get_shape()[0]:
                chosen: NDArray[Any] = np.concatenate([stored[row : row + 1] for row in rows.tolist()])
            else:
                chosen = file.get_tensor(part) if rows is None else file.get_tensor(part)[rows]
    except (OSError, SafetensorError) as error:
        raise TableError.of("embeddings", path, f"cannot be read: {error}; run annotate again") from error
    return chosen.astype(np.float32)


def map_embeddings(path: Path, part: str) -> NDArray[Any]:
    """Map the float16 matrix `image` or `text` into memory: only the rows used are read."""
    try:
        return map_tensors(path)[0][part]
    except TableError as error:
        raise TableError.of("embeddings", path, f"cannot be read: {error}; run annotate again") from error


def embeddings_match(path: Path, rows: int, sha256: str) -> bool:
    """Return whether the file is complete, has this many rows, and was made from the shard with this digest."""
    try:
        with safe_open(path, framework="numpy") as file:
            counts = {file.get_slice(part).get_shape()[0] for part in ("image", "text")}
            shard = json.loads((file.metadata() or {}).get("shard", "{}"))
    except (OSError, SafetensorError):
        return False
    return counts == {rows} and shard.get("sha256") == sha256


def map_tensors(
    path: str | os.PathLike[str], mode: Literal["r", "r+"] = "r"
) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Map the tensors of a file, and return its metadata; raise TableError unless it is a complete safetensors file."""
    try:
        size = Path(path).stat().st_size
        with Path(path).open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if 8 + length <= size else None
        if not isinstance(header, dict):
            raise ValueError("its header is not whole")
        metadata = header.pop("__metadata__", {})
        tensors = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            kind, shape = np.dtype(_KINDS[entry["dtype"]]), tuple(entry["shape"])
            if 8 + length + end > size or end - begin != kind.itemsize * int(np.prod(shape)):
                raise ValueError(f"{name} is not whole")
            if end == begin:  # an empty tensor cannot be mapped
                tensors[name] = np.empty(shape, kind)
            else:
                tensors[name] = np.memmap(path, kind, mode, 8 + length + begin, shape)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TableError(f"{path} is not a readable safetensors file: {error}", "file", path) from error
    return tensors, metadata


def create_tensors(
    path: Path, shapes: Mapping[str, tuple[tuple[int, ...], Any]], metadata: Mapping[str, str]
) -> dict[str, NDArray[Any]]:
    """Create a file of zeros with its disk space reserved, to be filled through the returned maps.

    Equal contents give equal bytes.

    `shapes` are (shape, dtype) by name, in the order of the file.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, (shape, kind) in shapes.items():
        begin, end = end, end + np.dtype(kind).itemsize * int(np.prod(shape))
        header[name] = {"dtype": _NAMES[np.dtype(kind)], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    reserve(path)
    return map_tensors(path, "r+")[0]


def reserve(path: Path, allocate: Callable[[int, int, int], None] | None = ALLOCATE) -> None:
    """Reserve the disk space of a file that will be filled through a map; raise OSError if there is too little.

    Without it, a full disk would end the process by SIGBUS, without a message. The file is removed after an error.
    """
    size = path.stat().st_size
    if allocate is None or not size:
        return
    with path.open("r+b") as file:
        try:
            allocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):  # a file system that cannot reserve space
                return
            path.unlink()
            raise OSError(error.errno, error.strerror, str(path)) from error
