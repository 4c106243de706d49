"""Admission by expected wait, in a simulation of an encoder that takes turns between clients."""

import contextlib
from dataclasses import dataclass

import pytest

from noisegate.service.engine.admission import Admission
from noisegate.service.engine.fair_queue import FairQueue
from noisegate.service.errors import Overloaded

RATE = 20.0  # parts per second


@dataclass(eq=False)
class Sent:
    client: str
    size: int
    at: float
    left: int
    done: float | None = None


class Simulation:
    """Completes a part every 1 / RATE seconds; a request leaves with its last part."""

    def __init__(self, most: int = 10_000) -> None:
        self.now = 0.0
        self.admission = Admission(most, max_wait=5, first_wait=20, clock=lambda: self.now)
        self._queue = FairQueue[tuple[Sent, int]]()

    def send(self, client: str, parts: int) -> Sent:
        self.admission.admit(client, parts, parts)
        sent = Sent(client, parts, self.now, parts)
        for i in range(parts):
            self._queue.put((sent, i), client)
        return sent

    def step(self) -> None:
        self.now += 1 / RATE
        if (part := self._queue.take()) is not None:
            sent = part[0]
            self.admission.complete(sent.client, 1)
            sent.left -= 1
            if not sent.left:
                sent.done = self.now
                self.admission.leave(sent.client, sent.size, 0)

    def finish(self, sent: Sent) -> float:
        """Seconds that the request took."""
        while sent.done is None:
            self.step()
        return sent.done - sent.at


@pytest.mark.parametrize("clients", [1, 4])
def test_the_time_to_come_back_is_the_time_until_it_is_admitted(clients: int) -> None:
    simulation = Simulation()
    simulation.finish(simulation.send("warm", 40))
    refused: Overloaded | None = None
    for _ in range(100):
        for i in range(clients):
            try:
                simulation.send(f"bulk {i}", 30)
            except Overloaded as error:
                refused = error
        if refused is not None:
            break
    assert refused is not None
    assert refused.retry_after is not None
    began = simulation.now
    while True:
        try:
            simulation.send("bulk 0", 30)
            break
        except Overloaded:
            simulation.step()
    assert simulation.now - began == pytest.approx(refused.retry_after, rel=0.5, abs=0.2)


def test_a_small_request_is_quick_beside_twelve_clients_that_send_all_they_can() -> None:
    simulation = Simulation()
    alone = simulation.finish(simulation.send("one", 2))
    for _ in range(20):
        for i in range(12):
            try:
                simulation.send(f"bulk {i}", 64)
            except Overloaded:
                continue
    queued = simulation.admission.items
    assert 5 * RATE < queued <= 12 * 64 + 5 * RATE
    times = [simulation.finish(simulation.send("one", 2)) for _ in range(10)]
    assert max(times) <= 13 * alone, "a turn of each"
    assert simulation.admission.items > queued // 2, "the others were still there"


def test_one_client_does_not_fill_the_queue() -> None:
    simulation = Simulation(most=160)
    simulation.finish(simulation.send("bulk", 40))
    simulation.send("bulk", 75)
    with pytest.raises(Overloaded, match="the queue holds 75 of 160"):
        simulation.send("bulk", 76)
    simulation.send("bulk", 75)
    simulation.send("other", 5)
    with pytest.raises(Overloaded) as refused:
        simulation.send("third", 4)
    assert refused.value.retry_after == pytest.approx(3 / RATE)
    assert Simulation(most=160).send("bulk", 160).left == 160, "alone it may have all"


def test_many_clients_with_large_requests_leave_room_for_a_small_one() -> None:
    simulation = Simulation(most=160)
    for i in range(16):
        with contextlib.suppress(Overloaded):
            simulation.send(f"bulk {i}", 40)
    simulation.send("one", 2)
    with pytest.raises(Overloaded, match="the queue holds 122 of 160"):
        simulation.send("late", 40)


def test_at_twice_the_capacity_answers_come_within_three_times_what_one_takes_alone() -> None:
    simulation = Simulation()
    alone = simulation.finish(simulation.send("bulk", 30))
    admitted: list[Sent] = []
    sent = 0
    while sent < 40:
        if simulation.now >= sent * alone / 2:
            sent += 1
            with contextlib.suppress(Overloaded):
                admitted.append(simulation.send("bulk", 30))
        simulation.step()
    assert len(admitted) >= 18, "the encoder is never idle"
    assert max(simulation.finish(request) for request in admitted) <= 3 * alone


@pytest.mark.parametrize("others", [0, 1])
def test_a_client_may_have_a_second_request_of_the_same_size_wait(others: int) -> None:
    simulation = Simulation()
    simulation.finish(simulation.send("warm", 40))
    for i in range(others):
        simulation.send(f"other {i}", 20)
        simulation.send(f"other {i}", 20)
    simulation.send("bulk", 20)
    simulation.send("bulk", 20)
    assert simulation.admission.expect_wait("bulk", 20, own=20) >= 1
    with pytest.raises(Overloaded) as refused:
        simulation.send("bulk", 20)
    assert refused.value.retry_after == pytest.approx(1, rel=0.5)


def test_who_would_wait_less_than_a_second_is_not_refused() -> None:
    simulation = Simulation()
    simulation.finish(simulation.send("one", 40))
    for _ in range(19):
        simulation.send("one", 1)
    simulation.send("one", 3)
    with pytest.raises(Overloaded, match=r"wait for 1\.1 s, over 1\.0 s"):
        simulation.send("one", 1)


def test_nothing_is_refused_for_its_wait_before_anything_was_measured() -> None:
    simulation = Simulation()
    for _ in range(10):
        simulation.send("bulk", 200)
    assert simulation.admission.expect_wait("bulk", 1) == 0
    assert simulation.admission.items == 2000
