"""Middleware: keys and what stays open without one; bodies that are too large, too slow or too many; security headers."""

import asyncio
import hashlib
import io
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from noisegate.service.api.state import Service
from noisegate.service.guards.middleware import BodyLimit, Keys, hash_key, read_key
from tests.errors import refused
from tests.service.serving import ask


class Sender:
    """A client that sends these chunks, then hangs up; `None` means silence for ever."""

    def __init__(self, chunks: Iterator[bytes | None]) -> None:
        self._chunks = chunks
        self.sent = 0

    async def receive(self) -> Message:
        await asyncio.sleep(0)  # others have their turn
        chunk = next(self._chunks, b"")
        if chunk is None:
            await asyncio.Event().wait()
        assert chunk is not None
        self.sent += len(chunk)
        return {"type": "http.request", "body": chunk, "more_body": bool(chunk)} if chunk or self.sent else gone()


def gone() -> Message:
    return {"type": "http.disconnect"}


class Eater:
    """An application that reads the whole body and says how long it was."""

    def __init__(self) -> None:
        self.eaten: list[int] = []
        self.hold: asyncio.Event | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            size, more = size + len(message.get("body", b"")), message.get("more_body", False)
        self.eaten.append(size)
        if self.hold is not None:
            await self.hold.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


async def post(
    limit: BodyLimit, sender: Sender, length: int | None = None, client: str = "192.0.2.1", path: str = "/v1/score"
) -> tuple[int, dict[str, Any], dict[str, str]]:
    headers = [] if length is None else [(b"content-length", str(length).encode())]
    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)

    scope = {
        "type": "http", "path": path, "headers": headers, "state": {"request_id": "r1"}, "client": (client, 1)
    }  # fmt: skip
    await limit(scope, sender.receive, send)
    assert [m["type"] for m in messages].count("http.response.start") == 1
    assert not messages[-1].get("more_body")
    body = b"".join(m.get("body", b"") for m in messages)
    found = {k.decode(): v.decode() for k, v in messages[0]["headers"]}
    return messages[0]["status"], json.loads(body), found


def endless() -> Iterator[bytes]:
    while True:
        yield b"x" * 100


def slowly(count: int, size: int) -> Iterator[bytes]:
    yield from [b"x" * size] * count


def chunks(*given: bytes | None) -> Sender:
    return Sender(iter(given))


def test_a_body_within_the_limit_passes() -> None:
    app = Eater()
    limit = BodyLimit(app, most=250, seconds=5, together=1000)
    assert asyncio.run(post(limit, chunks(b"x" * 100, b"x" * 150)))[0] == 200
    assert app.eaten == [250]
    assert limit._held == 0


def test_one_that_says_it_is_too_large_is_refused_unread() -> None:
    async def run() -> tuple[int, dict[str, Any], dict[str, str]]:
        return await post(BodyLimit(app, 250, 5, 1000), sender, length=251)

    app, sender = Eater(), chunks(b"")
    status, body, headers = asyncio.run(run())
    assert (status, body["error"]["code"], body["error"]["request_id"]) == (413, "too_large", "r1")
    assert "over the limit of 250 bytes" in body["error"]["message"]
    assert headers["connection"] == "close"
    assert app.eaten == []


@pytest.mark.parametrize(("path", "status"), [("/v1/score", 200), ("/v1/embed", 200), ("/v1/jobs", 413)])
def test_only_requests_with_pictures_may_be_large(path: str, status: int) -> None:
    """Others are parsed on the event loop, and JSON takes many times its size in memory."""
    limit = BodyLimit(Eater(), most=8 << 20, seconds=5, together=100 << 20)
    assert asyncio.run(post(limit, chunks(bytes(1 << 20)), path=path))[0] == 200
    assert asyncio.run(post(limit, chunks(bytes(1 << 20), b"x"), path=path))[0] == status
    assert asyncio.run(post(limit, chunks(b""), length=(1 << 20) + 1, path=path))[0] == status


def test_a_body_with_two_lengths_is_refused() -> None:
    """What stands in front of the server may go by the other one, and take the rest for a request of its own."""
    app = Eater()
    headers = [(b"content-length", b"5"), (b"transfer-encoding", b"chunked")]
    scope = {"type": "http", "path": "/v1/score", "state": {}, "headers": headers}
    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)

    limit = BodyLimit(app, most=250, seconds=5, together=1000)
    asyncio.run(limit(scope, chunks(b"hello", b"").receive, send))
    assert messages[0]["status"] == 400
    assert (b"connection", b"close") in messages[0]["headers"]
    assert app.eaten == []


