"""Marks over HTTP: put, taken back, listed, filtered by, and refused."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from noisegate import read_table
from noisegate.pipeline.inspect.review import read_figures
from noisegate.pipeline.runs import Reviews, RunFolder, replace_columns
from noisegate.pipeline.runs.table import read_metadata
from noisegate.service.api.state import Service
from noisegate.service.guards.middleware import hash_key
from tests.fakes import pairs, write_tar
from tests.jobs import score
from tests.service.serving import ask

KEY = "a key of many letters"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Twelve pairs in two shards, those of x-00 with the class 1."""
    for i in range(2):
        write_tar(tmp_path / "s" / f"x-0{i}.tar", pairs(6, 10 * i))
    score(tmp_path / "s", tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    run.write_table("x-00", replace_columns(run.read("x-00"), {"label": [1] * 6}, read_metadata(run.table("x-00"))))
    return run.path


@pytest.fixture
def serve(run: Path) -> Callable[..., Any]:
    def served(work: Callable[[httpx.AsyncClient], Awaitable[Any]], **settings: Any) -> Any:
        async def go(client: httpx.AsyncClient, service: Service) -> Any:
            client.base_url = httpx.URL("http://127.0.0.1/v1/runs/r/")
            return await work(client)

        return ask(go, runs={"r": run}, **settings)

    return served


def error(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def test_marks_are_put_changed_listed_and_taken_back(run: Path, serve: Any) -> None:
    rows = {(row["shard"], row["index"]): row for row in read_table(run).to_pylist()}
    tables = {path.name: path.read_bytes() for path in run.glob("*.parquet")}

    async def work(client: httpx.AsyncClient) -> None:
        seen = (await client.get("samples/x-00/2")).json()
        digests = {name: seen[name] for name in ("image_sha256", "text_sha256")}
        put = await client.put("samples/x-00/2/review", json={"mark": "keep", "reviewer": "Ada", **digests})
        assert put.status_code == 200 and put.json()["mark"] == "keep" and put.json()["at"] > 1.7e9
        for shard, index, body in (
            ("x-00", 2, {"mark": "drop"}), ("x-00", 3, {"mark": "relabel", "label": 4}), ("x-01", 0, {"mark": "keep"})
        ):  # fmt: skip
            assert (await client.put(f"samples/{shard}/{index}/review", json=body)).status_code == 200
        listed = (await client.get("reviews")).json()
        assert listed["counts"] == {"keep": 1, "drop": 1, "relabel": 1} and listed["total"] == 3
        assert [(m["shard"], m["index"], m["mark"], m["label"]) for m in listed["marks"]] == [
            ("x-01", 0, "keep", None), ("x-00", 3, "relabel", 4), ("x-00", 2, "drop", None)
        ]  # fmt: skip
        agreed = sum((rows[m["shard"], m["index"]]["clean"] is True) == (m["mark"] == "keep") for m in listed["marks"])
        assert (listed["agreed"]["hits"], listed["agreed"]["of"]) == (agreed, 3)
        one = (await client.get("samples/x-00/3")).json()
        assert (one["review"], one["review_label"], one["label"]) == ("relabel", 4, 1)
        for wanted, count in (("none", 9), ("any", 3), ("drop", 1), ("relabel", 1), ("disagree", 3 - agreed)):
            page = (await client.get("samples", params={"review": wanted, "view": "all"})).json()
            assert page["total"] == count, wanted
        spread = (await client.get("histogram", params={"review": "any"})).json()
        assert sum(spread["kept"]) + sum(spread["dropped"]) == 3
        for _ in range(2):  # the second time there is none
            assert (await client.delete("samples/x-00/2/review")).status_code == 204
        page = (await client.get("samples", params={"review": "none", "view": "all"})).json()
        assert page["total"] == 10  # not what was cached before

    serve(work)
    assert [m.mark for m in Reviews(run).history()] == ["keep", "drop", "relabel", "keep", None]
    assert {path.name: path.read_bytes() for path in run.glob("*.parquet")} == tables


def test_the_random_queue_is_the_sample_of_the_unbiased_figure(run: Path, serve: Any) -> None:
    async def work(client: httpx.AsyncClient) -> Any:
        queue = (await client.get("samples", params={"view": "random"})).json()["samples"]
        assert len(queue) == 12 == len({(s["shard"], s["index"]) for s in queue})
        for sample in queue[:5]:
            await client.put(f"samples/{sample['shard']}/{sample['index']}/review", json={"mark": "keep"})
        return (await client.get("reviews", params={"limit": 0})).json(), [s["clean"] for s in queue[:5]]

    found, clean = serve(work)
    assert (found["random"]["hits"], found["random"]["of"], found["marks"]) == (sum(clean), 5, [])
    figures = read_figures(run)
    assert figures is not None and figures.random.interval == pytest.approx(tuple(found["random"]["interval"]))


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("x-00/2", {"mark": "maybe"}, (422, "invalid_request")),
        ("x-00/2", {}, (422, "invalid_request")),
        ("x-00/2", {"mark": "relabel"}, (422, "invalid_request")),
        ("x-00/2", {"mark": "keep", "label": 1}, (422, "invalid_request")),
        ("x-00/2", {"mark": "relabel", "label": -1}, (422, "invalid_request")),
        ("x-01/2", {"mark": "relabel", "label": 1}, (422, "invalid_request")),  # has no class
        ("x-00/2", {"mark": "keep", "reviewer": "x" * 101}, (422, "invalid_request")),
        ("x-00/2", {"mark": "keep", "reviewer": "\ud800"}, (422, "invalid_request")),
        ("x-00/2", {"mark": "keep", "image_sha256": "00"}, (409, "sample_changed")),
        ("x-00/6", {"mark": "keep"}, (404, "unknown_sample")),
        ("x-07/0", {"mark": "keep"}, (404, "unknown_sample")),
    ],
)
def test_refusals_are_named_and_store_nothing(run: Path, serve: Any, path: str, body: Any, expected: Any) -> None:
    async def work(client: httpx.AsyncClient) -> httpx.Response:
        return await client.put(
            f"samples/{path}/review", content=json.dumps(body), headers={"Content-Type": "application/json"}
        )

    assert error(serve(work)) == expected
    assert not Reviews(run).path.exists()


def test_marks_need_the_key_and_a_place_to_be_kept(run: Path, serve: Any) -> None:
    async def work(client: httpx.AsyncClient) -> list[httpx.Response]:
        key = {"Authorization": f"Bearer {KEY}"}
        send = {"json": {"mark": "keep"}}
        return [
            await client.put("samples/x-00/2/review", **send),
            await client.delete("samples/x-00/2/review"),
            await client.put("samples/x-00/2/review", headers=key, **send),
        ]

    Reviews(run).path.mkdir()  # as unusable as a read-only folder, also for root
    without, taken_back, unusable = serve(work, api_keys=[hash_key(KEY)])
    assert error(without) == error(taken_back) == (401, "unauthorized")
    assert error(unusable) == (409, "marks_unusable") and str(run) not in unusable.text
