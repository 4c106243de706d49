"""Download the pictures behind a request's URLs: resolve once, connect to exactly the address checked, stop at the limits.

httpcore is used directly: it follows no redirects, keeps no cookies, decodes nothing and reads no proxy settings from
the environment. url_policy.py decides which URLs and addresses are allowed.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from urllib.parse import urljoin

import certifi
import httpcore

from noisegate.service.engine.items import Item
from noisegate.service.errors import Overloaded
from noisegate.service.settings import Settings

from .url_policy import Target, UrlError, UrlPolicy, public_addresses

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
Connect = Callable[[str, int], Awaitable[httpcore.AsyncNetworkStream]]

Picture = bytes | UrlError

DOWNLOADS = 16  # at a time, for the whole service
LOOKUPS = 8  # name look-ups at a time
REDIRECTS = (301, 302, 303, 307, 308)
MAX_ADDRESSES = 3  # addresses of one host to try; all of its addresses are checked first
_LOOKUP_THREADS = ThreadPoolExecutor(LOOKUPS, thread_name_prefix="resolve")  # a slow one must not block other threads


class Fetcher:
    """Downloads for all requests, within limits: `at_once` downloads, `together` bytes in memory, and per request `most`
    bytes and `seconds`. `how` is passed on to `fetch_image`: tests give their own resolver and connector.
    """

    def __init__(
        self, policy: UrlPolicy, *, most: int, together: int, seconds: float, at_once: int = DOWNLOADS, **how: Any
    ) -> None:
        self._policy, self.most, self._together, self._seconds, self._how = policy, most, together, seconds, how
        self._places = asyncio.Semaphore(at_once)
        self._held = 0

    @classmethod
    def from_settings(cls, settings: Settings, **how: Any) -> "Fetcher":
        """Make a fetcher from the service's settings; raise ConfigError for an invalid host pattern."""
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
        """Yield bytes or UrlError by item number; the bytes count towards the limit until the block ends.

        The same URL is fetched once. Raises Overloaded when all requests together hold too many bytes.
        """
        budget = _Budget(self)
        try:
            yield await self._fetch(urls, budget) if urls else {}
        finally:
            self._held -= budget.taken

    async def _fetch(self, urls: Mapping[int, str], budget: "_Budget") -> dict[int, Picture]:
        until = asyncio.get_running_loop().time() + self._seconds
        async with asyncio.TaskGroup() as group:
            tasks = {
                url: group.create_task(self._fetch_one(url, until, budget.take)) for url in dict.fromkeys(urls.values())
            }
        if budget.crowded:
            raise Overloaded("the pictures that all requests fetch fill queue_bytes", 1)
        return {i: tasks[url].result() for i, url in urls.items()}

    async def _fetch_one(self, url: str, until: float, take: Callable[[int], None]) -> Picture:
        try:
            self._policy.check(url)  # a refused URL need not wait for a free download
            async with asyncio.timeout_at(until), self._places:
                return await fetch_image(url, self._policy, take=take, **self._how)
        except UrlError as error:
            return error
        except TimeoutError:
            return UrlError("url_failed", f"the pictures did not all come within {self._seconds:g} seconds")

    def take(self, count: int) -> bool:
        """Count bytes in memory; return False if they exceed the limit of all requests."""
        self._held += count
        return self._held <= self._together


class _Budget:
    """Bytes that one request has downloaded so far."""

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


def fill_pictures(items: Sequence[Item], pictures: Mapping[int, Picture]) -> list[Item]:
    """Copy the items with their downloads: the picture, or the problem that becomes the item's status."""
    filled = list(items)
    for i, picture in pictures.items():
        if isinstance(picture, UrlError):
            filled[i] = replace(filled[i], problem=(picture.code, str(picture)))
        else:
            filled[i] = replace(filled[i], image=picture)
    return filled


