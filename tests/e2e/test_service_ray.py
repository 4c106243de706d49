"""The application on a real Ray of this machine: two replicas, one answer."""

import base64
import os
import signal
import socket
import subprocess
import time

import httpx

from noisegate.service.ray_serve import check
from noisegate.service.settings import Settings
from tests.commands import FAKE, command
from tests.errors import refused
from tests.fakes import picture

BODY = {"pairs": [{"image": base64.b64encode(picture("red")).decode(), "text": "all red"}]}


def test_two_replicas_give_the_same_answer() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = command(
        "serve", "--engine", "ray", "--min-replicas", 2, "--max-replicas", 2, "--port", port, "--decode-workers", 0,
        "--beta", "fixed:0.4", *FAKE,
    )  # fmt: skip
    words["env"] = {**words["env"], "RAY_NUM_CPUS": "2"}
    server = subprocess.Popen(**words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        assert server.stdout
        said = next((line for line in server.stdout if "is ready on Ray Serve" in line), None)
        assert said, "the server ended before it was ready"
        url = f"http://127.0.0.1:{port}"
        found, started = set(), set()
        ends = time.monotonic() + 60
        while len(started) < 2 and time.monotonic() < ends:
            answer = httpx.post(f"{url}/v1/score", json=BODY, timeout=30)
            assert answer.status_code == 200
            result = answer.json()["results"][0]
            assert result["status"] == "ok"
            found.add((result["similarity"], result["osa_weight"]))
            metrics = httpx.get(f"{url}/metrics", timeout=30).text
            started |= {line for line in metrics.splitlines() if line.startswith("noisegate_encoder_restarts_created ")}
        assert len(started) == 2, "only one replica answered"
        assert len(found) == 1
        assert httpx.post(f"{url}/v1/score", content=b"{", timeout=30).status_code in (400, 415, 422)
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            raise
    assert server.returncode == 0


def test_what_replicas_cannot_share_is_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with refused("jobs_folder", tmp_path):
        check(Settings(engine="ray", jobs_folder=tmp_path))
    with refused("port", 0):
        check(Settings(engine="ray", port=0))
