"""True or false for every row of every shard, eight rows to a byte."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

__all__ = ["RowMask"]


class RowMask:
    """A boolean by (shard, row in shard). One hundred million rows take 12.5 MB; nothing else of a data set is held whole.

    >>> mask = RowMask([np.array([True, False]), np.array([True, True, True])])
    >>> mask.kept.tolist(), mask.rows(1).tolist(), mask.to_array().tolist()
    ([1, 3], [2, 3, 4], [True, False, True, True, True])
    """

    def __init__(self, shards: Iterable[NDArray[np.bool_]]) -> None:
        packed, counts, kept = bytearray(), [], []
        for shard in shards:  # one at a time: they may come from tables that are read on the way
            packed += np.packbits(shard).tobytes()
            counts.append(len(shard))
            kept.append(int(shard.sum()))
        self.counts = np.array(counts, np.int64)
        self.kept = np.array(kept, np.int64)  # true rows of each shard
        self.offsets = np.concatenate([[0], np.cumsum(self.counts)])  # global number of each shard's first row
        self._bits = np.frombuffer(bytes(packed), np.uint8)
        self._bytes = np.concatenate([[0], np.cumsum((self.counts + 7) // 8)])

    @property
    def total(self) -> int:
        """All rows, true or not."""
        return int(self.offsets[-1])

    def digest(self) -> bytes:
        """Another for other numbers of rows, and for other true rows."""
        return hashlib.blake2b(self.counts.tobytes() + self._bits.tobytes(), digest_size=16).digest()

    def shard(self, place: int) -> NDArray[np.bool_]:
        """The rows of one shard, (count,) bool."""
        packed = self._bits[self._bytes[place] : self._bytes[place + 1]]
        return np.unpackbits(packed, count=int(self.counts[place])).astype(bool)

    def rows(self, place: int) -> NDArray[np.int64]:
        """Global numbers of the true rows of one shard."""
        found: NDArray[np.int64] = np.flatnonzero(self.shard(place)) + self.offsets[place]
        return found

    def to_array(self) -> NDArray[np.bool_]:
        """(total,) bool by global row number."""
        return np.concatenate([np.zeros(0, bool), *(self.shard(place) for place in range(len(self.counts)))])

    def where(self, mask: NDArray[np.bool_]) -> RowMask:
        """Rows that are true here and in `mask`, (total,) bool."""
        parts = zip(self.offsets[:-1], self.offsets[1:], strict=True)
        return RowMask(self.shard(place) & mask[first:last] for place, (first, last) in enumerate(parts))
