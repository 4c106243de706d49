"""A queue that decides when a batch is ready to be encoded. It has no clock: callers pass the time."""

from collections.abc import Hashable
from typing import Generic, TypeVar

from .fair_queue import FairQueue

T = TypeVar("T", bound=Hashable)


class BatchQueue(Generic[T]):
    """A queue that returns items in batches of weight at most `size`: clients in turn, a client's items in order of arrival.

    An idle encoder gets all waiting items at once. A busy one gets a full batch, or the waiting items once the oldest has
    waited `wait` seconds. An item can leave the queue while it waits.

    >>> queue = BatchQueue[str](size=2, wait=0.005)
    >>> queue.put("a", now=1.0)
    >>> queue.take(now=1.001, idle=False), queue.due(now=1.001)
    ([], 0.004)
    >>> queue.take(now=1.001, idle=True)
    ['a']
    """

    def __init__(self, size: int, wait: float) -> None:
        self.size, self.wait = size, wait
        self._waiting: dict[T, tuple[float, int]] = {}  # arrival and weight, in order of arrival
        self._turns: FairQueue[T] = FairQueue()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def oldest(self) -> float | None:
        """Arrival time of the oldest waiting item."""
        return next((arrived for arrived, _ in self._waiting.values()), None)

    def put(self, item: T, now: float, client: str = "", weight: int = 1) -> None:
        self._waiting[item] = now, weight
        self._turns.put(item, client, weight)

    def has(self, client: str) -> bool:
        """Whether an item of the client is waiting."""
        return self._turns.has(client)

    def discard(self, item: T) -> bool:
        """Remove an item; False if it is not waiting."""
        self._turns.discard(item)
        return self._waiting.pop(item, None) is not None

    def clear(self) -> list[T]:
        """Remove and return all items."""
        items = list(self._waiting)
        self._waiting.clear()
        self._turns = FairQueue()
        return items

    def due(self, now: float) -> float | None:
        """Return seconds until a busy encoder gets a batch: 0 for now, None if the queue is empty."""
        if self.oldest is None:
            return None
        return 0.0 if len(self) >= self.size else max(0.0, round(self.oldest + self.wait - now, 9))

    def take(self, now: float, idle: bool) -> list[T]:
        """Remove and return the next batch; empty if none is due."""
        due = self.due(now)
        if due is None or (due > 0 and not idle):
            return []
        batch: list[T] = []
        room = self.size

        def fits(item: T) -> bool:
            return not batch or self._waiting[item][1] <= room

        while room > 0 and (item := self._turns.take(fits)) is not None:
            room -= self._waiting.pop(item)[1]
            batch.append(item)
        return batch
