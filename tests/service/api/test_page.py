"""The page's files over HTTP."""

import re
from importlib.resources import files
from typing import Any

import httpx
import pytest

from noisegate.service.api.state import Service
from noisegate.service.guards.middleware import hash_key
from tests.service.serving import ask

STATIC = files("noisegate.service") / "static"
NAMES = sorted(file.name for file in STATIC.iterdir())


def get(path: str, headers: dict[str, str] | None = None, **settings: Any) -> httpx.Response:
    async def work(client: httpx.AsyncClient, service: Service) -> httpx.Response:
        return await client.get(path, headers=headers)

    return ask(work, **settings)


@pytest.mark.parametrize("keys", [[], [hash_key("a key of many letters")]])
def test_the_shell_needs_no_key_and_comes_again_only_when_it_changed(keys: list[str]) -> None:
    first = get("/", api_keys=keys)
    assert first.status_code == 200 and first.headers["content-type"] == "text/html; charset=utf-8"
    again = get("/", {"If-None-Match": first.headers["etag"]}, api_keys=keys)
    assert (again.status_code, again.content) == (304, b"")


def test_every_file_is_served_with_its_type_and_a_strict_policy() -> None:
    async def work(client: httpx.AsyncClient, service: Service) -> list[httpx.Response]:
        return [await client.get(f"/static/{name}") for name in NAMES]

    kinds = {"js": "text/javascript", "css": "text/css", "html": "text/html", "svg": "image/svg+xml"}
    for name, response in zip(NAMES, ask(work), strict=True):
        assert response.content == (STATIC / name).read_bytes()
        assert response.headers["content-type"].startswith(kinds[name.rpartition(".")[2]])
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy


@pytest.mark.parametrize("path", ["/static/..%2Fapp.py", "/static/%2e%2e/app.py", "/static/app.py", "/static/"])
def test_nothing_else_is_served(path: str) -> None:
    assert get(path).status_code == 404


def test_no_file_asks_for_anything_from_elsewhere_or_holds_code_inline() -> None:
    for name in NAMES:
        text = (STATIC / name).read_text(encoding="utf-8")
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            name
        )
    shell = (STATIC / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"\son\w+=|\sstyle=|<style|<script(?![^>]*\ssrc=)", shell)
