"""GET /v1/runs and below, over HTTP."""

import asyncio
import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from noisegate import read_table
from noisegate.service.api.state import Service
from tests.fakes import pairs, picture, write_tar
from tests.jobs import score
from tests.service.serving import ask


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards and their tables; sample 10 of x-00 has no picture, sample 11 one that is HTML."""
    folder = tmp_path_factory.mktemp("runs")
    odd = [("none.txt", b"red"), ("html.png", b"<html>"), ("html.txt", b"a red one")]
    write_tar(folder / "shards" / "x-00.tar", [*pairs(10), *odd])
    write_tar(folder / "shards" / "x-01.tar", pairs(10, 50))
    score(folder / "shards", folder / "tables")
    (folder / "unfinished").mkdir()
    return folder


@pytest.fixture(scope="module")
def get(folder: Path) -> Callable[..., httpx.Response]:
    """GET below /v1/runs, without a socket."""

    def asked(path: str, headers: dict[str, str] | None = None, **params: Any) -> httpx.Response:
        async def work(client: httpx.AsyncClient, service: Service) -> httpx.Response:
            return await client.get(f"/v1/runs{path}", params=params or None, headers=headers)

        return ask(work, runs={"demo": folder / "tables", "gone": folder / "unfinished"})

    return asked


def error(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def test_runs_are_listed_and_a_broken_one_says_so(get: Any) -> None:
    demo, gone = get("").json()["runs"]
    assert demo == {
        "name": "demo",
        "shards": 2,
        "model": "python:tests.fakes:ColourModel",
        "tasks": ["pairs"],
        "problem": None,
    }
    assert gone["name"] == "gone" and gone["problem"]


def test_the_summary_counts_and_says_what_can_be_looked_at(get: Any) -> None:
    found = get("/demo/summary").json()
    assert (found["name"], found["samples"], found["shards"]) == ("demo", 22, 2)
    assert found["statuses"] == {"ok": 20, "bad_image": 1, "no_image": 1}
    (lens,) = found["lenses"]
    assert (lens["column"], lens["cut"], lens["cut_name"]) == ("similarity", 0.4, "β")
    assert "out" not in found  # paths of the server are nobody's business


def test_samples_are_the_table_with_captions_where_asked(get: Any, folder: Path) -> None:
    rows = [row for row in read_table(folder / "tables").to_pylist() if row["similarity"] is not None]
    best = sorted(rows, key=lambda row: -row["similarity"])
    page = get("/demo/samples", view="best", offset=2, limit=5, captions=True).json()
    assert (page["total"], page["reachable"], page["offset"]) == (20, 20, 2)
    assert [sample["key"] for sample in page["samples"]] == [row["key"] for row in best[2:7]]
    for sample, row in zip(page["samples"], best[2:7], strict=True):
        assert sample["similarity"] == pytest.approx(row["similarity"], abs=1e-7)
        assert sample["image_sha256"] == row["image_sha256"].hex()
        assert sample["caption"].startswith(f"number {int(row['key'])} is ")


def test_filters_reach_the_histogram_too(get: Any) -> None:
    found = get("/demo/histogram", shard="x-01").json()
    assert sum(found["kept"]) + sum(found["dropped"]) == 10 and found["cut"] == 0.4
    assert get("/demo/histogram", key="nothing").json()["edges"] == []


def test_one_sample_has_every_column_and_its_caption(get: Any) -> None:
    found = get("/demo/samples/x-01/4").json()
    assert (found["key"], found["shard"], found["index"]) == ("00054", "x-01", 4)
    assert found["caption"].startswith("number 54 is ") and found["problem"] is None


def test_pictures_are_small_or_as_they_were(get: Any) -> None:
    small = get("/demo/samples/x-00/3/image", size=16)
    assert small.headers["content-type"] == "image/jpeg" and small.headers["x-content-type-options"] == "nosniff"
    assert max(Image.open(io.BytesIO(small.content)).size) == 16
    whole = get("/demo/samples/x-00/3/image", original=True)
    assert whole.headers["content-type"] == "image/png"
    assert hashlib.sha256(whole.content).hexdigest() == get("/demo/samples/x-00/3").json()["image_sha256"]
    again = get("/demo/samples/x-00/3/image", {"If-None-Match": small.headers["etag"]}, size=16)
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/nobody/summary", (404, "unknown_run")),
        ("/gone/summary", (409, "run_unusable")),
        ("/demo/samples/x-00/99", (404, "unknown_sample")),
        ("/demo/samples/x-07/0", (404, "unknown_sample")),
        ("/demo/samples/x-00/10/image", (404, "no_picture")),
        ("/demo/samples/x-00/11/image", (404, "no_picture")),
        ("/demo/samples/x-00/11/image?original=true", (404, "no_picture")),
        ("/demo/samples/..%2F..%2Fshards%2Fx-00/0/image", (404, "not_found")),
        ("/demo/samples/../0/image", (404, "not_found")),
        ("/demo/samples/%2e%2e/0", (404, "unknown_sample")),
        ("/../demo/summary", (404, "not_found")),
        ("/..%2Fdemo/summary", (404, "not_found")),
        ("/demo/samples/x-00%00/0", (404, "unknown_sample")),
        ("/demo/samples/x-00/-1", (422, "invalid_request")),
        ("/demo/samples?where=nonsense", (422, "invalid_request")),
        ("/demo/samples?where=true)+or+(true&status=ok", (422, "invalid_request")),
        ("/demo/samples?view=borderline&by=consistency", (422, "invalid_request")),
        ("/demo/samples?min_probability=nan", (422, "invalid_request")),
        ("/demo/samples?offset=10000", (422, "invalid_request")),
        ("/demo/histogram?column=key", (422, "invalid_request")),
    ],
)
def test_refusals_are_named(get: Any, path: str, expected: tuple[int, str]) -> None:
    assert error(get(path)) == expected


def test_a_shard_that_is_gone_costs_pictures_and_nothing_else(get: Any, tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "y.tar", pairs(6))
    score([shard], tmp_path / "tables")
    shard.unlink()

    async def work(client: httpx.AsyncClient, service: Service) -> list[httpx.Response]:
        paths = ("samples?captions=true", "samples/y/1", "samples/y/1/image", "summary")
        return await asyncio.gather(*(client.get(f"/v1/runs/r/{path}") for path in paths))

    page, one, image, summary = ask(work, runs={"r": tmp_path / "tables"})
    assert len(page.json()["samples"]) == 6 and summary.status_code == 200
    assert one.json()["caption"] is None and "not where it was" in one.json()["problem"]
    assert error(image) == (410, "shard_gone") and str(tmp_path) not in image.text
    write_tar(shard, [("00001.png", picture("blue"))])
    _, _, image, _ = ask(work, runs={"r": tmp_path / "tables"})
    assert error(image) == (410, "sample_changed")