def test_an_endless_body_is_cut_at_the_limit_and_read_no_further_than_twice_of_it() -> None:
    sender = Sender(endless())
    answered_at: list[int] = []

    async def send(message: Message) -> None:
        answered_at.append(sender.sent)

    limit = BodyLimit(Eater(), 250, 5, 10_000)
    asyncio.run(limit({"type": "http", "path": "/v1/score", "headers": [], "state": {}}, sender.receive, send))
    assert answered_at[:2] == [300, 300], "the chunk with the first byte too many is the last before the answer"
    assert answered_at[-1] == 700
    assert limit._held == 0


def test_silence_is_answered_too() -> None:
    limit = BodyLimit(Eater(), 250, 0.05, 1000)
    status, body, _ = asyncio.run(post(limit, chunks(b"x" * 10, None)))
    assert (status, body["error"]["code"]) == (408, "slow_body")
    assert limit._held == 0


def test_all_bodies_together_have_a_limit_and_it_is_given_back() -> None:
    async def run() -> list[int]:
        app = Eater()
        app.hold = asyncio.Event()
        limit = BodyLimit(app, 250, 5, 300)
        first = asyncio.create_task(post(limit, chunks(b"x" * 200)))
        while not app.eaten:
            await asyncio.sleep(0)
        announced = await post(limit, chunks(b""), length=101)
        streamed = await post(limit, chunks(b"x" * 60, b"x" * 60))
        assert announced[1]["error"]["code"] == streamed[1]["error"]["code"] == "overloaded"
        assert announced[2]["retry-after"] == "1"
        app.hold.set()
        await first
        again = await post(limit, chunks(b"x" * 200))
        return [announced[0], streamed[0], again[0], limit._held]

    assert asyncio.run(run()) == [429, 429, 200, 0]


def test_bytes_count_when_they_come_not_when_they_are_announced() -> None:
    """Sixteen clients announce all that there is room for and send nothing; others are served meanwhile."""

    async def run() -> tuple[int, int]:
        limit = BodyLimit(Eater(), 250, 60, 300)
        silent = [asyncio.create_task(post(limit, chunks(None), 250, f"192.0.2.{i}")) for i in range(16)]
        for _ in range(50):
            await asyncio.sleep(0)
        other = await post(limit, chunks(b"x" * 250, b""), 250, "198.51.100.1")
        for task in silent:
            task.cancel()
        await asyncio.gather(*silent, return_exceptions=True)
        return other[0], limit._held

    assert asyncio.run(run()) == (200, 0)


def test_a_client_with_many_bodies_leaves_room_for_others() -> None:
    async def run() -> list[int]:
        app = Eater()
        app.hold = asyncio.Event()
        limit = BodyLimit(app, 100, 5, 1000)
        many = [asyncio.create_task(post(limit, chunks(b"x" * 100), 100)) for _ in range(20)]
        while len(app.eaten) + sum(task.done() for task in many) < 20:
            await asyncio.sleep(0)
        other = asyncio.create_task(post(limit, chunks(b"x" * 100), 100, "198.51.100.1"))
        while len(app.eaten) < 6 and not other.done():
            await asyncio.sleep(0)
        app.hold.set()
        answers = [status for status, *_ in await asyncio.gather(*many, other)]
        assert (limit._held, dict(limit._by_client)) == (0, {})
        return answers

    assert asyncio.run(run()) == [200] * 5 + [429] * 15 + [200]


def test_an_answer_counts_until_the_client_has_read_it() -> None:
    size = 5 << 20

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * size})

    async def run() -> tuple[int, int, int]:
        limit, reads, sent = BodyLimit(app, 100, 5, 2 * size), asyncio.Event(), 0

        async def send(message: Message) -> None:
            nonlocal sent
            sent += len(message.get("body", b""))
            if sent:
                await reads.wait()  # as uvicorn does while the connection takes no more

        scope = {"type": "http", "path": "/v1/score", "headers": [], "state": {}, "client": ("192.0.2.1", 1)}
        answer = asyncio.create_task(limit(scope, chunks(b"").receive, send))
        while not sent:
            await asyncio.sleep(0)
        held, begun = limit._held, sent
        reads.set()
        await answer
        assert sent == size
        return held, begun, limit._held

    held, begun, after = asyncio.run(run())
    assert (held, after) == (size, 0)
    assert begun < size // 10


