"""The process of one job, and the server's handle on it.

`python -m noisegate.service.jobs.process` reads a `Task` as one line of JSON from standard input, and runs `annotate`. It ends
as soon as that input is closed, which happens when the server dies. Reports are JSON lines on standard output; a model's own
output goes to standard error.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from noisegate.pipeline.errors import LockedError, NoisegateError
from noisegate.pipeline.labels import ClassSet
from noisegate.pipeline.settings import AnnotateSettings
from noisegate.pipeline.system import Progress

GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL
MAX_LINE = 64 << 20  # bytes of one report; a summary lists every failed shard
NICE = 10  # lower priority than the server, so that requests come first
REPORT_SECONDS = 0.25  # between two reports of progress
LOCK_WAIT = 20.0  # seconds to wait for the job process of a killed server to exit
ORPHANED = 75  # exit code when the server is gone


@dataclass(frozen=True)
class Task:
    """The input of the process: `settings` from `AnnotateSettings.to_dict`, `classes` as (names, prompts)."""

    out: str
    shards: list[str]
    settings: dict[str, Any]
    classes: tuple[list[str], list[list[str]]] | None

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def command() -> list[str]:
    """Return the command line of the process."""
    return [sys.executable, "-m", "noisegate.service.jobs.process"]


class JobProcess:
    """One run of a job in a process group of its own, so that Ctrl-C in a terminal does not reach it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._last_lines: deque[str] = deque(maxlen=20)
        self._stderr_task = asyncio.create_task(self._read_stderr())

    @classmethod
    async def start(cls, task: Task) -> "JobProcess":
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command(), stdin=pipe, stdout=pipe, stderr=pipe, limit=MAX_LINE, start_new_session=True
        )
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):  # the process died at once; its exit code says why
            process.stdin.write(task.line())
            await process.stdin.drain()
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def reports(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the process's reports until it ends."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            try:
                report = json.loads(line)
            except ValueError:  # a line that was cut off when the process was killed
                continue
            yield report

    async def stop(self) -> None:
        """Send SIGTERM, then SIGKILL; files are written atomically, so no file is left half-written."""
        self._signal(hard=False)
        try:
            await asyncio.wait_for(self._process.wait(), GRACE_SECONDS)
        except TimeoutError:
            self._signal(hard=True)
            await self._process.wait()

    async def outcome(self) -> str | None:
        """Return why the process failed, None for exit code 0; also kill the processes it left in its group."""
        code = await self._process.wait()
        self._signal(hard=True)
        await self._stderr_task
        if code == 0:
            return None
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        last = next((line for line in reversed(self._last_lines) if line.strip()), "")
        return f"the job's process {how}{': ' + last if last else ''}"

    def _signal(self, hard: bool) -> None:
        """Signal the process group; on Windows, which has neither groups nor the two signals, the process alone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # gone already
            if os.name == "nt":
                self._process.terminate()
            else:
                os.killpg(self._process.pid, signal.SIGKILL if hard else signal.SIGTERM)

    async def _read_stderr(self) -> None:
        """Drain standard error and keep its last lines."""
        assert self._process.stderr is not None
        rest = b""
        while part := await self._process.stderr.read(1 << 16):
            *lines, rest = (rest + part)[-(1 << 16) :].split(b"\n")
            self._last_lines.extend(line.decode(errors="replace")[:500] for line in lines)
        if rest:
            self._last_lines.append(rest.decode(errors="replace")[:500])


# --- in the process itself ----------------------------------------------------------------------------------------------


class Reports(Progress):
    """Write progress as JSON lines to a file descriptor; samples are summed up and reported a few times a second."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._samples = self._size = 0
        self._reported = 0.0

    def tell(self, kind: str, **values: Any) -> None:
        data = json.dumps({"kind": kind, **values}).encode() + b"\n"
        while data:  # a pipe accepts a long line only in parts
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
