"""Write samples to a shard: one streamed tar, the same bytes for the same samples.

The headers are tarfile's. webdataset's `TarWriter` sorts the parts of a sample, fails on an empty part name, keeps every member
in memory and imports torch, so webdataset is only needed by the tests, which read the shards with it.
"""

import hashlib
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from noisegate.pipeline.system.output_files import whole_file

from .tar_reader import BLOCK

_END_BYTES = 2 * BLOCK  # two zero blocks end a tar


class ShardWriter:
    """Appends samples to a tar; `samples` and `size` count what was written so far.

    `size` and `sha256` are those of the whole file once `write_shard` has ended.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.samples = 0
        self.size = 0

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def add(self, key: str, parts: Mapping[str, bytes]) -> None:
        """Append one sample, its parts in the given order; times and owners stay 0, so equal samples give equal bytes."""
        for part, data in parts.items():
            member = tarfile.TarInfo(f"{key}.{part}")
            member.size = len(data)
            self._write(member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
            self._write(data)
            self._write(bytes(-len(data) % BLOCK))
        self.samples += 1

    def finish(self) -> None:
        """Write the end marker, padded to a full record as tar does."""
        self._write(bytes(_END_BYTES + -(self.size + _END_BYTES) % tarfile.RECORDSIZE))

    def _write(self, data: bytes) -> None:
        self._hash.update(data)
        self.size += len(data)
        self._file.write(data)


@contextmanager
def write_shard(path: Path) -> Iterator[ShardWriter]:
    """Open a shard for writing; it appears at `path` once it is complete, and not at all after an error."""
    with whole_file(path) as file:
        writer = ShardWriter(file)
        yield writer
        writer.finish()
