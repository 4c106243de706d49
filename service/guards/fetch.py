"""Pictures by URL, for servers that allow it: resolve once, dial exactly the address that was checked, stop at the caps.

httpcore speaks the HTTP: it follows no redirects, keeps no cookies, decodes nothing and reads no proxy from the
environment, so that what leaves this process is what is written here.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urljoin

import httpcore

from .url_policy import Target, UrlError, UrlPolicy, public_addresses

__all__ = ["Connect", "Resolve", "UrlError", "UrlPolicy", "certificates", "connect", "fetch_image", "resolve"]

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
Connect = Callable[[str, int], Awaitable[httpcore.AsyncNetworkStream]]

REDIRECTS = (301, 302, 303, 307, 308)
MOST_DIALLED = 3  # addresses of one answer that are tried, each of them checked
AT_ONCE = 8
_LOOKUPS = ThreadPoolExecutor(
    AT_ONCE, thread_name_prefix="resolve"
)  # slow names must not hold up other work in threads


async def resolve(host: str, port: int) -> list[str]:
    """All addresses of a name, as the system finds them."""
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(_LOOKUPS, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return [str(place[0]) for *_, place in found]


async def connect(address: str, port: int) -> httpcore.AsyncNetworkStream:
    """A TCP connection to an IP address."""
    return await httpcore.AnyIOBackend().connect_tcp(address, port)


@cache
def certificates() -> ssl.SSLContext:
    """Checks names and chains against the well-known authorities, whatever the environment says."""
    import certifi

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
    """The bytes behind a URL; everything that keeps them away is a `UrlError` with a status for the item.

    `take` hears of the bytes as they come, and may raise a UrlError of its own.
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
    """Ask, and ask again where a redirect points, each time checked from the start."""
    target = policy.check(url)
    for _ in range(policy.redirects + 1):
        addresses = await _addresses(target, resolver)
        backend = _Pinned(addresses, connect)
        context = tls() if target.scheme == "https" else None
        try:
            async with httpcore.AsyncConnectionPool(ssl_context=context, network_backend=backend) as pool:
                found = await _get(pool, target, policy, take)
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
            reason = f"no whole answer came from {target.host[:100]}"  # the exact error would tell about inner networks
            raise UrlError("url_failed", reason) from error
        if isinstance(found, bytes):
            return found
        try:
            url = urljoin(url, found.location)
            target = policy.check(url)
        except (UrlError, ValueError) as error:
            raise UrlError("url_refused", "the URL redirects to where this server does not fetch from") from error
    raise UrlError("url_failed", f"more than {policy.redirects} redirects")


async def _addresses(target: Target, resolver: Resolve) -> list[str]:
    """What may be dialled for this target; the one place where a name is resolved."""
    if target.address is not None:
        return public_addresses([target.address])
    try:
        return public_addresses(await resolver(target.host, target.port))
    except (OSError, UnicodeError) as error:
        raise UrlError("url_failed", f"host {target.host[:100]} has no address") from error


class _Pinned(httpcore.AsyncNetworkBackend):
    """Dials the checked addresses whatever the name: TLS and the Host header still use the name, nothing resolves it again."""

    def __init__(self, addresses: Sequence[str], connect: Connect) -> None:
        self._addresses, self._connect = list(addresses)[:MOST_DIALLED], connect

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
class _Elsewhere:
    location: str


async def _get(
    pool: httpcore.AsyncConnectionPool, target: Target, policy: UrlPolicy, take: Callable[[int], None]
) -> bytes | _Elsewhere:
    """One request and its answer, read no further than allowed."""
    url = httpcore.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
    headers = [
        ("Host", target.host_header),
        ("User-Agent", "noisegate"),
        ("Accept", "image/*"),
        ("Accept-Encoding", "identity"),
        ("Connection", "close"),
    ]
    async with pool.stream("GET", url, headers=headers) as response:
        said = {name.lower(): value.decode("utf-8", "replace").strip() for name, value in response.headers}
        if response.status in REDIRECTS and b"location" in said:
            return _Elsewhere(said[b"location"])
        if response.status != 200:
            raise UrlError("url_failed", f"{target.host[:100]} answered with status {response.status}")
        if said.get(b"content-encoding", "identity").lower() not in ("identity", ""):
            raise UrlError("url_failed", f"{target.host[:100]} sent a compressed body, which was not asked for")
        too_large = UrlError("too_large", f"the picture has more than {policy.max_bytes:,} bytes")
        promised = said.get(b"content-length", "")
        if promised.isdecimal() and int(promised) > policy.max_bytes:
            raise too_large
        body = bytearray()
        async for chunk in response.aiter_stream():
            if len(body) + len(chunk) > policy.max_bytes:
                raise too_large
            take(len(chunk))
            body += chunk
        return bytes(body)
