"""The server's handle on a job's process: start it, read its reports, stop it."""

import asyncio
import contextlib
import json
import os
import signal
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from .process import Task, command

GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL
MAX_LINE = 64 << 20  # bytes of one report; a summary lists every shard that failed


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
        with contextlib.suppress(ConnectionError):  # it died at once: its exit code says so
            process.stdin.write(task.line())
            await process.stdin.drain()
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def reports(self) -> AsyncIterator[dict[str, Any]]:
        """Its reports, until it ends."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            try:
                report = json.loads(line)
            except ValueError:  # a line cut off by a kill
                continue
            yield report

    async def stop(self) -> None:
        """Send SIGTERM, then SIGKILL; files are written atomically, so that none is left half-written."""
        self._signal(hard=False)
        try:
            await asyncio.wait_for(self._process.wait(), GRACE_SECONDS)
        except TimeoutError:
            self._signal(hard=True)
            await self._process.wait()

    async def outcome(self) -> str | None:
        """Why it failed, None for exit code 0; also kills what it left running in its group."""
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
