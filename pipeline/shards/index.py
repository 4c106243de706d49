"""Where each part of each sample lies in a tar, so that one sample can be read without the others."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from noisegate.pipeline.errors import ShardError

from .locate import Shard
from .read import IMAGE_PARTS, ShardReader

__all__ = ["PARTS", "TarSamples", "write_index"]

PARTS = (*IMAGE_PARTS, "txt", "json", "cls", "npy")  # what training may read; other parts are not remembered
_DAMAGE = b"damage"


def write_index(tar: Path, path: Path) -> None:
    """Read the headers of an uncompressed tar on this machine and keep what they say in `path`, an Arrow file.

    Columns: key, whole (nothing of the sample is damaged), and for each of PARTS its offset and size, -1 where it is not.
    """
    reader = ShardReader(Shard(str(tar)))
    keys, whole = [], []
    places: dict[str, list[tuple[int, int]]] = {part: [] for part in PARTS}
    for sample in reader.index():
        keys.append(sample.key)
        whole.append(sample.broken is None)
        for part, found in places.items():
            found.append(sample.places.get(part, (-1, -1)))
    arrays: dict[str, Any] = {"key": pa.array(keys, pa.string()), "whole": pa.array(whole, pa.bool_())}
    for part, found in places.items():
        pairs = np.array(found, np.int64).reshape(-1, 2)
        if (pairs >= 0).any():
            arrays[f"{part} offset"], arrays[f"{part} size"] = pairs[:, 0], pairs[:, 1]
    table = pa.table(arrays).replace_schema_metadata({_DAMAGE: (reader.damage or "").encode()})
    temporary = path.with_suffix(".part")
    with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    temporary.replace(path)  # no fsync: an index that a power cut takes is made again


class TarSamples:
    """An open tar with its index: samples by number, in any order. Holds one open file until it is closed, or gone."""

    def __init__(self, tar: Path, index: Path, name: str) -> None:
        with pa.memory_map(str(index)) as source:  # workers share these pages; the file itself is closed again
            table = pa.ipc.open_file(source).read_all()
        self.name = name  # of the shard, for messages
        self.keys: pa.ChunkedArray = table["key"]
        self.whole: NDArray[np.bool_] = table["whole"].to_numpy()
        self.damage: str | None = table.schema.metadata[_DAMAGE].decode() or None
        self._places: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = {
            part: (table[f"{part} offset"].to_numpy(), table[f"{part} size"].to_numpy())
            for part in PARTS
            if f"{part} offset" in table.column_names
        }
        self._file: int | None = os.open(tar, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
        self._end = weakref.finalize(self, os.close, self._file)  # also where nobody closes it

    def __len__(self) -> int:
        return len(self.whole)

    def having(self, parts: Sequence[str]) -> NDArray[np.bool_]:
        """(N,) bool: the samples that have at least one of these parts."""
        found = np.zeros(len(self), bool)
        for part in parts:
            if part in self._places:
                found |= self._places[part][0] >= 0
        return found

    def key(self, sample: int) -> str:
        return str(self.keys[sample].as_py())

    def read(self, sample: int, parts: Sequence[str]) -> dict[str, bytes]:
        """Those of `parts` that the sample has; raises ShardError where the tar has become shorter than its headers say."""
        if self._file is None:
            raise ValueError(f"{self.name} is closed")
        found = {}
        for part in parts:
            offsets, sizes = self._places.get(part, (None, None))
            if offsets is None or sizes is None or offsets[sample] < 0:
                continue
            offset, size = int(offsets[sample]), int(sizes[sample])
            data = _read_at(self._file, size, offset)
            while len(data) < size and (more := _read_at(self._file, size - len(data), offset + len(data))):
                data += more  # one call gives 2 GB at most, and less on some networks
            if len(data) < size:
                raise ShardError(
                    f"shard {self.name} breaks off in sample {self.key(sample)} at byte {offset + len(data):,}; "
                    "it was longer when it was opened"
                )
            found[part] = data
        return found

    def close(self) -> None:
        self._end()
        self._file = None


def _seek_and_read(file: int, size: int, offset: int) -> bytes:
    """pread for Windows, which has none; a file here belongs to one thread, so the two calls cannot be torn apart."""
    os.lseek(file, offset, os.SEEK_SET)
    return os.read(file, size)


_read_at = getattr(os, "pread", _seek_and_read)
