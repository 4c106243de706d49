"""The process of one job: it runs `annotate`, reports in JSON lines, and ends as soon as its server is gone.

`python -m noisegate.service.jobs.process` reads one line of JSON from standard input, a `Task`, and then only waits for the end
of that input: a server that dies, however it dies, closes it. Reports go to standard output; whatever a model prints
goes to standard error instead.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from noisegate.pipeline.errors import LockedError, NoisegateError
from noisegate.pipeline.estimators import ModelSpec
from noisegate.pipeline.labels.classes import ClassSet
from noisegate.pipeline.system.progress import Progress

__all__ = ["Reports", "Task", "command", "main"]

NICE = 10  # requests come first
EVERY = 0.25  # seconds between two reports of samples
LOCK_WAIT = 20.0  # a process of a server that was killed needs a moment to see it
ORPHANED = 75


@dataclass(frozen=True)
class Task:
    """All that the process needs to know; `classes` is (names, prompts)."""

    out: str
    shards: list[str]
    model: dict[str, Any]
    tasks: list[str]
    beta: str
    classes: tuple[list[str], list[list[str]]] | None
    k: int | None
    neighbourhood: bool
    text_field: str | None
    label_field: str | None
    seed: int
    workers: int | None = None

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def command() -> list[str]:
    """What starts the process."""
    return [sys.executable, "-m", "noisegate.service.jobs.process"]


class Reports(Progress):
    """Progress as JSON lines in a file descriptor; samples are summed up and told a few times a second."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._samples = self._size = 0
        self._told = 0.0

    def tell(self, kind: str, **values: Any) -> None:
        data = json.dumps({"kind": kind, **values}).encode() + b"\n"
        while data:  # a pipe takes a long line in parts
            data = data[os.write(self._descriptor, data) :]

    def start(self, todo: int, size: int, done: int) -> None:
        self.tell("start", todo=todo, size=size, done=done)

    def advance(self, samples: int, size: int) -> None:
        self._samples, self._size = self._samples + samples, self._size + size
        if time.monotonic() - self._told >= EVERY:
            self._flush()

    def shard(self, name: str, samples: int, failed: int) -> None:
        self._flush()
        self.tell("shard", name=name, samples=samples, failed=failed)

    def note(self, text: str) -> None:
        self._flush()
        self.tell("note", text=text)

    def _flush(self) -> None:
        if self._samples or self._size:
            self.tell("advance", samples=self._samples, size=self._size)
        self._samples = self._size = 0
        self._told = time.monotonic()


def annotate(task: Mapping[str, Any], reports: Reports) -> dict[str, Any]:
    """Run the job; its summary as JSON values. Waits a moment for a process that still holds the folder."""
    from noisegate.pipeline.annotate import annotate as run
    from noisegate.pipeline.shards.workers import DecodeOptions

    classes = task["classes"]
    began = time.monotonic()
    while True:
        try:
            return run(
                task["shards"],
                task["out"],
                estimator=ModelSpec(**task["model"]),
                beta=task["beta"],
                options=DecodeOptions(tuple(task["tasks"]), task["text_field"], task["label_field"]),
                classes=ClassSet(tuple(classes[0]), tuple(map(tuple, classes[1]))) if classes else None,
                k=task["k"],
                neighbourhood=task["neighbourhood"],
                seed=task["seed"],
                workers=task["workers"],
                progress=reports,
            ).to_dict()
        except LockedError:
            if time.monotonic() - began > LOCK_WAIT:
                raise
            time.sleep(0.2)


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 1 << 16)
        if not part:
            os._exit(ORPHANED)
        line += part
    return line


def _end_with_the_server() -> None:
    while os.read(0, 1):
        pass
    os._exit(ORPHANED)  # nothing is half-written that a restart would not see


def main() -> int:
    """0 when the job is done or has said why it failed; anything else is a crash."""
    reports = Reports(os.dup(1))
    os.dup2(2, 1)
    task = json.loads(_first_line())
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    os.nice(NICE)
    try:
        reports.tell("done", summary=annotate(task, reports))
    except NoisegateError as error:
        reports.tell("failed", error=str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