def test_a_refused_body_counts_no_longer_while_it_is_read_to_its_end() -> None:
    async def run() -> tuple[int, int]:
        limit = BodyLimit(Eater(), 250, 60, 300)
        sender = chunks(b"x" * 260, None)
        refused = asyncio.create_task(post(limit, sender))
        while sender.sent < 260 or limit._held:
            await asyncio.sleep(0)
        other = await post(limit, chunks(b"x" * 250, b""), length=250)
        still_lingers = not refused.done()
        refused.cancel()
        return other[0], still_lingers

    assert asyncio.run(run()) == (200, True)


def test_an_application_that_answers_a_cut_body_in_its_own_way_is_not_heard() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            while (await receive()).get("more_body"):
                continue
        except Exception:  # as a framework might
            await send({"type": "http.response.start", "status": 400, "headers": []})
            await send({"type": "http.response.body", "body": b"what?"})

    status, body, _ = asyncio.run(post(BodyLimit(app, 100, 5, 1000), chunks(b"x" * 101, b"")))
    assert (status, body["error"]["code"]) == (413, "too_large")


KEY, OTHER = "correct horse battery staple", "another key of good length"


def test_a_key_is_known_by_its_hash_only() -> None:
    hashed = hash_key(KEY)
    assert hashed == "sha256:" + hashlib.sha256(KEY.encode()).hexdigest()
    keys = Keys([hashed, hash_key(OTHER)])
    assert [keys.is_known(k.encode()) for k in (KEY, OTHER, KEY[:-1], "", hashed)] == [True, True, False, False, False]
    assert keys
    assert not Keys([])


def test_keys_come_from_one_line_and_are_long_enough() -> None:
    assert read_key(io.StringIO(f"{KEY}\nrest")) == KEY
    with refused("hash_key"):
        read_key(io.StringIO("short\n"))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 401),
        ([("Authorization", f"Bearer {KEY}")], 200),
        ([("Authorization", f"bearer  {KEY} ")], 200),
        ([("Authorization", f"Bearer {OTHER}x")], 401),
        ([("Authorization", KEY)], 401),
        ([("Authorization", f"Basic {KEY}")], 401),
        ([("Authorization", "Bearer ")], 401),
        ([("Authorization", "Bearer \xff")], 401),
        ([("Authorization", f"Bearer {KEY}"), ("Authorization", "Bearer x")], 401),
    ],
)
def test_who_gets_in(headers: list[tuple[str, str]], status: int) -> None:
    async def work(client: httpx.AsyncClient, service: Service) -> httpx.Response:
        raw = [(k.encode(), v.encode("latin-1")) for k, v in headers]
        return await client.get("/v1/scorer", headers=raw)

    found = ask(work, api_keys=[hash_key(KEY)])
    assert found.status_code == status
    if status == 401:
        assert found.headers["WWW-Authenticate"] == "Bearer"
        assert found.json()["error"]["code"] == "unauthorized"


def test_what_is_open_and_what_is_not() -> None:
    async def work(client: httpx.AsyncClient, service: Service) -> dict[str, int]:
        paths = (
            "/",
            "/healthz",
            "/readyz",
            "/static/app.js",
            "/metrics",
            "/openapi.json",
            "/v1/runs",
            "/nope",
            "//healthz",
        )
        return {path: (await client.get(f"http://127.0.0.1{path}")).status_code for path in paths}

    found = ask(work, api_keys=[hash_key(KEY)])
    assert {path for path, status in found.items() if status == 401} == {
        "/metrics", "/openapi.json", "/v1/runs", "/nope", "//healthz",
    }  # fmt: skip


def test_nothing_of_a_body_is_read_without_a_key() -> None:
    sent = 0

    async def body() -> object:
        nonlocal sent
        for _ in range(100):
            sent += 1
            yield b"x" * 1000

    async def work(client: httpx.AsyncClient, service: Service) -> int:
        return (await client.post("/v1/score", content=body())).status_code

    assert ask(work, api_keys=[hash_key(KEY)]) == 401
    assert sent <= 1, "httpx takes the first chunk before anybody asks"
