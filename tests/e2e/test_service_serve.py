"""`noisegate serve` as it runs in production: killed, overloaded, left by its clients, and asked to stop."""

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from noisegate.service.guards.middleware import hash_key
from tests.commands import run_noisegate
from tests.fakes import picture
from tests.service.models import GATE
from tests.service.process import Server, serve, until
from tests.service.serving import base64_of

KEY = "correct horse battery staple"
GATED = ("--model", "python:tests.service.models:Gated")


def body(start: int, count: int) -> dict[str, Any]:
    pictures = [base64_of(picture("red", (20 + start + i, 16))) for i in range(count)]
    return {"pairs": [{"image": image, "text": "a red thing"} for image in pictures]}


def post(server: Server, start: int, count: int) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/score", json=body(start, count), timeout=60)


def code_of(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["code"]) if answer.status_code != 200 else "ok"


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    path = tmp_path / "gate"
    path.touch()
    return path


def test_killing_the_encoder_under_load(tmp_path: Path, gate: Path) -> None:
    gate.unlink()
    with serve(tmp_path, *GATED, environment={GATE: str(gate)}) as server, ThreadPoolExecutor(8) as clients:
        assert [r["status"] for r in post(server, 0, 3).json()["results"]] == ["ok"] * 3
        gate.touch()
        inside = [clients.submit(post, server, 10 * i, 4) for i in range(4)]
        until(lambda: server.metric("queue_items") == 16)
        (encoder,) = server.encoders
        os.kill(encoder, signal.SIGKILL)
        answers = [future.result() for future in inside]
        assert [(a.status_code, code_of(a)) for a in answers] == [(503, "worker_lost")] * 4
        assert all(int(a.headers["Retry-After"]) >= 1 for a in answers)
        down = httpx.get(f"{server.url}/readyz")
        assert down.status_code == 503
        assert "encoder" in down.json()["reasons"][0]
        assert code_of(post(server, 0, 1)) == "not_ready"
        assert httpx.get(f"{server.url}/healthz").status_code == 200
        gate.unlink()
        until(server.ready)
        assert [r["status"] for r in post(server, 50, 2).json()["results"]] == ["ok"] * 2
        assert len(set(server.encoders)) == 2
        assert server.metric("encoder_restarts_total") == 1


def test_a_server_whose_workers_hang_recovers_and_still_ends(tmp_path: Path) -> None:
    limits = ("--decode-workers", 1, "--hang-seconds", 0.5, "--drain-seconds", 1)
    with serve(tmp_path, *limits) as server, ThreadPoolExecutor(2) as clients:
        until(lambda: len(children(server)) >= 2)
        for child in children(server):  # the encoder and the decoder
            os.kill(child, signal.SIGSTOP)
        assert code_of(post(server, 0, 1)) == "worker_lost"
        until(server.ready)
        assert [r["status"] for r in post(server, 0, 1).json()["results"]] == ["ok"]
        for child in children(server):
            os.kill(child, signal.SIGSTOP)
        waiting = clients.submit(post, server, 5, 1)
        until(lambda: server.metric("queue_items") == 1)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
        assert waiting.result().status_code == 503


