"""A queue that shares what it feeds between clients, however much each of them sends."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


@dataclass
class _Line(Generic[T]):
    """The items of one client in order of arrival, with their costs, and how much the client was served."""

    served: float
    costs: dict[T, float] = field(default_factory=dict)


class FairQueue(Generic[T]):
    """Items of several clients. The client that was served least comes next, with its oldest item.

    Costs are added up per client, so that one with large items has fewer turns. A client that had nothing waiting starts
    where the queue is: it neither saves up turns nor pays for former ones (start-time fair queueing).

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
        self._now = 0.0  # how much the client that was served last had been served before

    def __len__(self) -> int:
        return len(self._client_of)

    def put(self, item: T, client: str = "", cost: float = 1.0) -> None:
        line = self._lines.setdefault(client, _Line(self._now))
        line.costs[item] = cost
        self._client_of[item] = client

    def discard(self, item: T) -> bool:
        """Remove an item; False if it is not waiting."""
        client = self._client_of.pop(item, None)
        if client is None:
            return False
        line = self._lines[client]
        del line.costs[item]
        if not line.costs:
            del self._lines[client]
        return True

    def take(self, fits: Callable[[T], bool] = lambda item: True) -> T | None:
        """Remove and return the next item; a client whose oldest item does not fit is passed over."""
        for _, line in sorted(self._lines.items(), key=lambda entry: entry[1].served):
            item = next(iter(line.costs))
            if fits(item):
                self._now = line.served
                line.served += line.costs[item]
                self.discard(item)
                return item
        return None
