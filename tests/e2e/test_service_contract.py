"""A real server against its own OpenAPI schema, and against thousands of broken pictures and bodies."""

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from PIL import Image

from noisegate.pipeline.datasets.scenes import write_scenes
from tests.commands import FAKE
from tests.jobs import score
from tests.service.process import Server, serve

LIMITS = ("--max-items", 64, "--max-pixels", 1_000_000, "--decode-workers", 1)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that has a run to look into, a class set, and a folder for jobs."""
    place = tmp_path_factory.mktemp("served").resolve()
    write_scenes(place / "data", 40, 2, seed=5, size=32)
    score(place / "data", place / "tables")
    extra = (
        "--run",
        place / "tables",
        "--classes",
        "cifar10",
        "--jobs-folder",
        place / "jobs",
        "--root",
        place / "data",
    )
    with serve(place, *FAKE, *LIMITS, *extra) as server:
        yield server.url


CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
)


def test_every_answer_is_in_the_schema(url: str) -> None:
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    chosen = [schemathesis.checks.CHECKS.get_one(name) for name in CHECKS]
    asked = 0
    for found in schema.get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy())
        @settings(max_examples=25, database=None, suppress_health_check=list(HealthCheck))
        def answers(case: schemathesis.Case) -> None:
            case.call_and_validate(checks=chosen, timeout=60)

        answers()
        asked += 1
    assert asked >= 15
    assert httpx.get(f"{url}/readyz").status_code == 200


def pictures() -> list[bytes]:
    """Small whole files of every kind, to be broken."""
    rng = np.random.default_rng(0)
    noise = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
    kinds: list[tuple[Image.Image, str, dict[str, Any]]] = [
        (noise, "JPEG", {}),
        (noise, "JPEG", {"progressive": True}),
        (noise.convert("CMYK"), "JPEG", {}),
        (noise, "PNG", {}),
        (noise.convert("P"), "PNG", {}),
        (Image.fromarray(rng.integers(0, 65536, (24, 32), dtype=np.uint16)), "PNG", {}),
        (noise, "WEBP", {}),
        (noise.convert("P"), "GIF", {"save_all": True, "append_images": [noise.convert("P")]}),
        (noise, "BMP", {}),
        (noise, "TIFF", {}),
    ]
    found = []
    for image, kind, how in kinds:
        data = io.BytesIO()
        image.save(data, kind, **how)
        found.append(data.getvalue())
    return found


def broken(data: bytes, rng: np.random.Generator) -> bytes:
    """Some bytes changed, cut off, doubled or moved."""
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 6))):
        at, to = sorted(rng.integers(0, max(1, len(changed)), 2).tolist())
        match rng.integers(0, 5):
            case 0:
                changed[at : at + 1] = bytes(rng.integers(0, 256, 1, dtype=np.uint8))
            case 1:
                del changed[at:]
            case 2:
                del changed[at : min(to, at + 64)]
            case 3:
                changed[at:at] = bytes(rng.integers(0, 256, 8, dtype=np.uint8))
            case 4:
                changed[at : at + 4] = rng.choice([b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0"])
    return bytes(changed)


STATUSES = {"ok", "bad_image", "too_large", "no_image", "no_text", "bad_text", "invalid"}


def memory(server: Server) -> int:
    """Kilobytes of the server and of all processes below it."""
    mine, total = {server.process.pid}, 0
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        except OSError:  # gone meanwhile
            continue
        if int(folder.name) in mine or int(status["PPid"]) in mine:
            mine.add(int(folder.name))
            total += int(status.get("VmRSS", "0 kB").split()[0])
    return total


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory as Linux tells it")
def test_thousands_of_broken_inputs_leave_it_ready_and_its_memory_flat(tmp_path: Path) -> None:
    rng, whole, sent = np.random.default_rng(7), pictures(), 0
    peaks = []
    with serve(tmp_path, *LIMITS) as server, httpx.Client(timeout=60, base_url=server.url) as client:
        for turn in range(45):
            items = [broken(whole[i % len(whole)], rng) for i in range(64)]
            pairs = [{"image": base64.b64encode(data).decode(), "text": f"number {turn}"} for data in items]
            body = json.dumps({"pairs": pairs}).encode()
            answer = client.post("/v1/score", content=body, headers={"content-type": "application/json"})
            assert answer.status_code == 200, answer.text[:300]
            results = answer.json()["results"]
            assert len(results) == len(items)
            assert {result["status"] for result in results} <= STATUSES
            small = json.dumps({"pairs": pairs[:1]}).encode()
            for kind in ("application/json", "multipart/form-data; boundary=x"):
                for _ in range(4):
                    text = broken(small[: int(rng.integers(2, 400))] + small[-40:], rng)
                    answer = client.post("/v1/score", content=text, headers={"content-type": kind})
                    assert answer.status_code in (200, 400, 413, 415, 422), (answer.status_code, text)
                    sent += 1
            sent += len(items)
            peaks.append(memory(server))
        assert sent >= 3_000
        assert client.get("/readyz").status_code == 200
    assert max(peaks[-15:]) <= 1.1 * max(peaks[10:25])
