"""Fetching by URL: real HTTP over loopback, through a connector that notes which address was to be dialled."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import httpcore
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisegate.service.guards.fetch import connect, fetch_image, resolve
from noisegate.service.guards.url_policy import UrlError, UrlPolicy
from tests.errors import failed
from tests.service.sites import Names, Site, answer, certificate

PICTURE = b"\x89PNG picture"
PUBLIC, OTHER, PRIVATE = "93.184.215.14", "1.1.1.1", "10.1.2.3"
NAMES = {"good_example": [[PUBLIC]], "also_good_example": [[OTHER]], "rebind_example": [[PUBLIC], ["127.0.0.1"]]}
HOSTS = ("good.example", "*.good.example", "rebind.example", "two.example", "inner.example", "8.8.8.8")


def fetched(
    site: Site, url: str, names: Names | None = None, *, tls: Any = None, **limits: Any
) -> Coroutine[Any, Any, bytes]:
    policy = UrlPolicy(HOSTS, **limits)
    return fetch_image(url, policy, names or Names(**NAMES), site.connect, tls=lambda: tls)


def ask(url: str, pages: dict[str, Any], **how: Any) -> tuple[bytes | UrlError, Site]:
    """One fetch with a site of these pages: what came, and what the site saw."""

    async def run() -> tuple[bytes | UrlError, Site]:
        async with Site(pages) as site:
            try:
                return await fetched(site, url, **how), site
            except UrlError as error:
                return error, site

    return asyncio.run(run())


def refusal(url: str, pages: dict[str, Any], **how: Any) -> tuple[str, str, Site]:
    found, site = ask(url, pages, **how)
    assert isinstance(found, UrlError), found
    return found.code, str(found), site


def test_a_picture_comes_from_the_checked_address_under_its_own_name() -> None:
    names = Names(**NAMES)
    found, site = ask("http://good.example/a.png?size=1#top", {"/a.png?size=1": answer(PICTURE)}, names=names)
    assert found == PICTURE
    assert site.dialled == [(PUBLIC, 80)]
    assert names.lookups == ["good.example"]
    head = site.asked[0].split("\r\n")
    assert head[0] == "GET /a.png?size=1 HTTP/1.1"
    assert "Host: good.example" in head
    assert "Accept-Encoding: identity" in head
    assert not [line for line in head if line.lower().startswith(("cookie", "authorization", "referer", "proxy"))]


def test_an_address_needs_no_resolver() -> None:
    names = Names()
    found, site = ask("http://8.8.8.8/a", {"/a": answer(PICTURE)}, names=names)
    assert (found, site.dialled, names.lookups) == (PICTURE, [("8.8.8.8", 80)], [])


def test_a_name_that_changes_its_answer_is_asked_once() -> None:
    """Rebinding: the second look-up would say 127.0.0.1, but there is none, and what was checked is what is dialled."""
    names = Names(**NAMES)
    found, site = ask("http://rebind.example/a", {"/a": answer(PICTURE)}, names=names)
    assert (found, site.dialled, names.lookups) == (PICTURE, [(PUBLIC, 80)], ["rebind.example"])
    code, _, site = refusal("http://rebind.example/a", {"/a": answer(PICTURE)}, names=names)
    assert (code, site.dialled, names.lookups) == ("url_refused", [], ["rebind.example"] * 2)


def test_rebinding_between_redirects_is_checked_again() -> None:
    pages = {"/a": answer(status="302 Found", location="/b"), "/b": answer(PICTURE)}
    code, text, site = refusal("http://rebind.example/a", pages)
    assert (code, site.dialled) == ("url_refused", [(PUBLIC, 80)])
    assert "127" not in text


@pytest.mark.parametrize(
    "answers",
    [
        [PRIVATE],
        [PUBLIC, PRIVATE],
        [PRIVATE, PUBLIC],
        ["::1"],
        ["::ffff:10.1.2.3"],
        ["169.254.169.254"],
        ["fe80::1%eth0"],
    ],
)
def test_every_address_of_the_answer_must_be_public(answers: list[str]) -> None:
    code, text, site = refusal("http://two.example/a", {}, names=Names(two_example=[answers]))
    assert (code, site.dialled) == ("url_refused", [])
    assert not [address for address in answers if address in text]


def test_the_next_checked_address_is_tried() -> None:
    async def run() -> tuple[bytes, list[str]]:
        async with Site({"/a": answer(PICTURE)}) as site:
            tried: list[str] = []

            async def connect(address: str, port: int) -> Any:
                tried.append(address)
                if address == PUBLIC:
                    raise ConnectionRefusedError("nobody there")
                return await site.connect(address, port)

            names = Names(two_example=[[PUBLIC, OTHER]])
            return await fetch_image("http://two.example/a", UrlPolicy(HOSTS), names, connect), tried

    assert asyncio.run(run()) == (PICTURE, [PUBLIC, OTHER])


# --- redirects -------------------------------------------------------------------------------------------------------


def test_redirects_are_followed_where_they_are_allowed() -> None:
    pages = {
        "/a": answer(status="301 Moved", location="b?x=1", set_cookie="secret=1"),
        "/b?x=1": answer(status="307 Temporary", location="http://also.good.example/c"),
        "/c": answer(PICTURE),
    }
    names = Names(**NAMES)
    found, site = ask("http://good.example/a", pages, names=names)
    assert found == PICTURE
    assert site.dialled == [(PUBLIC, 80), (PUBLIC, 80), (OTHER, 80)]
    assert names.lookups == ["good.example", "good.example", "also.good.example"]
    assert ["Host: also.good.example" in head for head in site.asked] == [False, False, True]
    assert "secret" not in "".join(site.asked)


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1/",
        "http://localhost/",
        "http://[::1]/",
        "http://[::ffff:169.254.169.254]/",
        "http://2130706433/",
        "http://0177.0.0.1/",
        "http://0x7f.1/",
        "//169.254.169.254/latest/meta-data",
        "http://good.example@127.0.0.1/",
        "http://good.example:22/",
        "file:///etc/passwd",
        "gopher://good.example/_x",
        "ftp://good.example/",
        "data:image/png;base64,AAAA",
        "http://evil.example/",
        "http://[::1",
        "http://good.example\\@evil.example/",
    ],
)
def test_a_redirect_is_checked_like_a_url(location: str) -> None:
    code, text, site = refusal("http://good.example/a", {"/a": answer(status="302 Found", location=location)})
    assert (code, len(site.dialled)) == ("url_refused", 1)
    assert text == "the URL redirects to where this server does not fetch from"


def test_a_redirect_to_a_name_with_a_private_address() -> None:
    pages = {"/a": answer(status="302 Found", location="http://inner.example/")}
    names = Names(good_example=[[PUBLIC]], inner_example=[[PRIVATE]])
    code, text, site = refusal("http://good.example/a", pages, names=names)
    assert (code, site.dialled) == ("url_refused", [(PUBLIC, 80)])
    assert PRIVATE not in text


def test_redirects_end() -> None:
    pages = {"/a": answer(status="302 Found", location="/a")}
    code, text, site = refusal("http://good.example/a", pages)
    assert (code, text, len(site.dialled)) == ("url_failed", "more than 3 redirects", 4)
    assert len(refusal("http://good.example/a", pages, redirects=0)[2].dialled) == 1


# --- sizes and times -------------------------------------------------------------------------------------------------


def test_exactly_the_limit_is_allowed_and_one_byte_more_is_not() -> None:
    assert ask("http://good.example/a", {"/a": answer(b"x" * 1000)}, max_bytes=1000)[0] == b"x" * 1000
    code, text, _ = refusal("http://good.example/a", {"/a": answer(b"x" * 1001)}, max_bytes=1000)
    assert (code, text) == ("too_large", "the picture has more than 1,000 bytes")


def test_a_promise_beyond_the_limit_is_enough() -> None:
    async def promise(writer: asyncio.StreamWriter) -> None:
        writer.write(answer(content_length=10**12))
        await asyncio.Event().wait()  # not one byte follows

    assert refusal("http://good.example/a", {"/a": promise})[0] == "too_large"


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"400\r\n" + b"x" * 1024 + b"\r\n")
        await writer.drain()


async def unsized(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x" * 1024)
        await writer.drain()


@pytest.mark.parametrize("page", [endless, unsized])
def test_endless_bodies_end_at_the_limit(page: Any) -> None:
    async def run() -> None:
        async with Site({"/a": page}) as site:
            with failed("too_large", UrlError):
                await fetched(site, "http://good.example/a", max_bytes=100_000)
            await asyncio.wait_for(site.gone.wait(), 30)  # the connection was cut, not left to run

    asyncio.run(run())


def test_a_length_that_lies_brings_no_more_than_it_says() -> None:
    assert ask("http://good.example/a", {"/a": answer(PICTURE, content_length=5)})[0] == PICTURE[:5]
    assert refusal("http://good.example/a", {"/a": answer(PICTURE, content_length=500)})[0] == "url_failed"


@pytest.mark.parametrize("coding", ["gzip", "br", "deflate", "zstd", "identity, gzip"])
def test_compressed_bodies_are_refused(coding: str) -> None:
    code, text, _ = refusal("http://good.example/a", {"/a": answer(PICTURE, content_encoding=coding)})
    assert (code, "compressed" in text) == ("url_failed", True)
    zipped = {"/a": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"}
    assert refusal("http://good.example/a", zipped)[0] == "url_failed"


def test_identity_is_no_compression() -> None:
    assert ask("http://good.example/a", {"/a": answer(PICTURE, content_encoding="identity")})[0] == PICTURE


async def silent(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def dripping(writer: asyncio.StreamWriter) -> None:
    """A byte now and then, so that no single read takes long."""
    writer.write(answer(content_length=10_000))
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.01)


async def dripping_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-A: b\r\n")
        await writer.drain()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("page", [silent, dripping, dripping_head])
def test_the_time_is_for_all_of_it(page: Any) -> None:
    code, text, _ = refusal("http://good.example/a", {"/a": page}, timeout=0.2)
    assert (code, text) == ("url_failed", "the picture did not come within 0.2 seconds")


def test_names_and_connections_take_of_the_same_time() -> None:
    async def never(host: str, port: int) -> Any:
        await asyncio.Event().wait()

    async def run(resolver: Any, connect: Any) -> None:
        policy = UrlPolicy(HOSTS, timeout=0.05)
        with failed("url_failed", UrlError):
            await fetch_image("http://good.example/", policy, resolver, connect)

    asyncio.run(run(never, never))
    asyncio.run(run(Names(**NAMES), never))


# --- answers that are none -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "page",
    [
        answer(b"no", "404 Not Found"),
        answer(PICTURE, "206 Partial Content"),
        answer(b"", "204 No Content"),
        answer(b"", "302 Found"),
        answer(b"", "304 Not Modified", location="/a"),
        b"",
        b"SSH-2.0-OpenSSH_9.0\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\n" + b"X-Y: " + b"z" * 200_000 + b"\r\n\r\n",
    ],
)
def test_other_answers_are_failures(page: bytes) -> None:
    assert refusal("http://good.example/a", {"/a": page})[0] == "url_failed"


def test_an_error_says_nothing_about_addresses() -> None:
    async def refused(address: str, port: int) -> Any:
        raise ConnectionRefusedError(111, f"Connect call failed ('{address}', {port})")

    async def run() -> str:
        with pytest.raises(UrlError) as caught:
            await fetch_image("http://good.example/", UrlPolicy(HOSTS), Names(**NAMES), refused)
        return str(caught.value)

    assert asyncio.run(run()) == "no whole answer came from good.example"
    code, text, _ = refusal("http://two.example/", {})
    assert (code, text) == ("url_failed", "host two.example has no address")


# --- TLS -------------------------------------------------------------------------------------------------------------


def test_tls_checks_the_name_and_not_the_address(tmp_path: Path) -> None:
    server, client = certificate(tmp_path, "good.example")
    asked_for: list[str | None] = []
    server.sni_callback = lambda _, name, __: asked_for.append(name)

    async def run() -> bytes:
        async with Site({"/a": answer(PICTURE)}, server) as site:
            found = await fetched(site, "https://good.example/a", tls=client)
            assert site.dialled == [(PUBLIC, 443)]
            for url, trust in (("https://also.good.example/a", client), ("https://8.8.8.8/a", client)):
                with failed("url_failed", UrlError):
                    await fetched(site, url, tls=trust)
            with failed("url_failed", UrlError):  # an authority nobody knows
                await fetch_image("https://good.example/a", UrlPolicy(HOSTS), Names(**NAMES), site.connect)
            assert len(site.asked) == 1, "nothing was asked of a server that is not who it should be"
            return found

    assert asyncio.run(run()) == PICTURE
    assert asked_for[:2] == ["good.example", "also.good.example"]


def test_the_environment_has_no_say(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    found, site = ask("http://good.example/a", {"/a": answer(PICTURE)})
    assert (found, site.dialled) == (PICTURE, [(PUBLIC, 80)])


# --- the system's own resolver and sockets ---------------------------------------------------------------------------


def test_the_system_resolves_and_its_answer_is_checked() -> None:
    """Names that need no network: they are of this machine, so that they are refused."""

    async def run() -> list[str]:
        for url in ("http://localhost/", "http://localhost./", "https://localhost/"):
            with pytest.raises(UrlError, match="has an address that is not public") as caught:
                await fetch_image(url, UrlPolicy(("localhost",)))
            assert caught.value.code == "url_refused"
        return await resolve("localhost", 80)

    assert set(asyncio.run(run())) <= {"127.0.0.1", "::1"}


def test_the_system_dials() -> None:
    async def run() -> bytes:
        async with Site({"/a": answer(PICTURE)}) as site:

            async def from_here(address: str, port: int) -> Any:
                return await connect("127.0.0.1", site.port)

            found = await fetch_image("http://good.example/a", UrlPolicy(HOSTS), Names(**NAMES), from_here)
        with pytest.raises(httpcore.ConnectError):
            await connect("127.0.0.1", site.port)
        return found

    assert asyncio.run(run()) == PICTURE


# --- anything at all -------------------------------------------------------------------------------------------------

PIECES = [
    b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.0 302 Found\r\n", b"HTTP/2 200\r\n", b"\r\n",
    b"Content-Length: 5\r\n", b"Content-Length: 99999999999999999999999\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Location: /a\r\n", b"Location: http://[\r\n", b"Location: \xff\xfe\r\n", b"Location:\r\n", b"5\r\nhello\r\n",
    b"0\r\n\r\n", b"ffffffffffffffff\r\n", b"hello", b"\x00", b"Content-Encoding: gzip\r\n",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=12), max_size=8))
def test_whatever_a_server_says_ends_in_bytes_or_a_typed_error(pieces: list[bytes]) -> None:
    found, _ = ask("http://good.example/a", {"/a": b"".join(pieces)}, max_bytes=1000)
    assert isinstance(found, bytes) or found.code in ("url_failed", "url_refused", "too_large")
