"""`/v1/jobs` over HTTP: validation, confinement, a job to its end with its events, and its run afterwards."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from noisegate.pipeline.estimators import ModelSpec
from noisegate.service.api.state import Service
from noisegate.service.app import create_app
from noisegate.service.jobs import runner
from noisegate.service.jobs.store import STATES
from tests.errors import refused
from tests.fakes import pairs, picture, write_tar
from tests.jobs import files_of, score
from tests.service.serving import COLOURS, ask, base64_of, settings


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for i in range(2):
        write_tar(tmp_path / "data" / f"x-{i}.tar", pairs(12, 20 * i))
    write_tar(tmp_path / "elsewhere" / "s.tar", pairs(2))
    return tmp_path


def on(place: Path, **more: Any) -> dict[str, Any]:
    return {"jobs_folder": place / "jobs", "roots": [place / "data"], "decode_workers": 0, **more}


def events_in(text: str) -> list[tuple[int, str, dict[str, Any]]]:
    """(id, event, data) of a stream, by the rules of server-sent events."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if fields:
            found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found


def jobs_gauge(metrics: str, state: str) -> str:
    return metrics.split(f'\nnoisegate_jobs{{state="{state}"}} ')[1].split("\n")[0]


def test_a_job_from_the_request_to_the_run(place: Path) -> None:
    score((place / "data").resolve(), place / "plain", estimator=ModelSpec(COLOURS))

    async def work(client: httpx.AsyncClient, service: Service) -> None:
        answer = await client.post("/v1/jobs", json={"name": "corpus-1", "shards": "x-{0..1}.tar", "beta": "fixed:0.4"})
        assert answer.status_code == 202, answer.text
        job = answer.json()
        assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
        waiting = (await client.get("/metrics")).text
        assert sum(float(jobs_gauge(waiting, state)) for state in STATES) == 1
        assert (job["state"], job["run"]) == ("queued", None)
        assert job["request"] == {
            "shards": ["x-{0..1}.tar"], "shard_count": 2, "tasks": ["pairs"], "classes": None, "beta": "fixed:0.4",
            "cut": "osa", "k": None, "repair": "sure", "neighbourhood": False, "text_field": None, "label_field": None,
            "seed": 0,
        }  # fmt: skip
        stream = await client.get(f"/v1/jobs/{job['id']}/events")
        assert stream.headers["content-type"].startswith("text/event-stream")
        events = events_in(stream.text)
        assert [number for number, _, _ in events] == sorted(number for number, _, _ in events)
        assert {kind for _, kind, _ in events} == {"progress", "note", "done"}
        assert next(data for _, kind, data in events if kind == "note")["text"].startswith("loading ")
        last = events[-1]
        assert last[1] == "done"
        done = (await client.get(f"/v1/jobs/{job['id']}")).json()
        assert last[2] == done
        assert (done["state"], done["run"], done["error"]) == ("done", "corpus-1", None)
        assert done["summary"]["samples"] == 24
        assert files_of(place / "jobs" / "corpus-1") == files_of(place / "plain"), "as annotate writes it"
        assert done["progress"]["share"] == 1
        assert str(place) not in json.dumps(done)
        assert (await client.get("/v1/jobs")).json() == {"jobs": [done], "total": 1}
        shown = (await client.get("/metrics")).text
        assert [jobs_gauge(shown, state) for state in STATES] == ["0.0", "0.0", "1.0", "0.0", "0.0"]
        assert "\nnoisegate_jobs_bytes_left 0.0\n" in shown
        again = await client.get(f"/v1/jobs/{job['id']}/events", headers={"Last-Event-ID": str(last[0])})
        assert [kind for _, kind, _ in events_in(again.text)] == ["done"]  # its notes were heard before

        assert "corpus-1" in service.runs.names()
        pair = {"image": base64_of(picture("blue", (31, 9))), "text": "it is blue"}
        scored = await client.post("/v1/score", json={"pairs": [pair], "against": "corpus-1"})
        assert scored.status_code == 200, scored.text
        result = scored.json()["results"][0]
        assert result["neighbours"][0]["key"] in ("00004", "00024")  # the blue ones
        assert result["neighbourhood"] is not None

        assert (await client.post(f"/v1/jobs/{job['id']}/cancel")).json()["error"]["code"] == "job_over"
        assert (await client.delete(f"/v1/jobs/{job['id']}")).status_code == 204
        assert (await client.get("/v1/jobs")).json() == {"jobs": [], "total": 0}
        assert "corpus-1" not in service.runs.names()
        assert (place / "jobs" / "corpus-1" / "x-0.parquet").exists()

    ask(work, **on(place))


