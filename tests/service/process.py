"""A real `noisegate serve` in a process of its own."""

import json
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from time import monotonic, sleep
from typing import Any

import httpx

from tests.commands import FAKE, command


def until(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """What the condition gives, once that is true of anything."""
    last = monotonic() + seconds
    while not (found := condition()):
        assert monotonic() < last, "it never came true"
        sleep(0.01)
    return found


@dataclass
class Server:
    """The process, where it listens, and what it has said so far."""

    process: "subprocess.Popen[str]"
    said_to: Path

    @property
    def said(self) -> str:
        return self.said_to.read_text(encoding="utf-8")

    @property
    def port(self) -> int:
        found = until(lambda: re.search(r"listens on http://127\.0\.0\.1:(\d+)", self.said))
        return int(found.group(1))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.said.splitlines() if line.startswith("{") and line.endswith("}")]

    @property
    def encoders(self) -> list[int]:
        """Process ids of all encoders that were ready so far."""
        return [line["encoder"] for line in self.log if line["message"] == "encoder ready"]

    def ready(self) -> bool:
        assert self.process.poll() is None, self.said
        try:
            return httpx.get(f"{self.url}/readyz", timeout=10).status_code == 200
        except httpx.TransportError:
            return False

    def metric(self, name: str) -> float:
        lines = httpx.get(f"{self.url}/metrics", timeout=10).text.splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(f"noisegate_{name} ")), 0.0)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)


@contextmanager
def serve(folder: Path, *arguments: object, environment: dict[str, str] | None = None) -> Iterator[Server]:
    """A server on a free port, ready, with the fake model unless a model or run is named; killed at the end if need be."""
    model = () if "--model" in arguments or "--run" in arguments else FAKE
    beta = () if "--run" in arguments else ("--beta", "fixed:0.4")
    # tests hold encoders up, and the machine may be busy
    started = command("serve", "--port", 0, "--decode-workers", 0, "--hang-seconds", 60, *model, *beta, *arguments)
    started["env"] = {**started["env"], **(environment or {})}
    with NamedTemporaryFile("w", dir=folder, prefix="said-", delete=False) as file:
        process = subprocess.Popen(**started, stderr=file, stdout=file, cwd=folder)
    server = Server(process, Path(file.name))
    try:
        until(server.ready, 300)  # the embedded model loads slowly on a busy machine
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
