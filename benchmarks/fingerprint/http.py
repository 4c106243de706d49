"""Answers of the HTTP application, asked in this process without a socket."""

import asyncio
import base64
import re
from dataclasses import asdict
from typing import Any

import httpx

from . import inputs
from .product import serve
from .recorder import Recorder

__all__ = ["record_http"]

KEY = "a key of the fingerprint"


def record_http(recorder: Recorder) -> None:
    """A service with a run and class sets, one with keys, and one that runs jobs."""
    asyncio.run(ask_scores(recorder))
    asyncio.run(ask_jobs(recorder))


async def ask_scores(recorder: Recorder) -> None:
    """Scores, embeddings, tables, errors, the page, metrics and the schema."""
    pairs, labels = inputs.pairs_run(), inputs.labels_run()
    # batch_size 1: which items share a batch depends on when they arrive, and the last bit on who shares it
    settings = {
        "runs": {"pairs": pairs, "labels": labels},
        "classes": {"shapes": str(inputs.classes())},
        "batch_size": 1,
    }
    async with serve(**settings, decode_workers=1, max_items=20, max_body_bytes=400_000, max_text_chars=300) as (
        client,
        scorer,
    ):
        for name, (method, path, how) in requests(base64.b64encode(inputs.picture()).decode()).items():
            record_answer(recorder, f"http/{name}", await client.request(method, path, **how))
        picture = inputs.picture()
        scores = await scorer.score([(picture, "a red circle"), (b"no picture", "a red circle"), (picture, "")])
        recorder.json("http/client/score", [asdict(score) for score in scores])
        found = await scorer.embed(images=[picture], texts=["a red circle"])
        recorder.json("http/client/embed", repr(found))
        page = await client.get("/")
        for path in sorted(set(re.findall(r'(?:src|href)="(/static/[^"]+)"', page.text))):
            record_answer(recorder, f"http{path}", await client.get(path))
        schema = (await client.get("/openapi.json")).json()
        for path, methods in schema.pop("paths").items():
            recorder.json(f"http/openapi{path}", methods)
        recorder.json("http/openapi", schema)
        text = (await client.get("/metrics")).text
        recorder.json("http/metrics", sorted(set(re.findall(r"^# TYPE (\S+ \S+)", text, re.MULTILINE))))


def requests(dot: str) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Requests by the name of their item: method, path, and httpx's arguments."""
    good = {"image": dot, "text": "a red circle", "key": "k1"}
    mixed = [
        good, {"image": f"data:image/png;base64,{dot}", "text": "a blue square"}, {"image": "AAAA", "text": "a red circle"},
        {"image": "!!", "text": "x"}, {"text": "no picture"}, {"image": dot}, {"image": dot, "text": " "},
        {"image": dot, "text": "x" * 301}, {"image": dot, "text": "a", "label": 3},
        {"image_url": "http://example.org/a.png", "text": "a"},
    ]  # fmt: skip
    judged = [{**good, "label": 0}, {**good, "label": "red circle"}, {**good, "label": "no such"}, {"image": dot, "label": 1},
              {**good, "label": 999}, good]  # fmt: skip
    score, found = "/v1/score", "/v1/runs/labels"
    posts: dict[str, Any] = {
        "score-good": {"pairs": [good]},
        "score-mixed": {"pairs": mixed},
        "score-none": {"pairs": []},
        "score-classes": {"pairs": judged, "classes": "shapes"},
        "score-against-pairs": {"pairs": judged, "against": "pairs"},
        "score-against-labels": {"pairs": judged, "against": "labels"},
        "score-against-both": {"pairs": judged, "against": "labels", "classes": "shapes"},
        "score-unknown-run": {"pairs": [good], "against": "nothing"},
        "score-unknown-classes": {"pairs": [good], "classes": "nothing"},
        "score-many": {"pairs": [good] * 21},
        "score-extra": {"pairs": [{**good, "caption": "x"}]},
        "score-type": {"pairs": [{"image": dot, "text": 7}]},
        "score-shape": ["pairs"],
    }
    asked: dict[str, tuple[str, str, dict[str, Any]]] = {
        name: ("POST", score, {"json": body}) for name, body in posts.items()
    }
    asked |= {
        "embed": ("POST", "/v1/embed", {"json": {"images": [dot, "AAAA"], "texts": ["a red circle", ""]}}),
        "embed-base64": ("POST", "/v1/embed", {"json": {"images": [dot], "encoding": "base64"}}),
        "embed-wrong": ("POST", "/v1/embed", {"json": {"images": [dot], "encoding": "hex"}}),
        "form": ("POST", score, {"files": [("image", base64.b64decode(dot))], "data": {"text": "a red circle"}}),
        "no-json": ("POST", score, {"content": b"{", "headers": {"content-type": "application/json"}}),
        "no-type": ("POST", score, {"content": b"{}"}),
        "packed": ("POST", score, {"json": {}, "headers": {"content-encoding": "gzip"}}),
        "large": ("POST", score, {"content": b" " * 400_001, "headers": {"content-type": "application/json"}}),
        "jobs-off": ("GET", "/v1/jobs", {}),
        "wrong-method": ("PUT", score, {}),
    }
    gets = {
        "healthz": "/healthz", "readyz": "/readyz", "scorer": "/v1/scorer", "page": "/", "no-route": "/nope",
        "no-static": "/static/nope.js", "runs": "/v1/runs", "summary-pairs": "/v1/runs/pairs/summary",
        "summary-labels": f"{found}/summary", "no-run": "/v1/runs/nope/summary", "histogram": f"{found}/histogram",
        "histogram-column": f"{found}/histogram?column=label_quality&bins=7&clean=true",
        "histogram-wrong": f"{found}/histogram?column=nope", "samples": f"{found}/samples?limit=5&captions=true",
        "samples-best": "/v1/runs/pairs/samples?view=best&by=similarity&offset=3&limit=4",
        "samples-all": f"{found}/samples?view=all&label=3&max_probability=0.9",
        "samples-doubtful": "/v1/runs/pairs/samples?view=borderline&limit=3",
        "samples-where": f"{found}/samples?where=label%20%3D%202%20and%20clean&limit=3",
        "samples-wrong": f"{found}/samples?where=labl%20%3D%202", "sample": f"{found}/samples/scenes-000001/4",
        "no-sample": f"{found}/samples/scenes-000001/4000", "image": f"{found}/samples/scenes-000001/4/image?size=32",
        "image-original": f"{found}/samples/scenes-000001/4/image?original=true",
    }  # fmt: skip
    return asked | {name: ("GET", path, {}) for name, path in gets.items()}


