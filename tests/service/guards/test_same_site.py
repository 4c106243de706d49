"""Host and Origin: a rebound name and other sites' pages reach nothing, on a real socket with raw requests."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from noisegate.service.app import create_app
from tests.service.fakes import FakeEngine
from tests.service.live import serving
from tests.service.serving import settings

Send = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def send() -> Iterator[Send]:
    """Send raw headers to a server with these settings; gives the status and the body. `{here}` is its address."""
    with ExitStack() as stack:
        urls: dict[str, str] = {}

        def asked(method: str, path: str, *headers: str, body: str = "", **given: Any) -> tuple[int, str]:
            if str(given) not in urls:
                urls[str(given)] = stack.enter_context(serving(create_app(settings(**given), FakeEngine())))
            here = urls[str(given)].removeprefix("http://")
            place, port = here.split(":")
            lines = [f"{method} {path} HTTP/1.1", *(line.format(here=here, port=port) for line in headers)]
            with socket.create_connection((place, int(port)), timeout=30) as client:
                client.sendall(
                    "\r\n".join([*lines, "Connection: close", f"Content-Length: {len(body)}", "", body]).encode()
                )
                answer = b"".join(iter(lambda: client.recv(65536), b"")).decode()
            head, _, rest = answer.partition("\r\n\r\n")
            return int(head.split()[1]), rest

        yield asked


@pytest.mark.parametrize("host", ["{here}", "localhost", "LOCALHOST:9", "127.0.0.2", "[::1]:{port}", "10.1.2.3:80"])
def test_this_machine_and_addresses_are_known_hosts(send: Send, host: str) -> None:
    assert send("GET", "/v1/runs", f"Host: {host}")[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.test", "evil.test:{port}", "localhost.evil.test", "127.0.0.1.evil.test", "noisegate"]
)
@pytest.mark.parametrize("path", ["/v1/runs", "/", "/v1/jobs"])
def test_a_rebound_name_is_refused(send: Send, host: str, path: str) -> None:
    status, body = send("GET", path, f"Host: {host}")
    assert (status, "unknown_host" in body) == (421, True)


@pytest.mark.parametrize("host", ["", "a b", "x@127.0.0.1", "127.0.0.1/", "a,b", "[::1"])
def test_hosts_that_are_none(send: Send, host: str) -> None:
    assert send("GET", "/v1/runs", f"Host: {host}")[0] in (400, 421)


def test_names_can_be_allowed(send: Send) -> None:
    for host in ("scores.example", "Scores.Example:443", "scores.example."):
        assert send("GET", "/v1/runs", f"Host: {host}", allowed_hosts=["scores.example"])[0] == 200
    assert send("GET", "/v1/runs", "Host: other.example", allowed_hosts=["scores.example"])[0] == 421
    assert send("GET", "/v1/runs", "Host: other.example", allowed_hosts=["*"])[0] == 200
    assert send("GET", "/v1/runs", "Host: box.example", host="box.example", allow_open=True)[0] == 200
    assert send("GET", "/v1/runs", "Host: evil.test", host="0.0.0.0", allow_open=True)[0] == 421


@pytest.mark.parametrize(
    "origin", ["http://evil.test", "null", "http://127.0.0.1:1", "https://{here}.evil.test", "file://", "http://[", "x"]
)
@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("POST", "/v1/jobs/abc/cancel", "text/plain"),
        ("DELETE", "/v1/jobs/abc", "application/json"),
        ("POST", "/v1/score", "multipart/form-data; boundary=b"),
    ],
)
def test_pages_of_other_sites_change_nothing(send: Send, origin: str, method: str, path: str, kind: str) -> None:
    status, body = send(method, path, "Host: {here}", f"Origin: {origin}", f"Content-Type: {kind}", body="--b--")
    assert (status, "foreign_origin" in body) == (403, True)


@pytest.mark.parametrize("origin", ["Origin: http://{here}", "X-No-Origin: 1"])
def test_the_own_page_and_programs_are_heard(send: Send, origin: str) -> None:
    status, body = send("DELETE", "/v1/jobs/abc", "Host: {here}", origin)
    assert (status, "jobs_off" in body) == (404, True)


def test_a_proxys_public_name_is_an_own_origin(send: Send) -> None:
    proxied = {"allowed_hosts": ["scores.example"]}
    headers = ("Host: {here}", "Origin: https://scores.example")
    assert send("DELETE", "/v1/jobs/abc", *headers, **proxied)[0] == 404
    kept = ("Host: scores.example", "Origin: https://scores.example")
    assert send("DELETE", "/v1/jobs/abc", *kept, **proxied)[0] == 404
    assert (
        send("DELETE", "/v1/jobs/abc", "Host: scores.example", "Origin: https://evil.test", allowed_hosts=["*"])[0]
        == 403
    )
