"""What every answer has, what the log says, health and metrics, and the schema."""

import asyncio
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from noisegate.service.api.state import Service
from noisegate.service.app import create_app
from noisegate.service.guards.middleware import hash_key
from noisegate.service.logs import JsonLines, RepeatLimit, TextLines
from tests.errors import refused
from tests.fakes import picture
from tests.service.fakes import FakeEngine
from tests.service.serving import ask, base64_of, settings

KEY = "correct horse battery staple"


@pytest.mark.parametrize("path", ["/healthz", "/v1/scorer", "/nope", "/"])
def test_every_answer_has_the_security_headers(path: str) -> None:
    async def work(client: httpx.AsyncClient, service: Service) -> httpx.Headers:
        return (await client.get(path, headers={"Origin": "https://elsewhere.example"})).headers

    headers = ask(work)
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert not [name for name in headers if name.startswith("access-control")]


def test_a_wrong_route_and_a_wrong_method_are_told_what_works() -> None:
    async def work(client: httpx.AsyncClient, service: Service) -> list[httpx.Response]:
        return [await client.get("/doc")] + [await client.put(path) for path in methods]

    methods = {"/v1/jobs": "GET, POST", "/v1/jobs/x": "DELETE, GET", "/v1/score": "POST", "/healthz": "GET", "/": "GET"}
    unknown, *others = ask(work)
    assert unknown.status_code == 404
    assert unknown.json()["error"]["message"].endswith("/ is the page, and /docs shows all routes")
    assert {answer.status_code for answer in others} == {405}
    assert [answer.headers["allow"] for answer in others] == list(methods.values())
    assert [answer.json()["error"]["message"] for answer in others] == [
        f"this route takes {m}" for m in methods.values()
    ]


def test_a_crash_has_them_too_and_is_counted() -> None:
    engine = FakeEngine()
    engine.refuse = RuntimeError("anything")

    async def work(client: httpx.AsyncClient, service: Service) -> tuple[httpx.Response, float | None]:
        answer = await client.post("/v1/score", json={"pairs": [{"text": "a"}]})
        return answer, service.metrics.registry.get_sample_value("noisegate_errors_total", {"code": "internal"})

    answer, counted = ask(work, engine)
    assert (answer.status_code, counted) == (500, 1)
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_a_path_cannot_write_lines_of_its_own_into_the_log() -> None:
    record = logging.makeLogRecord({"levelname": "INFO", "msg": "request", "path": "/a\n\x1b[2Jinfo forged\x9b"})
    record._ray_timestamp_ns = 1
    assert TextLines().format(record) == r"info request path=/a\n\x1b[2Jinfo forged\x9b"
    assert len(JsonLines().format(record).splitlines()) == 1


def test_an_error_that_comes_over_and_over_is_logged_a_few_times_a_minute() -> None:
    now = 100.0
    limit = RepeatLimit(most=3, clock=lambda: now)

    def passes(message: str, level: int = logging.ERROR) -> logging.LogRecord | None:
        record = logging.makeLogRecord({"name": "asyncio", "levelno": level, "msg": message})
        return record if limit.filter(record) else None

    assert sum(passes("socket.accept() out of system resource") is not None for _ in range(100)) == 3
    assert passes("something else")
    assert all(passes("request", logging.INFO) for _ in range(100))
    now = 161.0
    later = passes("socket.accept() out of system resource")
    assert later is not None
    assert later.left_out == 97


@pytest.mark.parametrize(("given", "kept"), [("abc-1.2_3", True), ("x" * 65, False), ("a b", False), ('a"}', False)])
def test_request_ids_are_taken_over_where_they_are_harmless(given: str, kept: bool) -> None:
    async def work(client: httpx.AsyncClient, service: Service) -> str:
        return (await client.get("/healthz", headers={"X-Request-ID": given})).headers["x-request-id"]

    found = ask(work)
    assert (found == given) is kept
    assert kept or len(found) == 32


def test_the_log_is_json_with_ids_and_without_secrets() -> None:
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(JsonLines().format(record))

    async def work(client: httpx.AsyncClient, service: Service) -> str:
        body = {"pairs": [{"image": base64_of(picture("red")), "text": "a very private caption"}]}
        headers = {"Authorization": f"Bearer {KEY}"}
        answer = await client.post("/v1/score?token=hidden", json=body, headers=headers)
        await client.get("/v1/scorer", headers={"Authorization": "Bearer wrong-but-secret"})
        return answer.headers["x-request-id"]

    logger, handler = logging.getLogger("noisegate.access"), Keep()
    logger.addHandler(handler)
    before = logger.level
    logger.setLevel(logging.INFO)
    try:
        request_id = ask(work, api_keys=[hash_key(KEY)])
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    found = [json.loads(line) for line in lines]
    assert [(line["path"], line["status"]) for line in found] == [("/v1/score", 200), ("/v1/scorer", 401)]
    assert found[0]["request_id"] == request_id
    assert found[1]["code"] == "unauthorized"
    for secret in (KEY, "private", "hidden", "wrong-but-secret", base64_of(picture("red"))):
        assert not any(secret in line for line in lines), secret


