"""Queue jobs, run each in a process, and record its end exactly once, even across restarts of the server."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from noisegate.pipeline.estimators import ModelSpec
from noisegate.pipeline.labels import ClassSet
from noisegate.pipeline.settings import AnnotateSettings
from noisegate.service.errors import ApiError

from .process import JobProcess, Task
from .roots import Roots
from .store import ENDED, Job, JobProgress, JobStore, NoRecord, State, now

# settings of annotate that a client may choose; the server sets the model and the number of workers
JOB_SETTINGS = ("tasks", "beta", "cut", "k", "repair", "neighbourhood", "text_field", "label_field", "seed")

MAX_JOBS = 1000  # most jobs in the record
ATTEMPTS = 2  # a crashed process is started once more
RETRY_SECONDS = 30.0  # before a job that could not be recorded is tried again
SAVE_SECONDS = 1.0  # between two records of the progress
HEARTBEAT_SECONDS = 15.0

log = logging.getLogger("noisegate.jobs")


@dataclass(frozen=True)
class JobEvent:
    """One event of a job's stream: `progress`, `note`, or `done`, which is the last."""

    kind: str
    number: int
    job: Job
    note: str | None = None


class JobRunner:
    """The queue and the running processes. Only `current` and `latest` may be called outside the runner's event loop.

    `classes` finds a class set by name. A job recorded as `running` at the start was interrupted with the server and is
    resumed; so is one that was running when the server stopped. `on_stop` is called at the very end.
    """

    def __init__(
        self,
        store: JobStore,
        folder: Path,
        spec: ModelSpec,
        roots: Roots,
        classes: Callable[[str], ClassSet],
        *,
        parallel: int = 1,
        workers: int | None = None,
        retry_seconds: float = RETRY_SECONDS,
        on_stop: Callable[[], None] = lambda: None,
        start: Callable[[Task], Awaitable[JobProcess]] = JobProcess.start,
    ) -> None:
        self.store, self.folder, self.roots = store, folder.resolve(), roots
        self._spec, self._classes, self._parallel, self._start = spec, classes, parallel, start
        self._workers, self._retry_seconds, self._on_stop = workers, retry_seconds, on_stop
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._live: dict[str, Job] = {}
        self._processes: dict[str, JobProcess] = {}
        self._cancelled: set[str] = set()
        self._stopping = False
        self._tick = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Queue the jobs that were waiting or interrupted, and start to run them."""
        for job in await asyncio.to_thread(self.store.in_state, "queued", "running"):
            if job.state == "running":
                log.info("job %s (%s) was interrupted and is resumed", job.id, job.name)
                self.store.update(job.id, state="queued")
            self._queue.put_nowait(job.id)
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._parallel)]

    async def stop(self) -> None:
        """Stop all processes; their jobs are resumed at the next start."""
        self._stopping = True
        self._notify()
        await asyncio.gather(*(process.stop() for process in self._processes.values()))
        while self._live:
            await self._next_tick()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._on_stop()

    def current(self, job_id: str) -> Job:
        """Return the job's present state; raise ApiError 404 `unknown_job`."""
        job = self._live.get(job_id) or (self.store.get(job_id) if job_id.isalnum() else None)
        if job is None:
            raise ApiError(404, "unknown_job", f"there is no job {job_id[:100]!r}; GET /v1/jobs lists them")
        return job

    def latest(self, limit: int, skip: int = 0) -> list[Job]:
        """Return the newest jobs except the `skip` newest, oldest first."""
        return [self._live.get(job.id, job) for job in self.store.latest(limit, skip)]

    def count(self, state: State) -> float:
        """Count the jobs in a state; NaN while the record cannot be read."""
        try:
            return self.store.count(state)
        except NoRecord:
            return float("nan")

    def bytes_left(self) -> int:
        """Bytes of shards that running jobs have not read yet."""
        return sum(max(0, job.progress.bytes_todo - job.progress.bytes_done) for job in [*self._live.values()])

    def outputs(self) -> dict[str, Path]:
        """Folders of the jobs that are done, by name."""
        return {name: self.folder / name for name in self.store.names("done")}

    def submit(self, name: str, request: Mapping[str, Any]) -> Job:
        """Queue a job. If a job with the same name and settings exists, return it, and queue it again if it is over.

        Raises ApiError 409 `name_taken`, with the difference, for other settings, and `too_many_jobs`.
        """
        before = self.store.named(name)
        if before is None:
            if self.store.count() >= MAX_JOBS:
                problem = f"the record holds {MAX_JOBS:,} jobs; forget some that are over with DELETE /v1/jobs/ID"
                raise ApiError(409, "too_many_jobs", problem)
            job = self.store.add(name, request)
            self._queue.put_nowait(job.id)
            return job
        different = _differences(before.request, request)
        if different:
            problem = f"there is a job {name} with other settings: {'; '.join(different)}; use another name"
            raise ApiError(409, "name_taken", problem)
        if before.is_over:
            fresh = Job(before.id, name, request, progress=JobProgress(events=before.progress.events + 1))
            before = self.store.update(before.id, **{field: getattr(fresh, field) for field in _CHANGING})
            self._queue.put_nowait(before.id)
            self._notify()
        return before

    async def cancel(self, job_id: str) -> Job:
        """Stop a job; its files stay, and the same job submitted again continues from there."""
        job = self.current(job_id)
        if job.is_over:
            if job.state != "cancelled":
                raise ApiError(409, "job_over", f"the job {job.name} is {job.state} and cannot be cancelled")
            return job
        if job_id not in self._live:
            self._end(job, "cancelled")
            return self.current(job_id)
        self._cancelled.add(job_id)
        process = self._processes.get(job_id)
        if process is not None:
            await process.stop()
        while job_id in self._live:
            await self._next_tick()
        job = self.current(job_id)
        if not job.is_over:
            problem = f"the job {job.name} has ended but that could not be recorded"
            raise ApiError(503, "no_record", problem, RETRY_SECONDS)
        return job

    def forget(self, job_id: str) -> None:
        """Delete the record of a job that is over; its tables stay."""
        job = self.current(job_id)
        if not job.is_over:
            raise ApiError(409, "job_active", f"the job {job.name} is {job.state}; cancel it first")
        self.store.delete(job_id)

    async def events(
        self, job_id: str, after: int, closing: asyncio.Event, heartbeat: float = HEARTBEAT_SECONDS
    ) -> AsyncIterator[JobEvent | None]:
        """Yield events after number `after`, first the present state; end with `done` or at shutdown. None: heartbeat.

        A slow reader may miss intermediate states, never the last one.
        """
        seen = after
        first = True
        while not self._stopping and not closing.is_set():
            tick = self._tick
            job = self.current(job_id)
            if first or job.progress.events != seen or job.is_over:
                for note in job.progress.notes:
                    if note.number > seen:
                        yield JobEvent("note", note.number, job, note.text)
                yield JobEvent("done" if job.is_over else "progress", job.progress.events, job)
                seen, first = job.progress.events, False
                if job.is_over:
                    return
            if not await _wait_for_any(tick, closing, timeout=heartbeat):
                yield None

    async def _work(self) -> None:
        while not self._stopping:
            job_id = await self._queue.get()
            if job_id in self._live or self._stopping:
                continue  # queued twice
            try:
                await self._run_queued(job_id)
            except NoRecord as error:
                log.error("job %s is tried again in %g s: %s", job_id, self._retry_seconds, error)
                asyncio.get_running_loop().call_later(self._retry_seconds, self._queue.put_nowait, job_id)
            finally:
                self._live.pop(job_id, None)
                self._notify()

    async def _run_queued(self, job_id: str) -> None:
        job = self.store.get(job_id)
        if job is not None and not job.is_over:
            if job_id in self._cancelled:  # cancelled while the record could not be written
                self._end(job, "cancelled")
            else:
                self._change(replace(job, state="running", started=job.started or now()), save=True)
                await self._run_safely(job)
        self._cancelled.discard(job_id)

    async def _run_safely(self, job: Job) -> None:
        try:
            await self._run(job.id)
        except NoRecord:
            raise
        except ApiError as error:
            self._end(self._live[job.id], "failed", error.message)
        except Exception as error:
            log.exception("job %s (%s)", job.id, job.name)
            self._end(self._live[job.id], "failed", f"{type(error).__name__}: {error}")
        finally:
            if process := self._processes.pop(job.id, None):
                await process.stop()

    async def _run(self, job_id: str) -> None:
        """Start the process, again after a crash, until the job is over or the server stops."""
        while True:
            job = self._live[job_id]
            await asyncio.to_thread(self.roots.check_again, job.request["shards"])
            process = self._processes[job_id] = await self._start(self._task(job))
            if job_id in self._cancelled or self._stopping:  # cancelled or stopped while the process started
                await process.stop()
            last: dict[str, Any] = {}
            saved = time.monotonic()
            async for report in process.reports():
                last = report
                due = report["kind"] in ("shard", "note") or time.monotonic() - saved >= SAVE_SECONDS
                with contextlib.suppress(NoRecord):  # progress may be lost, the outcome must not
                    self._change(self._live[job_id].advance(report), save=due)
                saved = time.monotonic() if due else saved
            problem = await process.outcome()
            del self._processes[job_id]
            job = self._live[job_id]
            if last.get("kind") == "done":
                return self._end(job, "done", summary={**last["summary"], "out": job.name})  # hides the path
            if last.get("kind") == "failed":
                return self._end(job, "failed", last["error"].replace(f"{self.folder}/", ""))
            if job_id in self._cancelled:
                return self._end(job, "cancelled")
            if self._stopping:
                self._change(replace(job, state="queued"), save=True)
                return None
            problem = problem or "the job's process ended without a message"
            log.warning("job %s (%s): %s", job.id, job.name, problem)
            if job.attempts + 1 >= ATTEMPTS:
                return self._end(replace(job, attempts=job.attempts + 1), "failed", f"{problem} (attempt {ATTEMPTS})")
            again = replace(job, attempts=job.attempts + 1).add_note(f"{problem}; it is started once more")
            self._change(again, save=True)

    def _task(self, job: Job) -> Task:
        name = job.request["classes"]
        classes = self._classes(name) if name else None
        if classes is not None and classes.digest != job.request["classes_digest"]:
            raise ApiError(409, "other_classes", f"the class set {name} has changed since the job was submitted")
        device = self._spec.device.split(",")[0]
        model = {**self._spec.to_dict(), "device": "auto" if device == "all" else device}
        settings = AnnotateSettings.from_dict(
            {
                **model,
                "batch_size": self._spec.batch_size,
                "workers": self._workers,
                **{setting: job.request[setting] for setting in JOB_SETTINGS if setting in job.request},
            }
        )
        given = (list(classes.names), [list(p) for p in classes.prompts]) if classes else None
        return Task(str(self.folder / job.name), job.request["shards"], settings.to_dict(), given)

    def _end(self, job: Job, state: Any, error: str | None = None, summary: Mapping[str, Any] | None = None) -> None:
        assert state in ENDED
        log.info("job %s (%s) is %s%s", job.id, job.name, state, f": {error}" if error else "")
        progress = replace(job.progress, events=job.progress.events + 1)
        ended = replace(job, state=state, error=error, summary=summary, ended=now(), progress=progress)
        self.store.update(job.id, **{name: getattr(ended, name) for name in _CHANGING})
        self._live.pop(job.id, None)
        self._notify()

    def _change(self, job: Job, save: bool) -> Job:
        """Set the job's state for all readers."""
        job = replace(job, progress=replace(job.progress, events=job.progress.events + 1))
        self._live[job.id] = job
        if save:
            self.store.update(job.id, **{name: getattr(job, name) for name in _CHANGING})
        self._notify()
        return job

    def _notify(self) -> None:
        tick, self._tick = self._tick, asyncio.Event()
        tick.set()

    async def _next_tick(self) -> None:
        await self._tick.wait()


_CHANGING = ("state", "progress", "attempts", "started", "ended", "error", "summary")


def _differences(before: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Describe each setting that differs in one line; for shards only their number."""
    lines = []
    for name in wanted:
        then, new = before.get(name), wanted[name]
        if name != "asked" and then != new:
            if name == "shards":
                gone, fresh = len(set(then or []) - set(new)), len(set(new) - set(then or []))
                lines.append(f"shards: {gone} of {len(then or [])} there are not named now, {fresh} are new")
            else:
                lines.append(f"{name}: {then} there, {new} now")
    return lines


async def _wait_for_any(*events: asyncio.Event, timeout: float) -> bool:
    """Wait for one of the events; False on timeout."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
    finally:
        for wait in waits:
            wait.cancel()
