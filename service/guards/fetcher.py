"""The pictures behind a request's URLs: several at a time for the whole service, within its memory and its patience."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from noisegate.service.engine.items import Item
from noisegate.service.errors import Overloaded
from noisegate.service.settings import Settings

from .fetch import UrlError, UrlPolicy, fetch_image

__all__ = ["Fetcher", "with_pictures"]

AT_ONCE = 16
Picture = bytes | UrlError


class Fetcher:
    """Fetches for all requests: `at_once` downloads, `together` bytes held, `most` bytes and `seconds` for one request.

    `how` goes to `fetch_image`: a resolver or a connector of another kind, in tests.
    """

    def __init__(
        self, policy: UrlPolicy, *, most: int, together: int, seconds: float, at_once: int = AT_ONCE, **how: Any
    ) -> None:
        self._policy, self._most, self._together, self._seconds, self._how = policy, most, together, seconds, how
        self._places = asyncio.Semaphore(at_once)
        self._held = 0

    @classmethod
    def from_settings(cls, settings: Settings, **how: Any) -> "Fetcher":
        """As the settings have it; raises ConfigError for a list of hosts that cannot be meant."""
        policy = UrlPolicy(
            hosts=settings.url_hosts,
            max_bytes=settings.url_max_bytes,
            timeout=settings.url_timeout,
            redirects=settings.url_redirects,
        )
        most, together, seconds = settings.max_body_bytes, settings.queue_bytes, settings.request_timeout
        return cls(policy, most=most, together=together, seconds=seconds, **how)

    @asynccontextmanager
    async def pictures(self, urls: Mapping[int, str]) -> AsyncIterator[dict[int, Picture]]:
        """Bytes, or the reason there are none, by the number of the item; they count as held until the block ends.

        The same URL is fetched once. Raises Overloaded when all requests together hold too much.
        """
        budget = _Budget(self)
        try:
            yield await self._fetch(urls, budget) if urls else {}
        finally:
            self._held -= budget.taken

    async def _fetch(self, urls: Mapping[int, str], budget: "_Budget") -> dict[int, Picture]:
        until = asyncio.get_running_loop().time() + self._seconds
        async with asyncio.TaskGroup() as group:
            tasks = {url: group.create_task(self._one(url, until, budget.take)) for url in dict.fromkeys(urls.values())}
        if budget.crowded:
            raise Overloaded("the pictures that all requests fetch fill queue_bytes", 1)
        return {i: tasks[url].result() for i, url in urls.items()}

    async def _one(self, url: str, until: float, take: Callable[[int], None]) -> Picture:
        try:
            self._policy.check(url)  # what is refused anyway waits for no place
            async with asyncio.timeout_at(until), self._places:
                return await fetch_image(url, self._policy, take=take, **self._how)
        except UrlError as error:
            return error
        except TimeoutError:
            return UrlError("url_failed", f"the pictures did not all come within {self._seconds:g} seconds")

    def take(self, count: int) -> bool:
        """Hold more; False where that is too much."""
        self._held += count
        return self._held <= self._together

    @property
    def most(self) -> int:
        return self._most


class _Budget:
    """What one request brought so far."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self.taken = 0
        self.crowded = False

    def take(self, count: int) -> None:
        self.taken += count
        if not self._fetcher.take(count):
            self.crowded = True
        if self.taken > self._fetcher.most:
            raise UrlError("too_large", f"the pictures of one request have more than {self._fetcher.most:,} bytes")
        if self.crowded:
            raise UrlError("url_failed", "too many pictures are fetched at the moment")


def with_pictures(items: Sequence[Item], pictures: Mapping[int, Picture]) -> list[Item]:
    """The items with what their URLs gave: the picture, or the problem that becomes their status."""
    found = list(items)
    for i, picture in pictures.items():
        if isinstance(picture, UrlError):
            found[i] = replace(found[i], problem=(picture.code, str(picture)))
        else:
            found[i] = replace(found[i], image=picture)
    return found
