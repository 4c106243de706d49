"""Fair shares: nobody waits for all that another has sent, and the shares go by cost."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from noisegate.service.engine.fair_queue import FairQueue


def test_costly_items_have_fewer_turns_and_a_newcomer_is_next() -> None:
    queue = FairQueue[str]()
    for i in range(20):
        queue.put(f"large {i}", client="large", cost=4)
        queue.put(f"small {i}", client="small", cost=1)
    taken = Counter((queue.take() or "").split()[0] for _ in range(20))
    assert taken == {"small": 16, "large": 4}
    queue.put("late", client="late", cost=100)
    assert "late" in (queue.take(), queue.take(), queue.take()), "it neither waits for the others nor pays in advance"


def test_an_item_that_does_not_fit_is_passed_over() -> None:
    queue = FairQueue[str]()
    for item, client in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        queue.put(item, client)
    assert queue.take(lambda item: item != "a1") == "b1"
    assert queue.take(lambda item: item != "a1") is None
    assert [queue.take(), queue.take(), queue.take()] == ["a1", "a2", None]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.booleans()), max_size=60))
def test_nothing_is_lost_and_each_client_keeps_its_order(steps: list[tuple[str, int, bool]]) -> None:
    queue, waiting = FairQueue[tuple[str, int]](), list[tuple[str, int]]()
    for number, (client, cost, take) in enumerate(steps):
        if take:
            item = queue.take()
            assert (item is None) == (not waiting)
            if item is not None:
                assert item == next(other for other in waiting if other[0] == item[0])
                waiting.remove(item)
        else:
            queue.put((client, number), client, cost)
            waiting.append((client, number))
        assert len(queue) == len(waiting)
    for item in waiting:
        assert queue.discard(item)
        assert not queue.discard(item)
    assert (len(queue), queue._lines) == (0, {})
