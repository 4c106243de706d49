"""The embeddings of a run as one matrix that stays on disk, whatever its size."""

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from .mapped_rows import MappedRows
from .table import RunFolder

__all__ = ["RunRows"]


class RunRows:
    """`image` or `text` of all shards, (N, d), with failed samples as rows of zeros, which no search finds.

    In memory there is one byte per row; numbers are read when they are asked for.
    """

    def __init__(self, run: RunFolder, stems: Sequence[str], part: Literal["image", "text"]) -> None:
        self.part = part
        self.mapped = MappedRows([str(run.embeddings(stem)) for stem in stems], part)
        self.width = self.mapped.width
        self.ok = np.concatenate([np.zeros(0, np.bool_), *(_ok(run, stem) for stem in stems)])

    def __len__(self) -> int:
        return len(self.ok)

    def usable(self, place: int) -> NDArray[np.bool_]:
        """Which rows of a shard did not fail."""
        return self.ok[self.mapped.offsets[place] : self.mapped.offsets[place + 1]]

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """(R, d) the given rows, whose numbers must ascend."""
        taken = self.mapped.take(rows)
        taken[~self.ok[rows]] = 0
        return taken

    def chunks(self, size: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """(number of the first row, at most `size` rows) in order."""
        for start in range(0, len(self), size):
            yield start, self.take(np.arange(start, min(start + size, len(self))))


def _ok(run: RunFolder, stem: str) -> NDArray[np.bool_]:
    ok: NDArray[np.bool_] = pc.equal(run.read(stem, ["status"])["status"], "ok").to_numpy()
    return ok