def test_health_is_the_process_and_readiness_the_engine() -> None:
    engine = FakeEngine()

    async def work(client: httpx.AsyncClient, service: Service) -> list[tuple[int, Any]]:
        found = []
        for reasons in ([], ["the model is loading"]):
            engine.reasons = reasons
            ready = await client.get("/readyz")
            found.append((ready.status_code, ready.json()))
            assert (await client.get("/healthz")).status_code == 200
        engine.reasons = []
        service.closing.set()
        ready = await client.get("/readyz")
        return [*found, (ready.status_code, ready.json())]

    assert ask(work, engine) == [
        (200, {"ready": True, "reasons": []}),
        (503, {"ready": False, "reasons": ["the model is loading"]}),
        (503, {"ready": False, "reasons": ["shutting down"]}),
    ]
    assert engine.started
    assert engine.stopped


def test_metrics_count_requests_items_and_errors() -> None:
    async def work(client: httpx.AsyncClient, service: Service) -> str:
        pairs = [{"image": base64_of(picture("red")), "text": "red"}, {"text": "blue"}]
        await client.post("/v1/score", json={"pairs": pairs})
        await client.post("/v1/score", json={"pairs": 5})
        await client.get("/nope")
        return (await client.get("/metrics")).text

    lines = ask(work).splitlines()
    for line in (
        'noisegate_requests_total{code="200",route="/v1/score"} 1.0',
        'noisegate_requests_total{code="422",route="/v1/score"} 1.0',
        'noisegate_requests_total{code="404",route="unmatched"} 1.0',
        'noisegate_items_total{status="ok"} 1.0',
        'noisegate_items_total{status="no_image"} 1.0',
        'noisegate_errors_total{code="invalid_request"} 1.0',
        'noisegate_errors_total{code="not_found"} 1.0',
    ):
        assert line in lines, line


def asgi_post(path: str) -> dict[str, Any]:
    return {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1), "server": ("s", 80),
        "scheme": "http", "http_version": "1.1", "root_path": "", "asgi": {"version": "3.0"}, "state": {},
    }  # fmt: skip


@pytest.mark.parametrize("whole", [True, False], ids=["waits", "sends"])
def test_a_client_that_goes_away_cancels_its_work_and_is_counted(whole: bool) -> None:
    engine = FakeEngine()

    async def run() -> list[float | None]:
        app = create_app(settings(), engine)
        engine.gate = asyncio.Event()
        left = asyncio.Event()
        body = json.dumps({"pairs": [{"text": "a"}]}).encode()
        messages = [{"type": "http.request", "body": body, "more_body": not whole}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            raise AssertionError("nobody is there to answer")

        request = asyncio.create_task(app(asgi_post("/v1/score"), receive, send))  # type: ignore[arg-type]
        while messages or (whole and not engine.requests):
            await asyncio.sleep(0)
        left.set()
        await request
        value = app.state.service.metrics.registry.get_sample_value
        route = {"route": "/v1/score", "code": "499"}
        return [value("noisegate_cancelled_total"), value("noisegate_requests_total", route)]

    assert asyncio.run(run()) == [1, 1]


def test_a_request_that_the_server_gives_up_at_the_end_is_told_to_come_back() -> None:
    engine = FakeEngine()

    async def run() -> list[dict[str, Any]]:
        app = create_app(settings(), engine)
        engine.gate = asyncio.Event()
        messages = [{"type": "http.request", "body": b'{"pairs": [{"text": "a"}]}', "more_body": False}]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if not messages:
                await asyncio.Event().wait()
            return messages.pop()

        async def send(message: Any) -> None:
            sent.append(message)

        request = asyncio.create_task(app(asgi_post("/v1/score"), receive, send))  # type: ignore[arg-type]
        while not engine.requests:
            await asyncio.sleep(0)
        request.cancel()
        await request
        return sent

    start, body = asyncio.run(run())
    assert (start["status"], json.loads(body["body"])["error"]["code"]) == (503, "draining")
    assert (b"retry-after", b"5") in start["headers"]


def test_a_run_that_is_not_there_ends_the_start_whichever_it_is(tmp_path: Path) -> None:
    with refused("runs", f"typo={tmp_path / 'tabels'}"):
        create_app(settings(runs={"fine": tmp_path, "typo": tmp_path / "tabels"}), FakeEngine())


def test_the_schema_has_examples_and_every_error_of_scoring() -> None:
    schema = create_app(settings(api_keys=[hash_key(KEY)]), FakeEngine()).openapi()
    score = schema["paths"]["/v1/score"]["post"]
    assert set(score["requestBody"]["content"]) == {"application/json", "multipart/form-data"}
    assert {"200", "400", "401", "404", "408", "413", "415", "422", "429", "503", "504"} <= set(score["responses"])
    assert schema["components"]["schemas"]["ScoreRequest"]["examples"]
    assert schema["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    text = json.dumps(schema)
    for name in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in schema["components"]["schemas"], name


def test_the_front_never_imports_torch() -> None:
    program = (
        "import sys; from noisegate.service.app import create_app; from noisegate.service.settings import load_settings\n"
        "create_app(load_settings(model='embedded'))\n"
        "print({'torch', 'open_clip', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"
