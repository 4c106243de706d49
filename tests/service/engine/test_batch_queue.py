"""Batches: when they are due, what is in them, and who left before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisegate.service.engine.batch_queue import BatchQueue


def test_an_idle_encoder_waits_for_nobody() -> None:
    queue = BatchQueue[int](8, wait=0.005)
    queue.put(1, now=0.0)
    assert queue.take(now=0.0, idle=True) == [1]
    assert queue.take(now=0.0, idle=True) == []


def test_a_busy_encoder_gets_a_full_batch_at_once_and_a_small_one_after_the_wait() -> None:
    queue = BatchQueue[int](3, wait=0.005)
    queue.put(1, now=1.0)
    queue.put(2, now=1.004)
    assert queue.due(1.004) == pytest.approx(0.001)
    assert queue.take(1.004, idle=False) == []
    queue.put(3, now=1.0045)
    assert queue.due(1.0045) == 0
    queue.put(4, now=1.0045)
    assert queue.take(1.0045, idle=False) == [1, 2, 3]
    assert queue.take(1.0045, idle=False) == []
    assert queue.take(1.0095, idle=False) == [4]
    assert queue.due(2.0) is None


def test_who_leaves_is_in_no_batch_and_the_next_one_counts_the_wait() -> None:
    queue = BatchQueue[int](3, wait=0.005)
    queue.put(1, now=0.0)
    queue.put(2, now=0.004)
    assert queue.discard(1)
    assert not queue.discard(1)
    assert queue.oldest == 0.004
    assert queue.take(0.006, idle=False) == []
    assert queue.take(0.009, idle=False) == [2]
    assert not queue.discard(2)


def test_clients_take_turns_and_heavy_items_make_small_batches() -> None:
    queue = BatchQueue[str](4, wait=0.0)
    for i in range(6):
        queue.put(f"bulk {i}", 0.0, "bulk")
    queue.put("one", 0.1, "interactive")
    assert "one" in queue.take(1.0, idle=True)[:2]
    queue.clear()
    for item, weight in (("a", 3), ("b", 3), ("c", 1), ("d", 9)):
        queue.put(item, 0.0, "x", weight)
    assert [queue.take(1.0, idle=True) for _ in range(4)] == [["a"], ["b", "c"], ["d"], []]


def test_clear_gives_back_all() -> None:
    queue = BatchQueue[int](3, wait=0.0)
    for i in range(5):
        queue.put(i, now=0.0)
    assert (queue.clear(), len(queue)) == ([0, 1, 2, 3, 4], 0)


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.sampled_from(["put", "take", "idle", "leave"]), st.floats(0, 0.01)), max_size=60),
)
def test_nothing_is_lost_or_given_out_twice(size: int, steps: list[tuple[str, float]]) -> None:
    queue, now, waiting, count = BatchQueue[int](size, wait=0.005), 0.0, [], 0
    arrived: dict[int, float] = {}
    for step, later in steps:
        now += later
        if step == "put":
            queue.put(count, now)
            waiting.append(count)
            arrived[count] = now
            count += 1
        elif step == "leave" and waiting:
            assert queue.discard(waiting.pop(len(waiting) // 2))
        elif step in ("take", "idle"):
            due = len(waiting) >= size or (waiting and now - arrived[waiting[0]] > 0.005 + 1e-6)
            early = waiting and now - arrived[waiting[0]] < 0.005 - 1e-6 and len(waiting) < size
            batch = queue.take(now, idle=step == "idle")
            assert batch == waiting[: len(batch)], "oldest first"
            assert len(batch) in (0, min(size, len(waiting)))
            if due or (step == "idle" and waiting):
                assert batch
            elif early:
                assert not batch
            waiting = waiting[len(batch) :]
        assert len(queue) == len(waiting)
