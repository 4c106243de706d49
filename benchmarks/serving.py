"""A real server process for benchmarks, and clients that send bodies made before, each from an address of its own."""

import base64
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from noisegate.pipeline.shards.locate import find_shards
from noisegate.pipeline.shards.read import ShardReader

BETA = "fixed:0.2"
TIMEOUT = 120
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Server:
    """A server that is ready; `log` is what it has written."""

    port: int
    pid: int
    log: Path

    @property
    def children(self) -> list[int]:
        """Process ids of encoders and decoders."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == self.pid and b"resource_tracker" not in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue  # it has ended
        return found

    @property
    def encoders(self) -> list[int]:
        lines = [line for line in self.log.read_text().splitlines() if '"encoder ready"' in line]
        pids = [json.loads(line)["encoder"] for line in lines]
        return [pid for pid in pids if pid in self.children]

    @property
    def decoders(self) -> list[int]:
        return [pid for pid in self.children if pid not in self.encoders]

    def is_ready(self) -> bool:
        return _ready(self.port)

    def post(self, body: bytes, path: str = "/v1/score", address: str = "127.0.0.1") -> tuple[int, float, float]:
        """(code, seconds, Retry-After) of one request; code 0 if the connection broke."""
        began = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT, source_address=(address, 0))
        try:
            connection.request("POST", path, body, JSON)
            response = connection.getresponse()
            response.read()
            return response.status, time.perf_counter() - began, float(response.headers["Retry-After"] or 0)
        except (OSError, http.client.HTTPException):
            return 0, time.perf_counter() - began, 0.0
        finally:
            connection.close()


@contextmanager
def serving(*options: str) -> Iterator[Server]:
    """A server process that is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "noisegate", "serve", "--port", str(port), "--beta", BETA, *options]
    with tempfile.NamedTemporaryFile("w+") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ})
        try:
            ends = time.monotonic() + 180
            while not _ready(port):
                if server.poll() is not None or time.monotonic() > ends:
                    log.seek(0)
                    raise SystemExit(f"the server did not start:\n{log.read()[-2000:]}")
                time.sleep(0.2)
            yield Server(port, server.pid, Path(log.name))
        finally:
            server.terminate()
            server.wait(60)


def _ready(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False


def bodies(pattern: str, size: int) -> list[bytes]:
    """Requests of `size` pairs, ready to send."""
    pairs: list[dict[str, str]] = []
    for shard in find_shards(pattern):
        for raw in ShardReader(shard):
            assert raw.image is not None
            pairs.append({"image": base64.b64encode(raw.image).decode(), "text": raw.parts["txt"].decode()})
    return [json.dumps({"pairs": pairs[i : i + size]}).encode() for i in range(0, len(pairs), size)]


def load(port: int, requests: Sequence[bytes], clients: int) -> tuple[float, list[tuple[int, float, int]]]:
    """Send all requests from `clients` threads; seconds in all, and (code, seconds, items scored) of each."""
    waiting = list(enumerate(requests))[::-1]
    answers: list[tuple[int, float, int]] = []
    lock = threading.Lock()

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
        while True:
            with lock:
                if not waiting:
                    return
                body = waiting.pop()[1]
            began = time.perf_counter()
            try:
                connection.request("POST", "/v1/score", body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                text = response.read()
                code = response.status
                scored = sum(r["status"] == "ok" for r in json.loads(text)["results"]) if code == 200 else 0
                if code in (429, 503) and not response.headers["Retry-After"]:
                    code = -1  # refused without saying when to come back
            except TimeoutError:
                code, scored = -2, 0  # hung
                connection.close()
            except (OSError, http.client.HTTPException):
                code, scored = -3, 0  # lost
                connection.close()
            with lock:
                answers.append((code, time.perf_counter() - began, scored))

    began = time.perf_counter()
    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began, answers


def latencies(answers: Sequence[tuple[int, float, int]]) -> tuple[float, float]:
    """p50 and p99 in milliseconds of the answered ones."""
    times = [seconds for code, seconds, _ in answers if code == 200]
    low, high = np.quantile(times, [0.5, 0.99])
    return 1000 * float(low), 1000 * float(high)
