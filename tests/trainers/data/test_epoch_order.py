"""The order of an epoch: a permutation, the same for every world, resumable anywhere; m per class."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from noisegate.trainers.data.epoch_order import (
    EpochOrder,
    LastBatch,
    MPerClassOrder,
    RowMask,
    SequentialOrder,
    WindowOrder,
    make_order,
    rank_rows,
)
from tests.errors import refused

LASTS = st.sampled_from(["drop", "short", "fill"])
MASKS = st.lists(st.lists(st.booleans(), max_size=20), min_size=1, max_size=12)


def mask_of(shards: list[list[bool]]) -> RowMask:
    return RowMask(np.array(shard, bool) for shard in shards)


def rows_of(order: EpochOrder, epoch: int = 0, start: int = 0) -> list[list[int]]:
    return [batch.tolist() for batch in order.batches(epoch, start)]


class TestRowMask:
    @settings(max_examples=30)
    @given(shards=MASKS, seed=st.integers(0, 9))
    def test_equals_plain_arrays(self, shards: list[list[bool]], seed: int) -> None:
        flat = np.array([value for shard in shards for value in shard], bool)
        mask = mask_of(shards)
        other = np.random.default_rng(seed).random(len(flat)) < 0.5
        assert mask.total == len(flat) and (mask.to_array() == flat).all()
        assert mask.kept.tolist() == [sum(shard) for shard in shards]
        assert np.concatenate([mask.rows(i) for i in range(len(shards))]).tolist() == np.flatnonzero(flat).tolist()
        assert (mask.where(other).to_array() == (flat & other)).all()


class TestWindow:
    @settings(max_examples=30)
    @given(MASKS, st.integers(1, 9), st.integers(1, 4), st.integers(0, 5), LASTS)
    def test_is_a_permutation_of_the_selected_rows(
        self, shards: list[list[bool]], size: int, window: int, epoch: int, last: LastBatch
    ) -> None:
        mask = mask_of(shards)
        order = WindowOrder(mask, size, 3, window, last)
        batches = rows_of(order, epoch)
        seen = [row for batch in batches for row in batch]
        selected = np.flatnonzero(mask.to_array()).tolist()
        assert len(batches) == len(order)
        assert all(len(batch) == len(set(batch)) for batch in batches)
        if last == "fill":
            assert set(seen) == set(selected)
            assert all(len(batch) == min(size, len(selected)) for batch in batches)
            assert len({row for batch in batches[:-1] for row in batch}) == size * max(0, len(batches) - 1)
            return
        assert len(seen) == len(set(seen)) and set(seen) <= set(selected)
        assert len(seen) == (len(selected) // size * size if last == "drop" else len(selected))
        assert all(len(batch) == size for batch in (batches if last == "drop" else batches[:-1]))

    @settings(max_examples=30)
    @given(MASKS, st.integers(1, 9), st.integers(1, 4), st.integers(0, 5), LASTS)
    def test_goes_on_with_exactly_the_next_batch(
        self, shards: list[list[bool]], size: int, window: int, epoch: int, last: LastBatch
    ) -> None:
        order = WindowOrder(mask_of(shards), size, 3, window, last)
        whole = rows_of(order, epoch)
        for start in range(len(order) + 1):
            assert rows_of(order, epoch, start) == whole[start:]

    def test_seed_and_epoch_change_the_order_and_nothing_else_does(self) -> None:
        mask = mask_of([[True] * 30] * 5)
        order = WindowOrder(mask, 10, 1, 2, "drop")
        assert rows_of(order, 0) == rows_of(WindowOrder(mask, 10, 1, 2, "drop"), 0)
        assert rows_of(order, 0) != rows_of(order, 1)
        assert rows_of(order, 0) != rows_of(WindowOrder(mask, 10, 2, 2, "drop"), 0)

    def test_mixes_the_shards_of_a_window_and_only_those(self) -> None:
        order = WindowOrder(mask_of([[True] * 50] * 6), 100, 0, 2, "drop")
        shards = [Counter(row // 50 for row in batch) for batch in rows_of(order)]
        assert all(len(found) == 2 for found in shards)  # a batch of 100 is one window of two shards
        halves = [Counter(row // 50 for row in batch[:50]) for batch in rows_of(order)]
        assert all(min(found.values()) > 10 for found in halves)

    def test_shards_without_selected_rows_take_no_place_in_a_window(self) -> None:
        shards = [[True] * 10 if i % 5 == 0 else [False] * 10 for i in range(20)]
        first = rows_of(WindowOrder(mask_of(shards), 40, 0, 4, "drop"))
        assert len(first) == 1 and {row // 10 for row in first[0]} == {0, 5, 10, 15}


class TestSequential:
    @settings(max_examples=30)
    @given(MASKS, st.integers(1, 9))
    def test_every_row_once_in_order(self, shards: list[list[bool]], size: int) -> None:
        mask = mask_of(shards)
        order = SequentialOrder(mask, size)
        batches = rows_of(order, 7)
        assert [row for batch in batches for row in batch] == np.flatnonzero(mask.to_array()).tolist()
        assert len(batches) == len(order)
        for start in range(len(order) + 1):
            assert rows_of(order, 0, start) == batches[start:]


class TestRanks:
    @settings(max_examples=30)
    @given(st.integers(0, 40), st.integers(1, 7))
    def test_slices_are_disjoint_and_together_the_batch(self, count: int, world: int) -> None:
        batch = np.arange(count)
        parts = [rank_rows(batch, rank, world) for rank in range(world)]
        assert np.concatenate(parts).tolist() == batch.tolist()
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        if count % world == 0:
            assert len({len(part) for part in parts}) == 1


class TestMPerClass:
    @settings(max_examples=30)
    @given(st.lists(st.integers(4, 20), min_size=3, max_size=8), st.integers(2, 4), st.integers(0, 3))
    def test_a_batch_has_m_different_samples_of_each_of_its_classes(self, sizes: list[int], m: int, epoch: int) -> None:
        labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
        rows = np.arange(len(labels)) * 3 + 1
        order = MPerClassOrder(rows, labels, 3 * m, m, seed=5)
        batches = rows_of(order, epoch)
        assert len(batches) == len(order) == len(labels) // (3 * m)
        of_row = dict(zip(rows.tolist(), labels.tolist(), strict=True))
        for batch in batches:
            assert len(set(batch)) == 3 * m
            assert Counter(Counter(of_row[row] for row in batch).values()) == {m: 3}
        for start in range(len(order) + 1):
            assert rows_of(order, epoch, start) == batches[start:]

    def test_classes_and_samples_come_in_turn(self) -> None:
        labels = np.repeat(np.arange(8), 16)
        order = MPerClassOrder(np.arange(128), labels, 16, 4, seed=0)
        batches = rows_of(order)
        for first, second in zip(batches[::2], batches[1::2], strict=True):
            assert {row // 16 for row in first} | {row // 16 for row in second} == set(range(8))
        assert sorted(row for batch in batches for row in batch) == list(range(128))

    def test_small_classes_are_left_out_and_counted(self) -> None:
        labels = np.array([0] * 4 + [1] * 4 + [2] * 3)
        order = MPerClassOrder(np.arange(11), labels, 8, 4, seed=0)
        assert order.left_out == 1 and rows_of(order)[0] and max(rows_of(order)[0]) < 8

    def test_what_cannot_work_is_said(self) -> None:
        labels = np.repeat(np.arange(3), 4)
        with refused("sampler", "m_per_class:4") as caught:
            MPerClassOrder(np.arange(12), labels, 10, 4, 0)
        assert "with batch_size 8" in str(caught.value)
        with refused("batch_size", 16) as caught:
            MPerClassOrder(np.arange(12), labels, 16, 4, 0)
        assert "there are 3: use 12" in str(caught.value)
        with refused("sampler", "windows"):
            make_order("windows", mask_of([[True]]), np.asarray, batch_size=1, seed=0, window_shards=8, last="drop")