async def resolve(host: str, port: int) -> list[str]:
    """Return all addresses of a host name, by the system's resolver."""
    loop = asyncio.get_running_loop()
    rows = await loop.run_in_executor(_LOOKUP_THREADS, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return [str(place[0]) for *_, place in rows]


async def connect(address: str, port: int) -> httpcore.AsyncNetworkStream:
    """Open a TCP connection to an IP address."""
    return await httpcore.AnyIOBackend().connect_tcp(address, port)


@cache
def certificates() -> ssl.SSLContext:
    """Make TLS settings that check names and chains against certifi's authorities, whatever the environment says."""
    return ssl.create_default_context(cafile=certifi.where())


async def fetch_image(
    url: str,
    policy: UrlPolicy,
    resolver: Resolve = resolve,
    connect: Connect = connect,
    *,
    tls: Callable[[], ssl.SSLContext] = certificates,
    take: Callable[[int], None] = lambda count: None,
) -> bytes:
    """Download one URL; for any failure raise UrlError, whose code is the item's status.

    `take(count)` is called as bytes arrive and may raise a UrlError to stop.
    """
    try:
        async with asyncio.timeout(policy.timeout):
            return await _follow(url, policy, resolver, connect, tls, take)
    except TimeoutError as error:
        raise UrlError("url_failed", f"the picture did not come within {policy.timeout:g} seconds") from error


async def _follow(
    url: str,
    policy: UrlPolicy,
    resolver: Resolve,
    connect: Connect,
    tls: Callable[[], ssl.SSLContext],
    take: Callable[[int], None],
) -> bytes:
    """Request the URL and follow redirects; each target is checked from the start."""
    target = policy.check(url)
    for _ in range(policy.redirects + 1):
        addresses = await _addresses(target, resolver)
        backend = _PinnedBackend(addresses, connect)
        context = tls() if target.scheme == "https" else None
        try:
            async with httpcore.AsyncConnectionPool(ssl_context=context, network_backend=backend) as pool:
                answer = await _get(pool, target, policy, take)
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
            reason = f"no whole answer came from {target.host[:100]}"  # the exact error would reveal internal networks
            raise UrlError("url_failed", reason) from error
        if isinstance(answer, bytes):
            return answer
        try:
            url = urljoin(url, answer.location)
            target = policy.check(url)
        except (UrlError, ValueError) as error:
            raise UrlError("url_refused", "the URL redirects to where this server does not fetch from") from error
    raise UrlError("url_failed", f"more than {policy.redirects} redirects")


async def _addresses(target: Target, resolver: Resolve) -> list[str]:
    """Return the addresses that may be connected to; the only place where a name is resolved."""
    if target.address is not None:
        return public_addresses([target.address])
    try:
        return public_addresses(await resolver(target.host, target.port))
    except (OSError, UnicodeError) as error:
        raise UrlError("url_failed", f"host {target.host[:100]} has no address") from error


class _PinnedBackend(httpcore.AsyncNetworkBackend):
    """Connect to the checked addresses only; TLS and the Host header use the name, which is not resolved again."""

    def __init__(self, addresses: Sequence[str], connect: Connect) -> None:
        self._addresses, self._connect = list(addresses)[:MAX_ADDRESSES], connect

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        problem: Exception = httpcore.ConnectError("no address")
        for address in self._addresses:
            try:
                return await self._connect(address, port)
            except (OSError, httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                problem = error
        raise problem


@dataclass(frozen=True)
class _Redirect:
    location: str


async def _get(
    pool: httpcore.AsyncConnectionPool, target: Target, policy: UrlPolicy, take: Callable[[int], None]
) -> bytes | _Redirect:
    """Send one request and read the answer up to the limit."""
    url = httpcore.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
    headers = [
        ("Host", target.host_header),
        ("User-Agent", "noisegate"),
        ("Accept", "image/*"),
        ("Accept-Encoding", "identity"),
        ("Connection", "close"),
    ]
    async with pool.stream("GET", url, headers=headers) as response:
        headers_by_name = {name.lower(): value.decode("utf-8", "replace").strip() for name, value in response.headers}
        if response.status in REDIRECTS and b"location" in headers_by_name:
            return _Redirect(headers_by_name[b"location"])
        if response.status != 200:
            raise UrlError("url_failed", f"{target.host[:100]} answered with status {response.status}")
        if headers_by_name.get(b"content-encoding", "identity").lower() not in ("identity", ""):
            raise UrlError("url_failed", f"{target.host[:100]} sent a compressed body, which was not asked for")
        too_large = UrlError("too_large", f"the picture has more than {policy.max_bytes:,} bytes")
        promised = headers_by_name.get(b"content-length", "")
        if promised.isdecimal() and int(promised) > policy.max_bytes:
            raise too_large
        body = bytearray()
        async for chunk in response.aiter_stream():
            if len(body) + len(chunk) > policy.max_bytes:
                raise too_large
            take(len(chunk))
            body += chunk
        return bytes(body)