async def ask_jobs(recorder: Recorder) -> None:
    """A job from its request to its tables, and what is refused; with a key."""
    folder = inputs.noisy().resolve()
    digest = recorder.command("http/hash-key", "serve", "--hash-key", stdin=KEY).out.strip()
    settings = {"roots": [folder], "jobs_folder": folder.parent / "jobs", "api_keys": [digest], "beta": "fixed:0.5"}
    async with serve(**settings, batch_size=1, decode_workers=0) as (client, _):
        record_answer(recorder, "http/no-key", await client.get("/v1/scorer"))
        client.headers["Authorization"] = f"Bearer {KEY}"
        body = {"name": "first", "shards": f"{folder}/scenes-000000.tar", "beta": "fixed:0.5"}
        refused = {
            "outside": {**body, "shards": "/etc/*.tar"},
            "beta": {**body, "beta": "fixed:9"},
            "name": {**body, "name": "../x"},
            "shards": {**body, "shards": f"{folder}/nothing.tar"},
            "classes": {**body, "task": "labels", "classes": "nothing"},
        }
        for name, wrong in refused.items():
            record_answer(recorder, f"http/job-{name}", await client.post("/v1/jobs", json=wrong))
        job = (await client.post("/v1/jobs", json=body)).json()
        while job["state"] in ("queued", "running"):
            await asyncio.sleep(0.1)
            job = (await client.get(f"/v1/jobs/{job['id']}")).json()
        recorder.json("http/job", job)
        record_answer(recorder, "http/job-again", await client.post("/v1/jobs", json={**body, "beta": "fixed:0.4"}))
        record_answer(recorder, "http/job-none", await client.get("/v1/jobs/nope"))
        record_answer(recorder, "http/job-cancel", await client.post(f"/v1/jobs/{job['id']}/cancel"))
        record_answer(recorder, "http/job-forget", await client.delete(f"/v1/jobs/{job['id']}"))
    recorder.run("http/job-tables", folder.parent / "jobs" / "first")


def record_answer(recorder: Recorder, name: str, answer: httpx.Response) -> None:
    """Status, headers but for the request's id, and body."""
    headers = {key: value for key, value in answer.headers.items() if key not in ("x-request-id", "content-length")}
    recorder.json(f"{name}/head", {"status": answer.status_code, "headers": headers})
    kind = answer.headers.get("content-type", "")
    if kind.startswith("application/json"):
        recorder.json(f"{name}/body", answer.json())
    elif kind.startswith("text/"):
        recorder.text(f"{name}/body", answer.text)
    else:
        recorder.bytes(f"{name}/body", answer.content)