def test_requests_that_are_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"name": "a", "shards": ["x-0.tar"]}
    wrong: list[tuple[dict[str, Any], int, str]] = [
        ({**good, "name": ".hidden"}, 422, "invalid_request"),
        ({**good, "name": "../up"}, 422, "invalid_request"),
        ({**good, "name": "a/b"}, 422, "invalid_request"),
        ({**good, "name": "_jobs.sqlite"}, 422, "invalid_request"),
        ({**good, "name": ""}, 422, "invalid_request"),
        ({**good, "name": "a\n"}, 422, "invalid_request"),
        ({"name": "a"}, 422, "invalid_request"),
        ({**good, "shards": []}, 422, "invalid_request"),
        ({**good, "out": "/tmp"}, 422, "invalid_request"),
        ({**good, "task": "everything"}, 422, "invalid_request"),
        ({**good, "beta": "nonsense"}, 422, "invalid_request"),
        ({**good, "k": 0}, 422, "invalid_request"),
        ({**good, "classes": "nowhere"}, 404, "unknown_classes"),
        ({**good, "classes": str(place / "elsewhere" / "names.txt")}, 404, "unknown_classes"),
        ({**good, "shards": ["nothing.tar"]}, 404, "unknown_shards"),
        ({**good, "shards": ["pipe:cat x"]}, 422, "bad_shards"),
        ({**good, "shards": ["cat x|"]}, 422, "invalid_request"),
        ({**good, "beta": "fixed:7"}, 422, "invalid_request"),
        ({**good, "repair": "always"}, 422, "invalid_request"),
        ({**good, "shards": ["../elsewhere/s.tar"]}, 403, "outside_roots"),
        ({**good, "shards": [str(place / "elsewhere" / "s.tar")]}, 403, "outside_roots"),
        ({**good, "shards": [f"file://{place}/data/x-0.tar"]}, 403, "outside_roots"),
        ({**good, "shards": ["http://127.0.0.1/x.tar"]}, 403, "outside_roots"),
        ({**good, "shards": ["x" * 4096] * 17}, 422, "invalid_request"),
        ({**good, "name": "taken"}, 409, "name_taken"),
        ({**good, "name": "linked"}, 409, "name_taken"),
    ]

    async def work(client: httpx.AsyncClient, service: Service) -> None:
        (place / "jobs" / "linked").symlink_to(place / "elsewhere")
        for body, status, code in wrong:
            answer = await client.post("/v1/jobs", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), (body, answer.text)
        for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/cancel"), ("DELETE", "")):
            answer = await client.request(method, f"/v1/jobs/nobody{path}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_job")
        assert (await client.get("/v1/jobs")).json() == {"jobs": [], "total": 0}
        assert (await client.get("/v1/jobs?limit=101")).status_code == 422
        monkeypatch.setattr(runner, "MAX_JOBS", 0)
        assert (await client.post("/v1/jobs", json=good)).json()["error"]["code"] == "too_many_jobs"

    score(place / "elsewhere", place / "run")
    ask(work, **on(place, runs={"taken": place / "run"}, scorer_run=None))


def test_the_same_name_twice_and_cancelling(place: Path) -> None:
    async def work(client: httpx.AsyncClient, service: Service) -> None:
        first = (await client.post("/v1/jobs", json={"name": "a", "shards": ["x-*.tar"]})).json()
        second = await client.post("/v1/jobs", json={"name": "a", "shards": ["x-0.tar", "x-1.tar"]})
        assert (second.status_code, second.json()["id"]) == (202, first["id"])  # the same shards by other words
        other = await client.post("/v1/jobs", json={"name": "a", "shards": ["x-*.tar"], "seed": 3})
        assert other.status_code == 409
        assert "seed: 0 there, 3 now" in other.json()["error"]["message"]
        active = await client.delete(f"/v1/jobs/{first['id']}")
        assert (active.status_code, active.json()["error"]["code"]) == (409, "job_active")
        cancelled = await client.post(f"/v1/jobs/{first['id']}/cancel", json={})
        assert (cancelled.status_code, cancelled.json()["state"]) == (200, "cancelled")
        assert cancelled.json()["run"] is None

    ask(work, **on(place))


def test_without_a_folder_there_are_no_jobs(place: Path) -> None:
    async def work(client: httpx.AsyncClient, service: Service) -> None:
        for method, path in (("GET", ""), ("POST", ""), ("GET", "/x"), ("GET", "/x/events"), ("POST", "/x/cancel")):
            answer = await client.request(method, f"/v1/jobs{path}", json={"name": "a", "shards": ["x"]})
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "jobs_off")

    ask(work)


def test_two_servers_do_not_share_a_folder(place: Path) -> None:
    async def work(client: httpx.AsyncClient, service: Service) -> None:
        with refused("jobs_folder", place / "jobs"):
            await asyncio.to_thread(create_app, settings(**on(place)))

    ask(work, **on(place))
    with refused("roots", str(place / "nowhere")):
        create_app(settings(**on(place, roots=[place / "nowhere"])))
