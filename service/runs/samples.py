"""The samples of a finished run by row number: key, label, image digest, embedding."""

from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from noisegate.pipeline.runs import MappedRows, RunFolder
from noisegate.pipeline.system import Index, Mask

DUPLICATE = "duplicate_of:"


class RunSamples:
    """Rows are numbered through all shards in the order of their names, as the run's own scores number them."""

    def __init__(self, path: Path) -> None:
        self._run = RunFolder(path)
        self.stems = sorted(self._run.stems())
        columns = ["key", "status", "label", "image_sha256", "flags"]
        parts = [self._run.read(stem, columns).replace_schema_metadata(None) for stem in self.stems]
        self.sizes = [len(part) for part in parts]
        self._ends = np.cumsum(self.sizes)
        table = pa.concat_tables(parts).unify_dictionaries().combine_chunks()
        self.ok: Mask = pc.equal(table["status"], "ok").to_numpy()
        given = pc.fill_null(table["label"].cast(pa.int64()), -1).to_numpy()
        self.labels: Index = np.where(self.ok, given, -1)
        self._keys, self._flags, self._digests = table["key"], table["flags"], table["image_sha256"]
        self._beginnings = _beginnings(self._digests)
        self._order = np.argsort(self._beginnings, kind="stable")

    def __len__(self) -> int:
        return len(self.ok)

    def key(self, row: int) -> str:
        return str(self._keys[row].as_py())

    def place(self, row: int) -> tuple[str, int]:
        """The stem of its table, and its position there."""
        shard = int(np.searchsorted(self._ends, row, side="right"))
        return self.stems[shard], row - int(self._ends[shard]) + self.sizes[shard]

    def first_copy(self, row: int) -> tuple[str, str]:
        """(shard, key) of the row that the table says it is a near duplicate of, or its own."""
        here, _ = self.place(row)
        flags = self._flags[row].as_py() or []
        name = next((flag.removeprefix(DUPLICATE) for flag in flags if flag.startswith(DUPLICATE)), self.key(row))
        shard, _, key = name.partition("/")
        return (shard, key) if key and shard != here and shard in self.stems else (here, name)

    def with_image(self, digest: bytes | None) -> list[int]:
        """Scored rows whose image file has this SHA-256, in order."""
        if not digest:
            return []
        beginning = np.uint64(int.from_bytes(digest[:8], "big"))
        first = np.searchsorted(self._beginnings, beginning, side="left", sorter=self._order)
        last = np.searchsorted(self._beginnings, beginning, side="right", sorter=self._order)
        near = np.sort(self._order[first:last]).tolist()
        return [row for row in near if self.ok[row] and self._digests[row].as_py() == digest]

    def has_embeddings(self) -> bool:
        """Whether they were kept."""
        return all(self._run.embeddings(stem).exists() for stem in self.stems)

    def embeddings(self, tensor: Literal["image", "text"]) -> MappedRows:
        """(N, d) embeddings, zeros for failed samples; d is 0 where none was made."""
        return MappedRows([str(self._run.embeddings(stem)) for stem in self.stems], tensor, ok=self.ok)


def _beginnings(digests: pa.ChunkedArray) -> NDArray[np.uint64]:
    """(N,) the first eight bytes of each digest as a number; undefined for null."""
    parts = [np.zeros(0, np.uint64)]
    for chunk in digests.chunks:
        data = chunk.buffers()[1]
        words = np.zeros((0, 4), ">u8") if data is None else np.frombuffer(data, ">u8").reshape(-1, 4)
        parts.append(words[chunk.offset : chunk.offset + len(chunk), 0].astype(np.uint64))
    return np.concatenate(parts)
