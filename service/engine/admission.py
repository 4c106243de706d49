"""Decide which requests to admit, by how long they would wait, and tell refused clients when to retry."""

import math
import time
from collections import Counter
from collections.abc import Callable

from noisegate.service.errors import Overloaded

MEMORY_SECONDS = 10.0  # of busy time: earlier completions hardly count for the rate

KEPT_SHARE = 16  # one in this many places is kept free for clients with small requests
SHORT_WAIT = 1.0  # seconds; a request that would wait less is admitted, because Retry-After has no smaller unit


class CompletionRate:
    """Rate of completed parts per second of work, from the latest completions.

    >>> now = 0.0
    >>> rate = CompletionRate(lambda: now)
    >>> rate.begin()
    >>> now = 2.0
    >>> rate.add(100)
    >>> rate.value
    50.0
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._parts = self._seconds = 0.0
        self._since: float | None = None  # start of work, or the last completion

    def begin(self) -> None:
        """Start the clock: work has arrived."""
        self._since = self._clock()

    def end(self) -> None:
        """Stop the clock: no work is left."""
        self._since = None

    def add(self, parts: int) -> None:
        """Count completed parts."""
        now = self._clock()
        passed = 0.0 if self._since is None else now - self._since
        kept = math.exp(-passed / MEMORY_SECONDS)
        self._parts, self._seconds = kept * self._parts + parts, kept * self._seconds + passed
        self._since = now

    @property
    def value(self) -> float | None:
        """Parts per second; None before the first completion."""
        waiting = 0.0 if self._since is None else self._clock() - self._since
        seconds = self._seconds + waiting
        return self._parts / seconds if self._parts and seconds > 0 else None


class Admission:
    """Count the parts (pictures and texts) of admitted requests by client, and refuse with the time to retry.

    Clients take turns part by part, so a request waits for its client's earlier parts, and for as many parts of every other
    client. It may wait as long as one earlier request of its size takes (or `SHORT_WAIT`), never over `max_wait` seconds: this
    keeps the encoder busy without a queue that only delays answers. The first request of a client may wait `first_wait`. A
    request is also refused if there are more than `most` items. A request that joins a queue must leave as many places free as
    its client then has, but at most 1 / `KEPT_SHARE` of all: so a small request is admitted beside many large ones.
    """

    def __init__(
        self, most: int, max_wait: float, first_wait: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._max_wait, self._first_wait = most, max_wait, first_wait
        self._rate = CompletionRate(clock)
        self._items: Counter[str] = Counter()
        self._parts: Counter[str] = Counter()

    @property
    def items(self) -> int:
        """Number of items admitted and not answered yet."""
        return self._items.total()

    def admit(self, client: str, items: int, parts: int) -> None:
        """Admit a request and count it; raise Overloaded with the seconds after which it would be admitted."""
        rate = self._rate.value
        kept_free = min(self._items[client] + items, self._most // KEPT_SHARE) if self.items else 0
        missing = self.items + items + kept_free - self._most
        if missing > 0:
            parts_each = self._parts.total() / max(1, self.items)
            seconds = missing * parts_each / rate if rate else 1.0
            raise Overloaded(f"the queue holds {self.items} of {self._most} items", seconds)
        wait, longest = self.expect_wait(client, parts), self._first_wait
        if own := self._parts[client]:
            longest = min(max(self.expect_wait(client, parts, min(own, parts)), SHORT_WAIT), self._max_wait)
        if wait > longest:
            problem = f"it would wait for {wait:.1f} s, over {longest:.1f} s; others are before it"
            raise Overloaded(problem, wait - longest)
        if not self._parts:
            self._rate.begin()
        self._items[client] += items
        self._parts[client] += parts

    def expect_wait(self, client: str, parts: int, own: int | None = None) -> float:
        """Estimate the seconds that a request of `parts` waits for others, if its client has `own` parts before it."""
        rate, own = self._rate.value, self._parts[client] if own is None else own
        before = own + sum(min(count, own + parts) for other, count in self._parts.items() if other != client)
        return before / rate if rate else 0.0

    def complete(self, client: str, parts: int) -> None:
        """Count parts that are done."""
        self._rate.add(parts)
        self._take(self._parts, client, parts)

    def leave(self, client: str, items: int, parts: int) -> None:
        """Forget a request that was answered or has failed; `parts` of its parts were not done."""
        self._take(self._items, client, items)
        self._take(self._parts, client, parts)

    def _take(self, counts: Counter[str], client: str, count: int) -> None:
        counts[client] -= count
        if not counts[client]:
            del counts[client]
        if not self._parts:
            self._rate.end()
