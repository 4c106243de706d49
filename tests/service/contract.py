"""The service as its contract has it, without a network: it scores by arithmetic and can be made to fail."""

import base64
import json
import struct
import threading
from collections.abc import Callable
from typing import Any

import httpx

BETA = {"value": 0.2, "mode": "random_inputs", "interval": [0.19, 0.21]}
Fault = int | Exception | httpx.Response


def refusal(status: int, code: str, **headers: str) -> httpx.Response:
    body = {"error": {"code": code, "message": f"{code} it is", "request_id": "r-7"}}
    return httpx.Response(status, json=body, headers=headers)


class Contract:
    """Answers by path. `faults` are used up first, one for each POST; `requests` remembers every body that came.
    `lost` come in place of the answers to DELETE, which was carried out.

    A pair's similarity is its text's last word over a thousand, so that every result says whose it is.
    """

    def __init__(self, **limits: int) -> None:
        self.limits = {"max_items": 256, "max_body_bytes": 1 << 20, **limits}
        self.faults: list[Fault] = []
        self.lost: list[Exception] = []
        self.requests: list[httpx.Request] = []
        self.digests = ["d1"]
        self.jobs: dict[str, list[dict[str, Any]]] = {}
        self.streams: list[bytes | Fault] = []
        self._lock = threading.Lock()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        with self._lock:
            self.requests.append(request)
            if request.method == "POST" and self.faults:
                return self._fail(self.faults.pop(0))
            return self._answer(request)

    def _fail(self, fault: Fault) -> httpx.Response:
        if isinstance(fault, Exception):
            raise fault
        return fault if isinstance(fault, httpx.Response) else refusal(fault, f"code_{fault}")

    def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        routes: dict[str, Callable[[Any], Any]] = {"/v1/score": self._score, "/v1/embed": self._embed}
        if path in routes:
            if len(request.content) > self.limits["max_body_bytes"]:
                return refusal(413, "too_large")
            return httpx.Response(200, json=routes[path](json.loads(request.content)))
        if path == "/v1/scorer":
            return httpx.Response(200, json={"scorer": "d1", "limits": self.limits, "beta": BETA})
        if path == "/v1/jobs" and request.method == "POST":
            return httpx.Response(202, json={"id": "j1", "state": "queued", **json.loads(request.content)})
        if path == "/v1/jobs":
            return httpx.Response(200, json={"jobs": [states[0] for states in self.jobs.values()]})
        job, _, rest = path.removeprefix("/v1/jobs/").partition("/")
        if job not in self.jobs:
            return refusal(404, "unknown_job")
        if rest == "events":
            stream = self.streams.pop(0)
            if not isinstance(stream, bytes):
                return self._fail(stream)
            return httpx.Response(200, content=stream, headers={"Content-Type": "text/event-stream"})
        if request.method == "DELETE":
            del self.jobs[job]
            return self._fail(self.lost.pop(0)) if self.lost else httpx.Response(204)
        states = self.jobs[job]
        return httpx.Response(200, json=states.pop(0) if len(states) > 1 else states[0])

    def _score(self, body: dict[str, Any]) -> dict[str, Any]:
        assert len(body["pairs"]) <= self.limits["max_items"]
        results = [self._result(pair) for pair in body["pairs"]]
        digest = self.digests.pop(0) if len(self.digests) > 1 else self.digests[0]
        return {"results": results, "beta": BETA, "scorer": digest, "request_id": "r-1"}

    def _result(self, pair: dict[str, Any]) -> dict[str, Any]:
        if "image" in pair and not base64.b64decode(pair["image"], validate=True).startswith((b"\x89PNG", b"picture")):
            return {"status": "bad_image", "error": "no picture"}
        similarity = int(pair["text"].split()[-1]) / 1000
        near = [{"key": "k", "shard": "s", "similarity": 0.5, "label": None, "new": 1}]
        return {"status": "ok", "error": None, "similarity": similarity, "neighbours": near, "flags": ["f"], "newer": 1}

    def _embed(self, body: dict[str, Any]) -> dict[str, Any]:
        def row(one: str) -> dict[str, Any]:
            packed = base64.b64encode(struct.pack("<2f", len(one), 1.0)).decode()
            return {"status": "ok", "error": None, "embedding": packed}

        assert body["encoding"] == "base64"
        return {part: [row(one) for one in body.get(part, [])] for part in ("images", "texts")} | {"scorer": "d1"}

    def bodies(self, path: str = "/v1/score") -> list[dict[str, Any]]:
        """What was posted to a path."""
        return [json.loads(r.content) for r in self.requests if r.url.path == path and r.method == "POST"]
