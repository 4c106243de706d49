"""Read single samples of a shard by position, without reading the samples before them.

`read_samples` reads a few samples once. For many reads of one tar, index it once (`index_samples`; `save_index` keeps the index
in a file) and open it as `TarSamples`.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from noisegate.pipeline.errors import ShardError
from noisegate.pipeline.settings import Limits
from noisegate.pipeline.system.output_files import whole_path

from .locate import Shard
from .read import IMAGE_PARTS, RawSample, ShardReader, is_read, part_limit

PARTS = (*IMAGE_PARTS, "txt", "json", "cls", "npy")  # what scoring and training may read; an index has only these
_GZIP = b"\x1f\x8b"
_DAMAGE = b"damage"


def is_compressed(shard: Shard) -> bool:
    """Return whether the shard is a tar.gz, by its first bytes; raise ShardError if it cannot be opened."""
    with shard.open() as stream:
        return stream.read(2) == _GZIP


def read_samples(
    shard: Shard, positions: Collection[int], parts: Collection[str] | None = None, limits: Limits | None = None
) -> Iterator[RawSample]:
    """Yield the samples at these positions in the order of the shard; nothing after the last of them is read.

    From a local uncompressed tar, only headers and the wanted samples are read, and only their `parts` if given.
    Parts beyond `limits` are left out. Raises ShardError.
    """
    last = max(positions)
    if shard.is_remote or is_compressed(shard):
        with closing(iter(ShardReader(shard, limits=limits))) as samples:
            for raw in samples:
                if raw.index in positions:
                    yield raw
                if raw.index >= last:
                    return
        return
    with shard.open() as file, closing(ShardReader(shard).index()) as samples:
        for raw in samples:
            if raw.index in positions:
                for part, (offset, size) in raw.places.items():
                    fits = is_read(part, size) and size <= part_limit(part, limits)
                    if fits and (parts is None or part in parts):
                        file.seek(offset)
                        raw.parts[part] = file.read(size)
                yield raw
            if raw.index >= last:
                return


def index_samples(tar: Path) -> pa.Table:
    """Read the headers of a local uncompressed tar; one row per sample.

    Columns: key, whole (no part of the sample is damaged), and offset and size of each of PARTS that occurs, -1 if a sample
    does not have the part. Raises ShardError.
    """
    reader = ShardReader(Shard(str(tar)))
    keys, whole = [], []
    places: dict[str, list[tuple[int, int]]] = {part: [] for part in PARTS}
    for raw in reader.index():
        keys.append(raw.key)
        whole.append(raw.broken is None)
        for part, rows in places.items():
            rows.append(raw.places.get(part, (-1, -1)))
    columns: dict[str, Any] = {"key": pa.array(keys, pa.string()), "whole": pa.array(whole, pa.bool_())}
    for part, rows in places.items():
        pairs = np.array(rows, np.int64).reshape(-1, 2)
        if (pairs >= 0).any():
            columns[f"{part} offset"], columns[f"{part} size"] = pairs[:, 0], pairs[:, 1]
    return pa.table(columns).replace_schema_metadata({_DAMAGE: (reader.damage or "").encode()})


def save_index(index: pa.Table, path: Path) -> None:
    """Write an index to an Arrow file."""
    with (
        whole_path(path, path.with_suffix(".part")) as temporary,
        pa.OSFile(str(temporary), "wb") as sink,
        pa.ipc.new_file(sink, index.schema) as writer,
    ):
        writer.write_table(index.combine_chunks())


def load_index(path: Path) -> pa.Table:
    """Map an index into memory, so that worker processes share its pages."""
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


class TarSamples:
    """An open tar with its index: samples by position, in any order. Holds one open file until closed or collected."""

    def __init__(self, tar: Path, index: pa.Table, name: str) -> None:
        self.name = name  # the shard's name, for messages
        self.keys: pa.ChunkedArray = index["key"]
        self.whole: NDArray[np.bool_] = index["whole"].to_numpy()
        self.damage: str | None = index.schema.metadata[_DAMAGE].decode() or None
        self._places: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = {
            part: (index[f"{part} offset"].to_numpy(), index[f"{part} size"].to_numpy())
            for part in PARTS
            if f"{part} offset" in index.column_names
        }
        self._file: int | None = os.open(tar, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
        self._close = weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        return len(self.whole)

    def having(self, parts: Iterable[str]) -> NDArray[np.bool_]:
        """Return which samples have at least one of these parts, (N,) bool."""
        mask = np.zeros(len(self), bool)
        for part in parts:
            if part in self._places:
                mask |= self._places[part][0] >= 0
        return mask

    def key(self, sample: int) -> str:
        return str(self.keys[sample].as_py())

    def read(self, sample: int, parts: Iterable[str], max_bytes: int | None = None) -> dict[str, bytes]:
        """Read those of `parts` that the sample has and that are not larger than `max_bytes`.

        Raises ShardError if the tar is now shorter than its headers say.
        """
        if self._file is None:
            raise ValueError(f"{self.name} is closed")
        contents = {}
        for part in parts:
            offsets, sizes = self._places.get(part, (None, None))
            if offsets is None or sizes is None or offsets[sample] < 0:
                continue
            offset, size = int(offsets[sample]), int(sizes[sample])
            if max_bytes is not None and size > max_bytes:
                continue
            data = _read_at(self._file, size, offset)
            while len(data) < size and (more := _read_at(self._file, size - len(data), offset + len(data))):
                data += more  # one call returns at most 2 GB, and less on some network file systems
            if len(data) < size:
                raise ShardError(
                    f"shard {self.name} breaks off in sample {self.key(sample)} at byte {offset + len(data):,}; "
                    "it was longer when it was opened",
                    "shards",
                    self.name,
                )
            contents[part] = data
        return contents

    def close(self) -> None:
        self._close()
        self._file = None


def _seek_and_read(file: int, size: int, offset: int) -> bytes:
    """Replace pread on Windows; only one thread uses each file, so its position cannot change between the two calls."""
    os.lseek(file, offset, os.SEEK_SET)
    return os.read(file, size)


_read_at = getattr(os, "pread", _seek_and_read)
