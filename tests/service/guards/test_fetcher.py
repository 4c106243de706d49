"""Pictures of a request by their URLs: order, bounds for the whole service, and what /v1/score makes of them."""

import asyncio
from typing import Any

import httpx
import pytest

from noisegate.service.app import create_app
from noisegate.service.engine.items import Item
from noisegate.service.errors import Overloaded
from noisegate.service.guards.fetch import Fetcher, fill_pictures
from noisegate.service.guards.url_policy import UrlError, UrlPolicy
from tests.errors import refused
from tests.fakes import picture
from tests.service.fakes import FakeEngine
from tests.service.serving import base64_of, serving, settings
from tests.service.sites import Names, Site, answer

NAMES = {"good_example": [["93.184.215.14"]], "inner_example": [["10.0.0.1"]]}
POLICY = UrlPolicy(("good.example", "inner.example"))
RED = (222, 36, 36)


def fetcher(site: Site, **how: Any) -> Fetcher:
    bounds = {"most": 10**6, "together": 10**7, "seconds": 30, **how}
    return Fetcher(POLICY, resolver=Names(**NAMES), connect=site.connect, **bounds)


def codes(found: dict[int, Any]) -> dict[int, Any]:
    return {i: one.code if isinstance(one, UrlError) else one for i, one in found.items()}


def good(*names: str) -> dict[int, str]:
    return {i: f"http://good.example/{name}" for i, name in enumerate(names)}


def test_each_has_its_own_end_and_the_same_url_is_fetched_once() -> None:
    async def run() -> None:
        pages = {"/a": answer(b"a"), "/b": answer(b"b"), "/no": answer(b"", "404 Not Found")}
        async with Site(pages) as site:
            urls = {7: "file:///x", 3: "http://inner.example/", **good("a", "no", "b"), 9: "http://good.example/a"}
            async with fetcher(site).pictures(urls) as found:
                assert codes(found) == {
                    7: "bad_url", 3: "url_refused", 0: b"a", 1: "url_failed", 2: b"b", 9: b"a"
                }  # fmt: skip
            assert len(site.dialled) == 3

    asyncio.run(run())


def test_no_more_than_the_bound_are_under_way_for_all_requests() -> None:
    async def run() -> int:
        under_way = most = 0

        async def slow(writer: asyncio.StreamWriter) -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            for _ in range(20):
                await asyncio.sleep(0)
            under_way -= 1
            writer.write(answer(b"x"))

        async with Site({f"/{i}": slow for i in range(12)}) as site:
            shared = fetcher(site, at_once=3)

            async def request(names: range) -> dict[int, Any]:
                async with shared.pictures(good(*map(str, names))) as found:
                    return dict(found)

            both = await asyncio.gather(request(range(6)), request(range(6, 12)))
            assert [list(found.values()) for found in both] == [[b"x"] * 6] * 2
        return most

    assert 1 < asyncio.run(run()) <= 3


def test_the_pictures_of_a_request_share_its_bytes() -> None:
    async def run() -> None:
        urls = good("0", "1", "2", "3")
        async with (
            Site({f"/{i}": answer(b"x" * 400) for i in range(4)}) as site,
            fetcher(site, most=1000, at_once=1).pictures(urls) as found,
        ):
            assert codes(found) == {0: b"x" * 400, 1: b"x" * 400, 2: "too_large", 3: "too_large"}

    asyncio.run(run())


def test_what_all_requests_hold_is_bounded_until_they_end() -> None:
    async def run() -> None:
        async with Site({"/a": answer(b"x" * 600)}) as site:
            shared = fetcher(site, together=1000)
            async with shared.pictures(good("a")) as found:
                assert len(found[0]) == 600  # type: ignore[arg-type]
                with pytest.raises(Overloaded) as caught:
                    async with shared.pictures(good("a")):
                        pytest.fail("more than the service may hold")
                assert (caught.value.status, caught.value.retry_after) == (429, 1)
            async with shared.pictures(good("a")) as found:
                assert codes(found) == {0: b"x" * 600}

    asyncio.run(run())


def test_a_request_waits_no_longer_than_its_time() -> None:
    async def never(writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def run() -> None:
        async with (
            Site({"/a": never, "/b": never}) as site,
            fetcher(site, seconds=0.1, at_once=1).pictures(good("a", "b")) as found,
        ):
            assert codes(found) == {0: "url_failed", 1: "url_failed"}
            assert "within 0.1 seconds" in str(found[1])

    asyncio.run(run())


def test_nothing_asked_is_nothing_done() -> None:
    async def run() -> None:
        async with Site({}) as site, fetcher(site).pictures({}) as found:
            assert (found, site.dialled) == ({}, [])

    asyncio.run(run())


def test_items_take_their_pictures() -> None:
    items = [Item(b"old", "a"), Item(None, "b"), Item(None, "c")]
    found = fill_pictures(items, {1: b"new", 2: UrlError("bad_url", "why")})
    assert found == [Item(b"old", "a"), Item(b"new", "b"), Item(None, "c", ("bad_url", "why"))]


# --- over HTTP -------------------------------------------------------------------------------------------------------


def score(pages: dict[str, Any], pairs: list[dict[str, Any]], **given: Any) -> tuple[httpx.Response, FakeEngine, Site]:
    async def run() -> tuple[httpx.Response, FakeEngine, Site]:
        engine = FakeEngine()
        chosen = settings(**given)
        app = create_app(chosen, engine)
        async with Site(pages) as site, serving(app) as client:
            app.state.service.fetcher = Fetcher.from_settings(chosen, resolver=Names(**NAMES), connect=site.connect)
            return await client.post("/v1/score", json={"pairs": pairs}), engine, site

    return asyncio.run(run())


def test_a_picture_by_url_scores_as_the_picture_itself() -> None:
    data = picture(RED)
    pages = {"/red.png": answer(data), "/bad.png": answer(b"no picture")}
    urls = [
        "http://good.example/red.png",
        "http://good.example/bad.png",
        "http://inner.example/",
        "http://127.0.0.1/",
        "x",
    ]
    pairs = [{"image": base64_of(data), "text": "all red"}, *({"image_url": url, "text": "all red"} for url in urls)]
    response, _, site = score(pages, pairs, url_hosts=["good.example", "inner.example"])
    results = response.json()["results"]
    assert response.status_code == 200
    assert [r["status"] for r in results] == ["ok", "ok", "bad_image", "url_refused", "url_refused", "bad_url"]
    assert results[1]["similarity"] == results[0]["similarity"]
    assert results[3]["error"] == "the host has an address that is not public"
    assert "10.0.0.1" not in response.text
    assert len(site.dialled) == 2


def test_urls_are_off_by_default() -> None:
    pairs = [{"image_url": "http://good.example/a", "text": "x"}, {"image": base64_of(picture(RED)), "text": "all red"}]
    response, _, site = score({}, pairs)
    results = response.json()["results"]
    assert [r["status"] for r in results] == ["url_refused", "ok"]
    assert results[0]["error"] == "image URLs are off on this server; send the image itself"
    assert site.dialled == []


def test_the_fetched_picture_is_limited_like_a_posted_one() -> None:
    pairs = [{"image_url": "http://good.example/a", "text": "x"}]
    response, _, _ = score({"/a": answer(b"x" * 2000)}, pairs, url_hosts=["good.example"], url_max_bytes=1000)
    assert [r["status"] for r in response.json()["results"]] == ["too_large"]


def test_a_list_of_hosts_that_cannot_be_meant_stops_the_start() -> None:
    with refused("url_hosts", "*"):
        create_app(settings(url_hosts=["*"]), FakeEngine())
