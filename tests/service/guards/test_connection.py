"""Connections of clients that do not come to the point."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from noisegate.service.guards.connection import Connection
from noisegate.service.guards.middleware import BodyLimit
from tests.service.live import over_http, serving

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Impatient(Connection):
    seconds = 0.2


class Few(Connection):
    most = 4


class Held:
    """An application that answers when it is released, and says when it was asked."""

    def __init__(self) -> None:
        self.asked, self.released = threading.Event(), threading.Event()
        self._app = over_http(lambda request: httpx.Response(200))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self.asked.set()
            await asyncio.to_thread(self.released.wait, 60)
        await self._app(scope, receive, send)


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def url(held: Held) -> Iterator[str]:
    with serving(held, http=Impatient) as url:
        yield url
        held.released.set()


def connected(url: str) -> socket.socket:
    return socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=30)


@pytest.mark.parametrize("said", [b"", b"GET / HT", GET[:-2]])
def test_headers_that_do_not_come_end_the_connection(url: str, said: bytes) -> None:
    with connected(url) as client:
        client.sendall(said)
        assert client.recv(100) == b""


def test_so_do_those_of_a_second_request(url: str, held: Held) -> None:
    held.released.set()
    with connected(url) as client:
        client.sendall(GET)
        assert client.recv(1000).startswith(b"HTTP/1.1 200 OK")
        client.sendall(b"GET /a")
        assert client.recv(1000) == b""


def test_an_answer_may_take_longer(url: str, held: Held) -> None:
    with connected(url) as client, connected(url) as silent:
        client.sendall(GET)
        assert held.asked.wait(30)
        with connected(url) as later:
            assert silent.recv(100) == later.recv(100) == b""  # so much time has passed
        held.released.set()
        assert client.recv(1000).startswith(b"HTTP/1.1 200 OK")


def test_an_answer_that_nobody_reads_ends_the_connection() -> None:
    size = 50 << 20
    app = BodyLimit(over_http(lambda request: httpx.Response(200, content=bytes(size))), size, 60, size)
    with serving(app, http=Impatient) as url, connected(url) as client:
        client.sendall(GET)
        for _ in range(3):  # so much time passes
            with connected(url) as silent:
                assert silent.recv(100) == b""
        read = 0
        try:
            while part := client.recv(1 << 20):
                read += len(part)
        except ConnectionResetError:
            pass  # what the system still held is gone too
        assert read < size
        assert app._held == 0


def test_one_address_leaves_connections_to_others() -> None:
    with serving(over_http(lambda request: httpx.Response(200)), http=Few) as url, ExitStack() as open_ones:
        mine = [open_ones.enter_context(connected(url)) for _ in range(2)]
        for client in mine:
            client.sendall(GET)
            assert client.recv(1000).startswith(b"HTTP/1.1 200 OK")
        with connected(url) as one_more:
            assert one_more.recv(1000).startswith(b"HTTP/1.1 503")
            assert one_more.recv(1000) == b""
        place = (urlsplit(url).hostname, urlsplit(url).port)
        with socket.create_connection(place, timeout=30, source_address=("127.0.0.2", 0)) as other:
            other.sendall(GET)
            assert other.recv(1000).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize(
    ("size", "count", "code"), [(1, 900, 200), (4000, 3000, 200), (1, 1100, 400), (200, 1100, 400)]
)
def test_a_body_of_thousands_of_tiny_chunks_is_refused(size: int, count: int, code: int) -> None:
    """One chunk of a byte takes as long as one of many: 256 kB of them held up the event loop for a third of a second."""
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"%x\r\n%s\r\n" % (size, b"x" * size)
    with serving(over_http(lambda request: httpx.Response(200)), http=Connection) as url, connected(url) as client:
        client.sendall(head + chunk * count + b"0\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 %d" % code)
