"""The service under load: throughput over the offline job's on the same pairs, latencies, and what happens beyond capacity.

A real `noisegate serve` on loopback and a real `annotate` take turns in one run; clients send bodies that were made before.

    python -m benchmarks.service [--pairs 192] [--model ViT-B-32 --pretrained random:0] [--json]
"""

import argparse
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
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.annotate import write_shards
from noisegate.pipeline.annotate import annotate
from noisegate.pipeline.estimators import load_estimator
from noisegate.pipeline.shards.locate import find_shards
from noisegate.pipeline.shards.read import ShardReader

BETA = "fixed:0.2"
TIMEOUT = 120
OVERLOAD_QUEUE = 64


@contextmanager
def serving(*options: str) -> Iterator[int]:
    """A server process that is ready, and its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "noisegate", "serve", "--port", str(port), "--beta", BETA, *options]
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ})
        try:
            ends = time.monotonic() + 180
            while not _ready(port):
                if server.poll() is not None or time.monotonic() > ends:
                    log.seek(0)
                    raise SystemExit(f"the server did not start:\n{log.read()[-2000:]}")
                time.sleep(0.2)
            yield port
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


def throughput(given: argparse.Namespace, folder: Path) -> dict[str, float]:
    """At saturation over offline, and latencies at low and at full load."""
    pattern = write_shards(folder / "shards", 2, given.pairs // 2, 640, 480)
    model = ["--model", given.model, *(["--pretrained", given.pretrained] if given.pretrained else [])]
    estimator = load_estimator(given.model, given.pretrained)
    ratios: list[float] = []
    figures: dict[str, float] = {}
    with serving(*model) as port:
        load(port, bodies(pattern, 8)[:4], 2)  # warm
        for turn in range(given.rounds):
            summary = annotate(pattern, folder / f"out{turn}", estimator=estimator, beta=BETA)
            assert summary.pairs_per_second
            seconds, answers = load(port, bodies(pattern, 16), given.clients)
            scored = sum(n for _, _, n in answers)
            if scored != given.pairs // 2 * 2:
                raise SystemExit(f"{scored} of {given.pairs} pairs were scored: {Counter(a[0] for a in answers)}")
            ratios.append(scored / seconds / summary.pairs_per_second)
            figures["offline_pairs_per_second"] = summary.pairs_per_second
            figures["full_p50_ms"], figures["full_p99_ms"] = latencies(answers)
        _, answers = load(port, bodies(pattern, 1)[:60], 1)
        figures["low_p50_ms"], figures["low_p99_ms"] = latencies(answers)
    return {"service_over_offline": float(np.median(ratios)), **figures}


def overload(folder: Path) -> dict[str, float]:
    """Many clients against a short queue: every request is answered, or refused at once with a time to come back."""
    pattern = str(folder / "shards" / "*.tar")
    options = ("--model", "ViT-B-32", "--pretrained", "random:0")
    limits = ("--queue-items", str(OVERLOAD_QUEUE), "--max-items", "16")
    requests = bodies(pattern, 8) * 4
    with serving(*options, *limits) as port:
        _, answers = load(port, requests, 48)
        alive = _ready(port) or _ready(port)
    codes = Counter(code for code, _, _ in answers)
    refused = [seconds for code, seconds, _ in answers if code in (429, 503)]
    return {
        "overload_sent": len(requests),
        "overload_answered": codes[200],
        "overload_refused": codes[429] + codes[503],
        "overload_hung_or_lost": len(requests) - codes[200] - codes[429] - codes[503],
        "overload_refusal_p99_ms": 1000 * float(np.quantile(refused, 0.99)) if refused else float("nan"),
        "overload_alive_after": float(alive),
    }


GOALS = {"service_over_offline": "≥ 0.85", "overload_hung_or_lost": "0", "overload_alive_after": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--model", default="ViT-B-32")
    parser.add_argument("--pretrained", default="random:0")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        figures: dict[str, Any] = throughput(given, Path(name)) | overload(Path(name))
    if given.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:26} {value:10.3f}  {('goal ' + GOALS[name]) if name in GOALS else ''}")


if __name__ == "__main__":
    main()
