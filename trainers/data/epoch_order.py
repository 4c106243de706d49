"""Order the rows of an epoch: a mask of the rows to train on, and batches of global row numbers.

The order depends only on seed, epoch, selected rows and batch size, not on workers or ranks.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, Protocol

import numpy as np

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system import Index, Mask


class RowMask:
    """A boolean for every row of every shard, packed: a hundred million rows take 12.5 MB.

    >>> mask = RowMask([np.array([True, False]), np.array([True, True, True])])
    >>> mask.kept.tolist(), mask.rows(1).tolist(), mask.to_array().tolist()
    ([1, 3], [2, 3, 4], [True, False, True, True, True])
    """

    def __init__(self, shards: Iterable[Mask]) -> None:
        packed, counts, kept = bytearray(), [], []
        for shard in shards:  # one shard at a time: an iterator may read their tables
            packed += np.packbits(shard).tobytes()
            counts.append(len(shard))
            kept.append(int(shard.sum()))
        self.counts = np.array(counts, np.int64)
        self.kept = np.array(kept, np.int64)  # number of true rows of each shard
        self.offsets = np.concatenate([[0], np.cumsum(self.counts)])  # global number of each shard's first row
        self._bits = np.frombuffer(bytes(packed), np.uint8)
        self._bytes = np.concatenate([[0], np.cumsum((self.counts + 7) // 8)])

    @property
    def total(self) -> int:
        """Number of all rows, true or not."""
        return int(self.offsets[-1])

    def digest(self) -> bytes:
        """Digest of the shards' sizes and of the true rows."""
        return hashlib.blake2b(self.counts.tobytes() + self._bits.tobytes(), digest_size=16).digest()

    def shard(self, number: int) -> Mask:
        """Return the mask of one shard, (count,) bool."""
        packed = self._bits[self._bytes[number] : self._bytes[number + 1]]
        return np.unpackbits(packed, count=int(self.counts[number])).astype(bool)

    def rows(self, number: int) -> Index:
        """Return global numbers of the true rows of one shard."""
        rows: Index = np.flatnonzero(self.shard(number)) + self.offsets[number]
        return rows

    def to_array(self) -> Mask:
        """Return the whole mask by global row number, (total,) bool."""
        return np.concatenate([np.zeros(0, bool), *(self.shard(number) for number in range(len(self.counts)))])

    def where(self, mask: Mask) -> RowMask:
        """Return a mask of rows that are true here and in `mask`, (total,) bool."""
        parts = zip(self.offsets[:-1], self.offsets[1:], strict=True)
        return RowMask(self.shard(number) & mask[first:last] for number, (first, last) in enumerate(parts))


LastBatch = Literal["drop", "short", "fill"]
"""what becomes of the rows left over at the end of an epoch: left out, a short batch, or a batch filled up with rows of the
batch before"""


class EpochOrder(Protocol):
    """The batches of each epoch."""

    def __len__(self) -> int:
        """Number of batches of an epoch."""
        ...

    def batches(self, epoch: int, start: int = 0) -> Iterator[Index]:
        """Yield global row numbers of each batch, from batch `start` on."""
        ...


