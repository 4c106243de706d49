"""A queue that gives clients equal shares of the work, however much each of them sends."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

EARNED = 0.5  # chosen; single items may cost this share of the cost of other items, which is a third of all
MOST_EARNED = 4.0  # chosen; most unused cost for single items, in costs of the latest other item


@dataclass
class _Line(Generic[T]):
    """The items of one client in order of arrival, with their costs, and the cost served to the client so far."""

    served: float
    costs: dict[T, float] = field(default_factory=dict)


class FairQueue(Generic[T]):
    """A queue of items of several clients. The client that was served least comes next, with its oldest item.

    Costs are summed per client, so that a client with large items has fewer turns. A client without waiting items starts at the
    present position of the queue, or at its own if that is further: it cannot save up turns (start-time fair queueing).

    The only item of a client comes before items of clients with several, so that a client with one item at a time waits for
    about two turns. Such items may cost at most `EARNED` times the cost of the others; beyond that they wait for their turn.

    >>> queue = FairQueue[str]()
    >>> for item in ("a1", "a2", "a3"):
    ...     queue.put(item, client="a")
    >>> queue.put("b1", client="b")
    >>> [queue.take() for _ in range(4)]
    ['a1', 'b1', 'a2', 'a3']
    """

    def __init__(self) -> None:
        self._lines: dict[str, _Line[T]] = {}
        self._client_of: dict[T, str] = {}
        self._now = 0.0  # position of the queue: cost served so far to the client of the last turn
        self._earned = 0.0  # cost that single items may still have

    def __len__(self) -> int:
        return len(self._client_of)

    def put(self, item: T, client: str = "", cost: float = 1.0) -> None:
        line = self._lines.setdefault(client, _Line(self._now))
        if not line.costs:
            line.served = max(line.served, self._now)
        line.costs[item] = cost
        self._client_of[item] = client

    def has(self, client: str) -> bool:
        """Whether an item of the client is waiting."""
        return client in self._lines and bool(self._lines[client].costs)

    def discard(self, item: T) -> bool:
        """Remove an item; False if it is not waiting."""
        client = self._client_of.pop(item, None)
        if client is None:
            return False
        line = self._lines[client]
        del line.costs[item]
        if not line.costs:
            self._forget()
        return True

    def take(self, fits: Callable[[T], bool] = lambda item: True) -> T | None:
        """Remove and return the next item; a client whose oldest item does not fit is passed over."""
        lines = [line for line in self._lines.values() if line.costs]
        for line in sorted(lines, key=lambda line: (not self._is_before(line), line.served)):
            item, cost = next(iter(line.costs.items()))
            if fits(item):
                if self._is_before(line):
                    self._earned -= cost
                else:
                    self._earned = min(self._earned + EARNED * cost, MOST_EARNED * cost)
                    self._now, line.served = max(self._now, line.served), line.served + cost
                self.discard(item)
                return item
        return None

    def _is_before(self, line: _Line[T]) -> bool:
        """Return whether the line's item comes before items of clients with several."""
        return len(line.costs) == 1 and next(iter(line.costs.values())) <= self._earned

    def _forget(self) -> None:
        """Drop the lines of clients that have no waiting items and are not ahead of others; all lines if nothing waits."""
        for client, line in list(self._lines.items()):
            if not line.costs and (line.served <= self._now or not self._client_of):
                del self._lines[client]
