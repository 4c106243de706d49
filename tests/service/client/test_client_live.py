"""Both clients and `noisegate score --url` against the real application on a real socket."""

import asyncio
import hashlib
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from PIL import Image

from noisegate import read_table
from noisegate.service import client as api
from noisegate.service.api.jobs import JobAnswer
from noisegate.service.api.schemas import EmbeddingRow, Neighbour, Predicted, Result, ScorerAnswer
from noisegate.service.app import create_app
from noisegate.service.client import AsyncClient, Client, Event, ServiceError
from noisegate.service.errors import Overloaded
from tests.commands import called
from tests.errors import failed
from tests.fakes import pairs as members
from tests.fakes import picture, write_tar
from tests.service.fakes import FakeEngine
from tests.service.live import serving
from tests.service.serving import settings

KEY = "a key of this test"
RED, BLUE = (222, 36, 36), (40, 92, 228)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("live")
    write_tar(folder / "shards" / "x-0.tar", members(25))
    write_tar(folder / "shards" / "x-1.tar", members(25, 25))
    (folder / "red.png").write_bytes(picture(RED))
    (folder / "classes.txt").write_text("red\nblue\ngreen\n")
    return folder


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def url(work: Path, engine: FakeEngine) -> Iterator[str]:
    chosen = settings(
        api_keys=["sha256:" + hashlib.sha256(KEY.encode()).hexdigest()],
        jobs_folder=work / "jobs",
        roots=[work / "shards"],
        classes={"colours": str(work / "classes.txt")},
        max_items=8,
    )
    with serving(create_app(chosen, engine)) as found:
        yield found


def many(work: Path) -> list[Any]:
    texts = ["all red", "all blue", "", "a red \U0001f388", "number 4 is red"]
    images = [work / "red.png", picture(BLUE), Image.new("RGB", (9, 7), RED), b"no picture"]
    return [(images[i % 4], texts[i % 5]) for i in range(40)]


def test_both_clients_get_what_the_engine_says(url: str, work: Path) -> None:
    asked = many(work)
    with Client(url, KEY, batch_items=3) as client:
        found = client.score(asked)

    async def run() -> api.Scores:
        async with AsyncClient(url, KEY) as client:
            return await client.score(asked)

    assert list(asyncio.run(run())) == list(found)
    assert len(found) == 40
    assert [score.status for score in found[:4]] == ["ok", "ok", "no_text", "bad_image"]
    assert {score.status for score in found} == {"ok", "no_text", "bad_image"}
    red, blue = found[0].similarity, found[1].similarity
    assert found[10].similarity == pytest.approx(red, abs=0.2), "the same colour in a picture of another size"
    assert min(red, blue) > 0.4
    assert (found[0].osa_weight > 0, found[0].clean) == (True, True)
    assert found.beta["value"] == 0.4
    assert found.scorer is not None


def test_a_wrong_key_is_said(url: str, work: Path) -> None:
    for key in (None, "another key"):
        with Client(url, key) as client, failed("unauthorized", ServiceError) as caught:
            client.score([(work / "red.png", "all red")])
        assert caught.value.status == 401
        assert caught.value.request_id


def test_a_full_queue_is_waited_for(url: str, work: Path, engine: FakeEngine) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            engine.refuse = None

    engine.refuse = Overloaded("full", retry_after=2)
    with Client(url, KEY, sleep=sleep) as client:
        assert client.score([(work / "red.png", "all red")])[0].ok
    assert waits == [2.0, 2.0]


def test_classes_scorer_and_embeddings(url: str, work: Path) -> None:
    with Client(url, KEY) as client:
        facts = client.scorer()
        assert (facts["limits"]["max_items"], facts["classes"], facts["jobs"]) == (8, ["colours"], True)
        (score,) = client.score([api.Pair(work / "red.png", label="red")], classes="colours")
        assert (score.label, score.refined_name, score.predicted[0].name) == (0, "red", "red")
        rows = client.embed([work / "red.png", b"no", *[picture(BLUE)] * 9], ["all red", ""])
        with failed("unknown_classes", ServiceError):
            client.score([(work / "red.png", "x")], classes="animals")
    assert [one.status for one in rows.images] == ["ok", "bad_image", *["ok"] * 9]
    assert [one.status for one in rows.texts] == ["ok", "no_text"]
    red = rows.images[0].embedding
    assert float(np.linalg.norm(red)) == pytest.approx(1, abs=1e-5)
    with Client(url, KEY) as client:
        cosine = client.score([(work / "red.png", "all red")])[0].similarity
    assert float(red @ rows.texts[0].embedding) == pytest.approx(cosine, abs=1e-5)


def test_a_job_is_started_followed_and_asked_against(url: str, work: Path) -> None:
    heard: list[Event] = []
    with Client(url, KEY) as client:
        started = client.start_job(str(work / "shards" / "*.tar"), "corpus", beta="fixed:0.4")
        ended = client.wait_job(started["id"], heard.append)
        assert (ended["state"], ended["run"], ended["error"]) == ("done", "corpus", None)
        assert [job["id"] for job in client.jobs()] == [started["id"]]
        assert "corpus" in client.scorer()["runs"]
        (score,) = client.score([(picture(RED), "all red")], against="corpus")
        with failed("outside_roots", ServiceError):
            client.start_job("../../etc", "escape")
    assert heard[-1].kind == "done"
    assert heard[-1].data["summary"]["samples"] == 50
    rows = {row["key"]: row for row in read_table(work / "jobs" / "corpus").to_pylist()}
    nearest = score.neighbours[0]
    assert int(nearest.key) % 10 == 0, "every tenth picture is red"
    assert (nearest.shard, nearest.index) == (rows[nearest.key]["shard"], rows[nearest.key]["index"])

    async def followed() -> api.Job:
        async with AsyncClient(url, KEY) as client:
            return await client.wait_job(started["id"])

    assert asyncio.run(followed()) == ended


def test_the_command_asks_the_service(url: str, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOISEGATE_API_KEY", KEY)
    done = called("score", "--url", url, "red.png", "all blue", "all red", "--json", cwd=work)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [r["text"] for r in found["results"]] == ["all red", "all blue"]
    here = called(
        "score", "red.png", "all blue", "all red", "--json", "--model", "python:tests.fakes:ColourModel",
        "--beta", "fixed:0.4", cwd=work,
    )  # fmt: skip
    for far, near in zip(found["results"], json.loads(here.stdout)["results"], strict=True):
        assert far["similarity"] == pytest.approx(near["similarity"], abs=1e-5)
        assert far["osa_weight"] == pytest.approx(near["osa_weight"], abs=1e-5)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (api.Score, Result),
        (api.Neighbour, Neighbour),
        (api.Predicted, Predicted),
        (api.Embedding, EmbeddingRow),
        (api.Job, JobAnswer),
        (api.ScorerFacts, ScorerAnswer),
    ],
)
def test_the_client_names_everything_that_the_service_answers(mine: Any, theirs: Any) -> None:
    names = set(get_type_hints(mine)) if issubclass(mine, dict) else {field.name for field in fields(mine)}
    assert names == set(theirs.model_fields)