def rank_rows(batch: Index, rank: int, world: int) -> Index:
    """Return the rows of a batch for one rank: slices whose sizes differ by one at most, possibly empty.

    >>> [rank_rows(np.arange(5), rank, 2).tolist() for rank in range(2)]
    [[0, 1], [2, 3, 4]]
    """
    return batch[len(batch) * rank // world : len(batch) * (rank + 1) // world]


class _ShardOrder:
    """Cut rows into batches, shard by shard; only one window of shards is in memory at a time."""

    def __init__(self, mask: RowMask, batch_size: int, window_shards: int, last: LastBatch) -> None:
        self._mask, self._size, self._window, self._last = mask, batch_size, window_shards, last
        self._shards = np.flatnonzero(mask.kept)
        self._selected = int(mask.kept.sum())

    def __len__(self) -> int:
        return self._selected // self._size if self._last == "drop" else -(-self._selected // self._size)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Index]:
        first = max(0, start - 1) if self._last == "fill" else start
        before = np.zeros(0, np.int64)
        for number, batch in enumerate(self._cut(epoch, first), first):
            missing = min(self._size - len(batch), len(before)) if self._last == "fill" else 0
            if number >= start:
                yield np.concatenate([before[:missing], batch]) if missing else batch
            before = batch

    def _cut(self, epoch: int, start: int) -> Iterator[Index]:
        shards = self._shard_order(epoch)
        windows = np.array_split(shards, range(self._window, len(shards), self._window))
        passed = start * self._size  # number of rows in the batches before `start`
        left = np.zeros(0, np.int64)
        for window_number, window in enumerate(windows):
            count = int(self._mask.kept[window].sum())
            if passed >= count:
                passed -= count
                continue
            rows = np.concatenate([self._mask.rows(number) for number in window])
            left = np.concatenate([left, self._shuffle(epoch, window_number, rows)[passed:]])
            passed = 0
            whole = len(left) // self._size * self._size
            yield from left[:whole].reshape(-1, self._size)
            left = left[whole:]
        if len(left) and self._last != "drop":
            yield left

    def _shard_order(self, epoch: int) -> Index:
        return self._shards

    def _shuffle(self, epoch: int, window: int, rows: Index) -> Index:
        return rows


class SequentialOrder(_ShardOrder):
    """Every selected row, in order; the same in every epoch."""

    def __init__(self, mask: RowMask, batch_size: int, last: LastBatch = "short") -> None:
        super().__init__(mask, batch_size, 1, last)


class WindowOrder(_ShardOrder):
    """Shards in random order, and the rows of each `window_shards` of them in random order."""

    def __init__(self, mask: RowMask, batch_size: int, seed: int, window_shards: int, last: LastBatch) -> None:
        super().__init__(mask, batch_size, window_shards, last)
        self._seed = seed

    def _shard_order(self, epoch: int) -> Index:
        return np.random.default_rng([self._seed, epoch, 0]).permutation(self._shards)

    def _shuffle(self, epoch: int, window: int, rows: Index) -> Index:
        return np.random.default_rng([self._seed, epoch, 1, window]).permutation(rows)


class MPerClassOrder:
    """Each batch holds `m` samples of each of batch_size / m classes, for losses that need positives (image retrieval).

    Classes come in random order, each once before any is repeated; so do the samples of a class. An epoch has as many batches
    as fit into the selected rows, so a sample of a large class is seen less than once on average, of a small class more often.
    Classes with fewer than `m` selected samples are left out: a repeated picture would be its own positive. Row numbers and
    labels of the selected rows are in memory, 16 bytes per row.
    """

    def __init__(self, rows: Index, labels: Index, batch_size: int, m: int, seed: int) -> None:
        if m < 2 or batch_size % m:
            fitting = max(4, batch_size // 4 * 4)
            problem = f"does not divide batch_size {batch_size}; use m_per_class:4 with batch_size {fitting}"
            raise ConfigError.of("sampler", f"m_per_class:{m}", problem)
        order = np.argsort(labels, kind="stable")
        classes, first = np.unique(labels[order], return_index=True)
        members = np.split(rows[order], first[1:]) if len(classes) else []
        self._members = [group for group in members if len(group) >= m]
        self._m, self._seed, self._each = m, seed, batch_size // m
        self._length = len(rows) // batch_size
        self.left_out = len(classes) - len(self._members)
        if len(self._members) < self._each:
            known = len(self._members)
            problem = f"needs {self._each} classes of at least {m} samples; there are {known}: use {max(1, known) * m} or less"
            raise ConfigError.of("batch_size", batch_size, problem)

    def __len__(self) -> int:
        return self._length

    def batches(self, epoch: int, start: int = 0) -> Iterator[Index]:
        rng = np.random.default_rng([self._seed, epoch, 2])
        classes = _Deck(np.arange(len(self._members)), rng)
        samples = [_Deck(group, rng) for group in self._members]
        for number in range(self._length):
            batch = np.concatenate([samples[place].take(self._m) for place in classes.take(self._each)])
            if number >= start:
                yield batch


class _Deck:
    """Draw without replacement, and reshuffle when used up; one draw never contains a value twice."""

    def __init__(self, values: Index, rng: np.random.Generator) -> None:
        self._values, self._rng = values, rng
        self._left = values[:0]

    def take(self, count: int) -> Index:
        taken, self._left = self._left[:count], self._left[count:]
        if len(taken) < count:
            fresh = self._rng.permutation(self._values)
            again = np.isin(fresh, taken)
            fresh = np.concatenate([fresh[~again], fresh[again]])  # values drawn just before come last
            missing = count - len(taken)
            taken, self._left = np.concatenate([taken, fresh[:missing]]), fresh[missing:]
        return taken


def make_order(
    sampler: str,
    mask: RowMask,
    labels: Callable[[Index], Index],
    *,
    batch_size: int,
    seed: int,
    window_shards: int,
    last: LastBatch,
) -> EpochOrder:
    """Make the order of a `sampler`; `labels(rows)` is called only for m_per_class. A sequential order drops no rows."""
    if sampler == "sequential":
        return SequentialOrder(mask, batch_size, "fill" if last == "fill" else "short")
    if sampler == "window":
        return WindowOrder(mask, batch_size, seed, window_shards, last)
    if match := re.fullmatch(r"m_per_class:(\d{1,6})", sampler):
        rows = np.flatnonzero(mask.to_array())
        return MPerClassOrder(rows, labels(rows), batch_size, int(match.group(1)), seed)
    raise ConfigError.of("sampler", sampler, "is unknown; use 'window', 'sequential' or 'm_per_class:4'")
