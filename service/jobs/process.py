"""The process of one job: it runs `annotate`, reports in JSON lines, and ends as soon as its server is gone.

`python -m noisegate.service.jobs.process` reads a `Task` as one line of JSON from standard input, and then waits for the end of
that input, which the death of the server closes. Reports go to standard output; what a model prints goes to standard error.
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
from noisegate.pipeline.labels import ClassSet
from noisegate.pipeline.settings import AnnotateSettings
from noisegate.pipeline.system import Progress

NICE = 10  # lower priority than the server, so that requests come first
REPORT_SECONDS = 0.25  # between two reports of samples
LOCK_WAIT = 20.0  # seconds that the job process of a killed server may take to exit
ORPHANED = 75  # exit code when the server is gone


@dataclass(frozen=True)
class Task:
    """What the process needs to know: `settings` as `AnnotateSettings.to_dict` gives them, `classes` as (names, prompts)."""

    out: str
    shards: list[str]
    settings: dict[str, Any]
    classes: tuple[list[str], list[list[str]]] | None

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def command() -> list[str]:
    """The command line of the process."""
    return [sys.executable, "-m", "noisegate.service.jobs.process"]


class Reports(Progress):
    """Writes progress as JSON lines to a file descriptor; samples are summed up and reported a few times a second."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._samples = self._size = 0
        self._reported = 0.0

    def tell(self, kind: str, **values: Any) -> None:
        data = json.dumps({"kind": kind, **values}).encode() + b"\n"
        while data:  # a pipe takes a long line in parts
            data = data[os.write(self._descriptor, data) :]

    def start(self, todo: int, size: int, done: int) -> None:
        self.tell("start", todo=todo, size=size, done=done)

    def advance(self, samples: int, size: int) -> None:
        self._samples, self._size = self._samples + samples, self._size + size
        if time.monotonic() - self._reported >= REPORT_SECONDS:
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
        self._reported = time.monotonic()


def annotate(task: Mapping[str, Any], reports: Reports) -> dict[str, Any]:
    """Run the job and return its summary as JSON values; wait up to `LOCK_WAIT` for a process that still locks the folder."""
    from noisegate.pipeline.annotate import annotate_with

    settings, given = AnnotateSettings.from_dict(task["settings"]), task["classes"]
    classes = ClassSet(tuple(given[0]), tuple(map(tuple, given[1]))) if given else None
    began = time.monotonic()
    while True:
        try:
            return annotate_with(settings, task["shards"], task["out"], classes=classes, progress=reports).to_dict()
        except LockedError:
            if time.monotonic() - began > LOCK_WAIT:
                raise
            time.sleep(0.2)


def _read_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 1 << 16)
        if not part:
            os._exit(ORPHANED)
        line += part
    return line


def _exit_with_server() -> None:
    while os.read(0, 1):
        pass
    os._exit(ORPHANED)  # files are written atomically, so a restart finds no partial ones


def main() -> int:
    """Run the job; return 0 if it is done or has reported why it failed."""
    reports = Reports(os.dup(1))
    os.dup2(2, 1)
    task = json.loads(_read_line())
    threading.Thread(target=_exit_with_server, daemon=True).start()
    os.nice(NICE)
    try:
        reports.tell("done", summary=annotate(task, reports))
    except NoisegateError as error:
        reports.tell("failed", error=str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
