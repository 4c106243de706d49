"""The order of an epoch, as global row numbers, before anything is read.

It follows from the seed, the epoch, the selected rows and the batch size; workers and ranks have no part in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError

from .row_mask import RowMask

__all__ = ["MPerClassPlan", "Plan", "SequentialPlan", "WindowPlan", "make_plan", "part_of"]

Rows = NDArray[np.int64]


class Plan(Protocol):
    """`len` batches in each epoch; `batches(epoch, start)` yields those from number `start` on."""

    def __len__(self) -> int: ...
    def batches(self, epoch: int, start: int = 0) -> Iterator[Rows]: ...


def part_of(batch: Rows, rank: int, world: int) -> Rows:
    """What one rank takes of a global batch: slices that differ by one row at most, empty where rows are too few.

    >>> [part_of(np.arange(5), rank, 2).tolist() for rank in range(2)]
    [[0, 1], [2, 3, 4]]
    """
    return batch[len(batch) * rank // world : len(batch) * (rank + 1) // world]


class _InShardOrder:
    """Rows shard by shard, a window of shards at a time, cut into batches; a window is all that is held."""

    def __init__(self, mask: RowMask, batch_size: int, window_shards: int, drop_last: bool) -> None:
        self._mask, self._size, self._window, self._drop_last = mask, batch_size, window_shards, drop_last
        self._shards = np.flatnonzero(mask.kept)
        self._selected = int(mask.kept.sum())

    def __len__(self) -> int:
        return self._selected // self._size if self._drop_last else -(-self._selected // self._size)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Rows]:
        shards = self._order(epoch)
        windows = np.array_split(shards, range(self._window, len(shards), self._window))
        passed = start * self._size  # rows of the batches that are not wanted
        left = np.zeros(0, np.int64)
        for number, window in enumerate(windows):
            count = int(self._mask.kept[window].sum())
            if passed >= count:
                passed -= count
                continue
            rows = np.concatenate([self._mask.rows(place) for place in window])
            left = np.concatenate([left, self._mix(epoch, number, rows)[passed:]])
            passed = 0
            whole = len(left) // self._size * self._size
            yield from left[:whole].reshape(-1, self._size)
            left = left[whole:]
        if len(left) and not self._drop_last:
            yield left

    def _order(self, epoch: int) -> Rows:
        return self._shards

    def _mix(self, epoch: int, window: int, rows: Rows) -> Rows:
        return rows


class SequentialPlan(_InShardOrder):
    """Every selected row once, in order, the short last batch included; the same in every epoch."""

    def __init__(self, mask: RowMask, batch_size: int) -> None:
        super().__init__(mask, batch_size, 1, drop_last=False)


class WindowPlan(_InShardOrder):
    """Shards in random order, and the rows of each `window_shards` of them in random order."""

    def __init__(self, mask: RowMask, batch_size: int, seed: int, window_shards: int, drop_last: bool) -> None:
        super().__init__(mask, batch_size, window_shards, drop_last)
        self._seed = seed

    def _order(self, epoch: int) -> Rows:
        return np.random.default_rng([self._seed, epoch, 0]).permutation(self._shards)

    def _mix(self, epoch: int, window: int, rows: Rows) -> Rows:
        return np.random.default_rng([self._seed, epoch, 1, window]).permutation(rows)


class MPerClassPlan:
    """Each batch holds `m` samples of each of batch_size / m classes, for losses that need positives (image retrieval).

    Classes come in random order, each once before any comes again; so do the samples within a class, also over batches. An
    epoch has as many batches as fit into the selected rows, so large classes are seen less than once, small ones more.
    Classes with fewer than `m` selected samples are left out: repeating a picture would make it its own positive.
    The labels of all selected rows are held: 16 bytes for each.
    """

    def __init__(self, rows: Rows, labels: NDArray[np.int64], batch_size: int, m: int, seed: int) -> None:
        if m < 2 or batch_size % m:
            raise ConfigError(
                f"sampler 'm_per_class:{m}' does not divide batch_size {batch_size}; use at least two per class, such as "
                f"sampler 'm_per_class:4' with batch_size {max(4, batch_size // 4 * 4)}"
            )
        order = np.argsort(labels, kind="stable")
        classes, first = np.unique(labels[order], return_index=True)
        members = np.split(rows[order], first[1:]) if len(classes) else []
        self._members = [group for group in members if len(group) >= m]
        self._m, self._seed, self._each = m, seed, batch_size // m
        self._length = len(rows) // batch_size
        self.left_out = len(classes) - len(self._members)
        if len(self._members) < self._each:
            raise ConfigError(
                f"sampler 'm_per_class:{m}' with batch_size {batch_size} needs {self._each} classes of at least {m} "
                f"samples; there are {len(self._members)}: use batch_size {max(1, len(self._members)) * m} or less"
            )

    def __len__(self) -> int:
        return self._length

    def batches(self, epoch: int, start: int = 0) -> Iterator[Rows]:
        rng = np.random.default_rng([self._seed, epoch, 2])
        classes = _InTurn(np.arange(len(self._members)), rng)
        samples = [_InTurn(group, rng) for group in self._members]
        for number in range(self._length):
            batch = np.concatenate([samples[place].take(self._m) for place in classes.take(self._each)])
            if number >= start:
                yield batch


class _InTurn:
    """Draws without replacement, over and over; what is drawn together is never the same twice."""

    def __init__(self, values: Rows, rng: np.random.Generator) -> None:
        self._values, self._rng = values, rng
        self._left = values[:0]

    def take(self, count: int) -> Rows:
        taken, self._left = self._left[:count], self._left[count:]
        if len(taken) < count:
            fresh = self._rng.permutation(self._values)
            again = np.isin(fresh, taken)
            fresh = np.concatenate([fresh[~again], fresh[again]])  # those just taken come last
            missing = count - len(taken)
            taken, self._left = np.concatenate([taken, fresh[:missing]]), fresh[missing:]
        return taken


def make_plan(
    sampler: str,
    mask: RowMask,
    labels: Callable[[Rows], NDArray[np.int64]],
    *,
    batch_size: int,
    seed: int,
    window_shards: int,
    drop_last: bool,
) -> Plan:
    """The plan a user names; `labels(rows)` is asked only where the plan needs them. Raises ConfigError for other names."""
    if sampler == "sequential":
        return SequentialPlan(mask, batch_size)
    if sampler == "window":
        return WindowPlan(mask, batch_size, seed, window_shards, drop_last)
    if match := re.fullmatch(r"m_per_class:(\d{1,6})", sampler):
        rows = np.flatnonzero(mask.to_array())
        return MPerClassPlan(rows, labels(rows), batch_size, int(match.group(1)), seed)
    raise ConfigError(f"sampler {sampler!r} is unknown; use 'window', 'sequential' or 'm_per_class:4'")
