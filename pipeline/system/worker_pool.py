"""Worker processes that run one function. A worker that dies or hangs loses only its own task, and is replaced."""

import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import Any

from .machine import exit_with_parent
from .messages import receive, send
from .processes import sigint_blocked

START_SECONDS = 60.0  # for a process to import its modules; chosen, ten times the time on a busy machine
STARTS = 3  # tries to start a process, which may be killed while it starts
LOOK_SECONDS = 0.1  # between two checks of the deadlines
END_SECONDS = 5.0  # for a process to end after its pipe is closed
PAUSE_SECONDS = 1.0  # after all tries to start a process have failed


class WorkerLost(Exception):
    """The worker ended before it answered; `hung` if it was killed because it took too long.

    `killed` if another process, or the system for lack of memory, sent SIGKILL.
    """

    def __init__(self, hung: bool = False, killed: bool = False) -> None:
        super().__init__(
            "the worker took too long and was killed" if hung else "the worker ended by itself or was killed"
        )
        self.hung, self.killed = hung, killed


class WorkerNotStarted(Exception):
    """No process could be started, after several tries."""


@dataclass(frozen=True)
class WorkerSetup:
    """How to start each process: `work` is called for every task, `set_up` once before.

    A process that holds more than `max_bytes` of memory after a task is replaced.
    """

    work: Callable[..., Any]
    context: SpawnContext | ForkServerContext
    set_up: Callable[[], None] | None = None
    max_bytes: int | None = None
    starts: int = STARTS


@dataclass(eq=False)
class _Task:
    arguments: tuple[Any, ...]
    seconds: float
    answer: "Future[Any]" = field(default_factory=Future)


class WorkerPool:
    """`count` processes, each with one task at a time. Raises WorkerNotStarted if none starts.

    `submit` returns at once; its future raises WorkerLost if the process ended, or the exception of the work.
    """

    def __init__(self, count: int, setup: WorkerSetup) -> None:
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._workers = [_Worker(setup, self._closed) for _ in range(count)]
        self._threads = [threading.Thread(target=self._feed, args=(worker,), daemon=True) for worker in self._workers]
        self._threads.append(threading.Thread(target=self._watch, daemon=True))
        for thread in self._threads:
            thread.start()
        try:
            self.submit(seconds=None).result()  # an empty task, which any worker answers
        except (WorkerNotStarted, WorkerLost):
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that are ready."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    def submit(self, *arguments: Any, seconds: float | None) -> "Future[Any]":
        """Submit these arguments; the work may take `seconds` after a worker has begun."""
        task = _Task(arguments, float("inf") if seconds is None else seconds)
        self._tasks.put(task)
        if self._closed.is_set():
            task.answer.cancel()
        return task.answer

    def close(self) -> None:
        """End all processes at once; tasks that are not done are cancelled."""
        self._closed.set()
        for worker in self._workers:
            worker.kill()
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()
        while not self._tasks.empty():
            if (task := self._tasks.get()) is not None:
                task.answer.cancel()

    def _feed(self, worker: "_Worker") -> None:
        while not self._closed.is_set():
            worker.start()  # does nothing if it runs already
            try:
                task = self._tasks.get(timeout=PAUSE_SECONDS if worker.pid is None else None)
            except queue.Empty:
                continue
            if task is None:
                continue
            if self._closed.is_set():  # the pool was closed while this worker started
                task.answer.cancel()
            if not task.answer.set_running_or_notify_cancel():
                continue
            try:
                task.answer.set_result(worker.call(task))
            except BaseException as error:  # raised again by the future
                task.answer.set_exception(error)
        worker.end()

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            for worker in self._workers:
                worker.kill_if_late()


class _Worker:
    """One process. `start`, `call` and `end` are called by one thread, the other methods by any thread."""

    def __init__(self, setup: WorkerSetup, closed: threading.Event) -> None:
        self._setup, self._closed = setup, closed
        self._lock = threading.Lock()
        self._process: Any = None
        self._connection: Connection[Any, Any] | None = None
        self._until: float | None = None
        self._late = False
        self.pid: int | None = None  # set while the process is ready

    def start(self) -> None:
        """Start a process unless one is running; after several failures give up."""
        for _ in range(self._setup.starts):
            if self._connection is not None or self._closed.is_set():
                return
            ours, theirs = self._setup.context.Pipe()
            process = self._setup.context.Process(
                target=_serve,
                args=(theirs, self._setup.work, self._setup.set_up, self._setup.max_bytes),
                name="noisegate-worker",
                daemon=True,
            )
            with sigint_blocked():
                process.start()
            theirs.close()  # so that the stream ends with the process
            with self._lock:
                self._process, self._connection = process, ours
            try:
                with self._deadline(START_SECONDS):
                    receive(ours)
                self.pid = process.pid
            except (EOFError, OSError):
                self.end()

    def call(self, task: _Task) -> Any:
        """Run one task; raise WorkerLost, WorkerNotStarted or the exception of the work."""
        if self._connection is None:
            raise WorkerNotStarted("no worker process could be started")
        try:
            with self._deadline(task.seconds):
                send(self._connection, task.arguments)
                leaves, error, value = receive(self._connection)
        except (EOFError, OSError) as gone:
            killed = self._was_killed()
            self.end()
            raise WorkerLost(self._late, killed and not self._late) from gone
        if leaves:
            self.end()
        if error is not None:
            raise error
        return value

    def end(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            process, connection = self._process, self._connection
            self._process = self._connection = self.pid = None
        if process is not None:
            process.kill()
            process.join()
            process.close()
        if connection is not None:
            connection.close()

    def _was_killed(self) -> bool:
        """Return whether the process, whose end of the pipe is closed, was ended by SIGKILL."""
        self._process.join(END_SECONDS)
        return bool(self._process.exitcode == -getattr(signal, "SIGKILL", 9))

    def kill(self) -> None:
        with self._lock:
            if self._process is not None:
                self._process.kill()  # the thread that waits for the answer then sees the end of the stream

    def kill_if_late(self) -> None:
        with self._lock:
            if self._until is not None and time.monotonic() > self._until and self._process is not None:
                self._late, self._until = True, None
                self._process.kill()

    @contextmanager
    def _deadline(self, seconds: float) -> Iterator[None]:
        with self._lock:
            self._late, self._until = False, time.monotonic() + seconds
        try:
            yield
        finally:
            with self._lock:
                self._until = None


def _serve(
    connection: "Connection[Any, Any]",
    work: Callable[..., Any],
    set_up: Callable[[], None] | None,
    max_bytes: int | None,
) -> None:
    """Main function of a worker: do tasks until the pool closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    exit_with_parent()
    if set_up is not None:
        set_up()
    send(connection, None)
    leaves = False
    while not leaves:
        try:
            arguments = receive(connection)
        except EOFError:
            return
        error, value = None, None
        try:
            value = work(*arguments) if arguments else None
        except Exception as raised:  # raised again in the parent
            error = raised
        leaves = max_bytes is not None and _resident_bytes() > max_bytes
        send(connection, (leaves, error, value))


def _resident_bytes() -> int:
    """Return the memory of this process; 0 if the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