def children(server: Server) -> list[int]:
    """Process ids of the server's workers; not the one that tracks resources for Python."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == server.process.pid and b"resource_tracker" not in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended
    return found


@pytest.fixture(scope="module")
def small_queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """A server with room for eight items, and the file that holds its pictures up while it exists."""
    folder = tmp_path_factory.mktemp("small_queue")
    limits = ("--queue-items", 8, "--max-items", 8)
    with serve(folder, *GATED, *limits, environment={GATE: str(folder / "gate")}) as server:
        yield server, folder / "gate"


def test_more_clients_than_places_all_get_an_answer_at_once_or_later(small_queue: tuple[Server, Path]) -> None:
    server, gate = small_queue
    gate.touch()
    with ThreadPoolExecutor(20) as clients:
        admitted = [clients.submit(post, server, 10 * i, 4) for i in range(2)]
        until(lambda: server.metric("queue_items") == 8)
        refused = [future.result() for future in [clients.submit(post, server, 100 + i, 1) for i in range(12)]]
        assert {(a.status_code, code_of(a)) for a in refused} == {(429, "overloaded")}
        assert all(int(a.headers["Retry-After"]) >= 1 for a in refused)
        assert httpx.get(f"{server.url}/readyz").status_code == 503, "above its mark"
        gate.unlink()
        assert [code_of(future.result()) for future in admitted] == ["ok", "ok"]
        until(server.ready)
        assert server.metric("queue_items") == 0


def test_a_client_that_hangs_up_gives_its_place_back(small_queue: tuple[Server, Path]) -> None:
    server, gate = small_queue
    gate.touch()
    data = json.dumps(body(200, 8)).encode()
    head = f"POST /v1/score HTTP/1.1\r\nHost: 10.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    with server.connect() as connection:
        connection.sendall(head.encode() + data)
        until(lambda: server.metric("queue_items") == 8)
    until(lambda: server.metric("queue_items") == 0)
    assert server.metric("cancelled_total") == 1
    gate.unlink()
    assert code_of(post(server, 50, 8)) == "ok"


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_was_begun_end_well(tmp_path: Path, gate: Path, sent: signal.Signals) -> None:
    with serve(tmp_path, *GATED, environment={GATE: str(gate)}) as server, ThreadPoolExecutor(1) as clients:
        port, pids = server.port, server.encoders
        inside = clients.submit(post, server, 0, 4)
        until(lambda: server.metric("queue_items") == 4)
        server.process.send_signal(sent)
        until(lambda: not listens(port))
        assert not inside.done()
        gate.unlink()
        assert [r["status"] for r in inside.result().json()["results"]] == ["ok"] * 4
        assert server.process.wait(30) == 0, server.said
        assert "Traceback" not in server.said
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


def test_keys_limits_and_endless_bodies(tmp_path: Path) -> None:
    limits = ("--max-body-bytes", 100_000, "--body-timeout", 1, "--api-key", hash_key(KEY))
    with serve(tmp_path, *limits) as server:
        url, allowed = f"{server.url}/v1/score", {"Authorization": f"Bearer {KEY}"}
        assert httpx.post(url, json=body(0, 1)).status_code == 401
        assert httpx.post(url, json=body(0, 1), headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert httpx.post(url, json=body(0, 1), headers=allowed).status_code == 200
        said = httpx.post(url, content=b"x" * 100_001, headers=allowed)
        assert (said.status_code, code_of(said)) == (413, "too_large")
        assert endless(server, allowed) == 413
        assert silent(server, allowed) == 408
        assert httpx.post(url, json=body(0, 1), headers=allowed).status_code == 200
        assert KEY not in server.said


def status_of(connection: socket.socket) -> int:
    with connection.makefile("rb") as answer:
        return int(answer.readline().split()[1])


def head_of(headers: dict[str, str], *more: str) -> bytes:
    lines = ["POST /v1/score HTTP/1.1", "Host: localhost", "Content-Type: application/json", *more]
    return "\r\n".join([*lines, *(f"{k}: {v}" for k, v in headers.items()), "", ""]).encode()


def endless(server: Server, headers: dict[str, str]) -> int:
    """The status of the answer to a body that never ends, read while it is still being sent."""
    with server.connect() as connection:
        connection.sendall(head_of(headers, "Transfer-Encoding: chunked"))

        def pour() -> None:
            try:
                while True:
                    connection.sendall(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
            except OSError:
                return  # the server has closed the door

        pouring = threading.Thread(target=pour)
        pouring.start()
        status = status_of(connection)
        pouring.join(30)
        assert not pouring.is_alive()
        return status


def silent(server: Server, headers: dict[str, str]) -> int:
    """The status of the answer to a body that never comes."""
    with server.connect() as connection:
        connection.sendall(head_of(headers, "Content-Length: 1000") + b"{")
        return status_of(connection)


def test_a_port_in_use_and_a_model_that_is_not_there_are_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_noisegate("serve", "--port", port, cwd=tmp_path)
    assert done.returncode == 2
    assert f"port {port} cannot be used: Address already in use; try --port {port + 1}" in done.stderr
    absent = run_noisegate("serve", "--port", 0, "--model", "python:tests.service.models:Absent", cwd=tmp_path)
    assert absent.returncode == 2
    assert "has no 'Absent'" in absent.stderr
    assert "Traceback" not in absent.stderr + done.stderr
