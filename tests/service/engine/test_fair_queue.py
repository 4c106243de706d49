"""Fair shares: nobody waits for all that another has sent, and the shares go by cost."""

from collections import Counter

import pytest
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


def count_turns(clients: int, singles: int, cost: float) -> list[int]:
    """Turns that items of clients with one at a time wait beside `clients` that have many of cost 1."""
    queue, waits = FairQueue[str](), []
    for i in range(300):
        for client in range(clients):
            queue.put(f"{client}-{i}", str(client))
    since = {f"single {number}": 0 for number in range(singles)}
    for name in since:
        queue.put(name, name, cost)
    for turn in range(300):
        name = queue.take() or ""
        if name in since:
            waits.append(turn - since[name])
            since[name] = turn
            queue.put(name, name, cost)
    return waits


def test_who_sends_one_item_at_a_time_waits_for_few_turns_and_leaves_two_thirds_to_others() -> None:
    assert max(count_turns(1, 1, cost=1)) <= 3
    assert max(count_turns(12, 1, cost=1)) <= 3, "however many send all they can"
    few, all_turns = 100, 300
    assert len(count_turns(12, 40, cost=1)) == pytest.approx(few + (all_turns - few) * 40 / 52, abs=3)
    assert len(count_turns(12, 1, cost=40)) == 1, "a large item has its turn, and pays for it"


def test_a_client_that_comes_back_has_saved_up_no_turns() -> None:
    queue = FairQueue[str]()
    for i in range(40):
        queue.put(f"a{i}", "a")
    queue.put("b", "b")
    assert queue.discard("b")
    assert [queue.take() for _ in range(20)] == [f"a{i}" for i in range(20)]
    for i in range(10):
        queue.put(f"b{i}", "b")
    assert Counter((queue.take() or "")[0] for _ in range(10)) == {"a": 5, "b": 5}


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
