"""Keys: who gets in, what stays open, and that nothing is read before the key."""

import hashlib
import io

import httpx
import pytest

from noisegate.service.api.state import Service
from noisegate.service.guards.middleware import Keys, hash_key, read_key
from tests.errors import refused
from tests.service.serving import ask

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
        return {path: (await client.get(f"http://service{path}")).status_code for path in paths}

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
