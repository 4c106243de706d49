"""Jobs from the queue to their end: with processes made by hand for the order of things, and with real ones."""

import asyncio
import os
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from noisegate.pipeline.estimators import ModelSpec
from noisegate.pipeline.labels.classes import ClassSet, load_classes
from noisegate.pipeline.settings import AnnotateSettings
from noisegate.service.errors import ApiError
from noisegate.service.jobs.process import ORPHANED, Task, command
from noisegate.service.jobs.roots import Roots
from noisegate.service.jobs.runner import JobEvent, JobRunner
from noisegate.service.jobs.store import Job, JobStore, NoRecord
from tests.commands import ROOT
from tests.errors import failed
from tests.jobs import BETA
from tests.service.jobs.models import CRASHING, GATED

COLOURS = "python:tests.fakes:ColourModel"


class ByHand:
    """A process whose reports the test writes; `end` closes it, None for an orderly end."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._said: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._outcome: str | None = None
        self.stopped = False

    def say(self, kind: str, **values: Any) -> None:
        self._said.put_nowait({"kind": kind, **values})

    def end(self, outcome: str | None = None) -> None:
        self._outcome = outcome
        self._said.put_nowait(None)

    async def reports(self) -> AsyncIterator[dict[str, Any]]:
        while (report := await self._said.get()) is not None:
            yield report

    async def stop(self) -> None:
        self.stopped = True
        self.end("the job's process was killed by SIGTERM")

    async def outcome(self) -> str | None:
        return self._outcome


class Bench:
    """A runner in a folder of its own, with processes by hand unless a model is named."""

    def __init__(
        self, folder: Path, model: str | None = None, parallel: int = 1, kind: type[JobStore] = JobStore
    ) -> None:
        self.folder = folder
        self.started: list[ByHand] = []
        self._new = asyncio.Event()
        roots = Roots.of([folder / "shards"])
        by_hand: dict[str, Any] = {} if model else {"start": self._start}
        store = kind(folder / "jobs" / "_jobs.sqlite")
        self.runner = JobRunner(
            store, folder / "jobs", ModelSpec(model or COLOURS), roots, self.classes,
            parallel=parallel, workers=0, retry_seconds=0, on_stop=store.close, **by_hand,
        )  # fmt: skip

    def classes(self, name: str) -> ClassSet:
        return load_classes(name)

    async def _start(self, task: Task) -> Any:
        self.started.append(ByHand(task))
        self._new.set()
        return self.started[-1]

    async def process(self, number: int) -> ByHand:
        """The process that is started as this one, counted from 0."""
        while len(self.started) <= number:
            self._new.clear()
            await self._new.wait()
        return self.started[number]

    def submit(self, name: str, **settings: Any) -> Job:
        plain = dict.fromkeys(("classes", "classes_digest", "k", "text_field", "label_field"))
        asked = {"asked": ["*.tar"], "shards": self.runner.roots.find(["*.tar"]), "tasks": ["pairs"], **plain}
        return self.runner.submit(name, {**asked, "beta": BETA, "neighbourhood": False, "seed": 0, **settings})

    async def until(self, job: Job, reached: Callable[[Job], bool] = lambda job: job.is_over) -> Job:
        events = self.runner.events(job.id, 0, asyncio.Event())
        async for event in events:
            if event is not None and reached(event.job):
                await events.aclose()  # type: ignore[attr-defined]
                return event.job
        raise AssertionError("the events ended before")


@pytest.fixture
def place(tmp_path: Path, shards: Path) -> Path:
    return shards.parent


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 100))


def test_one_after_the_other_in_the_order_of_arrival(place: Path) -> None:
    async def story() -> None:
        bench = Bench(place)
        await bench.runner.start()
        a, b = bench.submit("a"), bench.submit("b", seed=7)
        first = await bench.process(0)
        assert first.task.out == str(place / "jobs" / "a")
        assert first.task.shards == [str(path.resolve()) for path in sorted((place / "shards").iterdir())]
        assert AnnotateSettings.from_dict(first.task.settings) == AnnotateSettings(model=COLOURS, beta=BETA, workers=0)
        assert bench.runner.current(b.id).state == "queued"
        first.say("start", todo=2, size=200, done=1)
        first.say("advance", samples=5, size=60)
        first.say("shard", name="x-01", samples=6, failed=2)
        first.say("note", text="β")
        progress = (await bench.until(a, lambda job: bool(job.progress.notes))).progress
        assert (progress.shards_before, progress.shards_todo, progress.shards_done) == (1, 2, 1)
        assert (progress.samples, progress.failed_samples, progress.share) == (5, 2, 0.3)
        first.say("done", summary={"samples": 12, "out": "/secret/place"})
        first.end()
        done = await bench.until(a)
        assert (done.state, done.summary, done.error) == ("done", {"samples": 12, "out": "a"}, None)
        assert bench.runner.outputs() == {"a": place / "jobs" / "a"}
        assert (await bench.process(1)).task.settings["seed"] == 7
        (await bench.process(1)).say("failed", error=f"{place}/jobs/b was made with other settings")
        (await bench.process(1)).end()
        failed = await bench.until(b)
        assert (failed.state, failed.error) == ("failed", "b was made with other settings")
        assert [job.state for job in bench.runner.latest(100)] == ["done", "failed"]
        await bench.runner.stop()

    run(story())


def test_two_at_a_time(place: Path) -> None:
    async def story() -> None:
        bench = Bench(place, parallel=2)
        await bench.runner.start()
        jobs = [bench.submit(name) for name in "abc"]
        first = await bench.process(0)
        await bench.process(1)
        assert [bench.runner.current(job.id).state for job in jobs] == ["running", "running", "queued"]
        first.say("done", summary={})
        first.end()
        assert (await bench.process(2)).task.out.endswith("/c")
        await bench.runner.stop()

    run(story())


def test_cancelled_while_waiting_and_while_running(place: Path) -> None:
    async def story() -> None:
        bench = Bench(place)
        await bench.runner.start()
        running, waiting = bench.submit("running"), bench.submit("waiting")
        process = await bench.process(0)
        assert (await bench.runner.cancel(waiting.id)).state == "cancelled"
        assert (await bench.runner.cancel(running.id)).state == "cancelled"
        assert process.stopped
        assert (await bench.runner.cancel(running.id)).state == "cancelled"  # once more does no harm
        again = bench.submit("waiting")
        assert (again.id, again.state, again.ended) == (waiting.id, "queued", None)
        (await bench.process(1)).say("done", summary={})
        (await bench.process(1)).end()
        await bench.until(again)
        with pytest.raises(ApiError) as over:
            await bench.runner.cancel(again.id)
        assert (over.value.status, over.value.code) == (409, "job_over")
        await bench.runner.stop()

    run(story())


def test_a_crash_is_tried_once_more_and_then_told(place: Path) -> None:
    async def story() -> None:
        bench = Bench(place)
        await bench.runner.start()
        lucky, unlucky = bench.submit("lucky"), bench.submit("unlucky")
        (await bench.process(0)).end("the job's process was killed by SIGKILL")
        (await bench.process(1)).say("done", summary={})
        (await bench.process(1)).end()
        done = await bench.until(lucky)
        assert (done.state, done.attempts) == ("done", 1)
        assert [note.text for note in done.progress.notes] == [
            "the job's process was killed by SIGKILL; it is started once more"
        ]
        (await bench.process(2)).end("the job's process ended with exit code 1: MemoryError")
        (await bench.process(3)).end("the job's process ended with exit code 1: MemoryError")
        failed = await bench.until(unlucky)
        assert failed.error == "the job's process ended with exit code 1: MemoryError (attempt 2)"
        await bench.runner.stop()

    run(story())


class FullDisk(JobStore):
    """Nothing can be written while `full`; `refused` counts what was tried."""

    full = False
    refused = 0

    def update(self, job_id: str, **changes: Any) -> Job:
        if self.full:
            self.refused += 1
            raise NoRecord(sqlite3.OperationalError("database or disk is full"))
        return super().update(job_id, **changes)


@pytest.mark.parametrize("when", ["start", "progress", "end", "cancel"])
def test_a_full_disk_sets_a_job_aside_until_there_is_room(place: Path, when: str) -> None:
    async def refused(store: FullDisk, count: int = 1) -> None:
        while store.refused < count:
            await asyncio.sleep(0)

    async def story() -> None:
        bench = Bench(place, kind=FullDisk)
        store = bench.runner.store
        assert isinstance(store, FullDisk)
        store.full = when == "start"
        await bench.runner.start()
        job = bench.submit("a")
        if when == "start":
            await refused(store, 3)  # tried again and again
            store.full = False
        first = await bench.process(0)
        store.full = when != "start"
        if when == "progress":
            first.say("note", text="β")
            await refused(store)
            assert bench.runner.current(job.id).progress.notes[0].text == "β"
            store.full = False
        if when == "cancel":
            with pytest.raises(ApiError) as error:
                await bench.runner.cancel(job.id)
            assert (error.value.status, error.value.code) == (503, "no_record")
            store.full = False
            assert (await bench.until(job)).state == "cancelled"
            again = bench.submit("a")
            assert again.id == job.id
            first = await bench.process(1)
        first.say("done", summary={"samples": 1})
        first.end()
        if when == "end":
            await refused(store)
            store.full = False
            second = await bench.process(1)  # it finds everything there
            second.say("done", summary={"samples": 1})
            second.end()
        assert (await bench.until(job)).state == "done"
        await bench.runner.stop()

    run(story())


def test_stopped_in_order_and_started_again(place: Path) -> None:
    async def before() -> None:
        bench = Bench(place)
        await bench.runner.start()
        bench.submit("a"), bench.submit("b")
        (await bench.process(0)).say("start", todo=3, size=10, done=0)
        await bench.until(bench.runner.latest(100)[0], lambda job: job.progress.shards_todo == 3)
        await bench.runner.stop()

    async def after() -> None:
        bench = Bench(place)
        assert [job.state for job in bench.runner.latest(100)] == ["queued", "queued"]
        bench.runner.store.update(bench.runner.latest(100)[1].id, state="running")  # as a kill would leave it
        await bench.runner.start()
        for i, name in enumerate("ab"):
            process = await bench.process(i)
            assert process.task.out.endswith(f"/{name}")
            process.say("done", summary={})
            process.end()
            await bench.until(bench.runner.latest(100)[i])
        await bench.runner.stop()

    run(before())
    run(after())


def test_a_name_in_use_is_refused_with_the_difference(place: Path) -> None:
    async def story() -> None:
        bench = Bench(place)
        job = bench.submit("a", beta="fixed:0.3")
        assert bench.submit("a", beta="fixed:0.3") == job
        with pytest.raises(ApiError) as taken:
            bench.submit("a", beta="auto", shards=job.request["shards"][:2])
        assert (taken.value.status, taken.value.code) == (409, "name_taken")
        assert "beta: fixed:0.3 there, auto now" in taken.value.message
        assert "shards: 1 of 3 there are not named now, 0 are new" in taken.value.message
        with failed("job_active", ApiError):
            bench.runner.forget(job.id)
        await bench.runner.cancel(job.id)
        bench.runner.forget(job.id)
        assert bench.runner.latest(100) == []
        with pytest.raises(ApiError) as unknown:
            bench.runner.current(job.id)
        assert (unknown.value.status, unknown.value.code) == (404, "unknown_job")
        assert bench.submit("a", beta="auto").name == "a"

    run(story())


def test_what_changed_under_a_waiting_job_fails_it(place: Path) -> None:
    async def story() -> None:
        bench = Bench(place)
        wrong = bench.submit("wrong", classes="cifar10", classes_digest="of another list")
        moved = bench.submit("moved")
        (place / "shards" / "x-00.tar").unlink()
        (place / "shards" / "x-00.tar").symlink_to("/etc/passwd")
        await bench.runner.start()
        for job in (wrong, moved):
            assert "is not below the folders" in str((await bench.until(job)).error)
        (place / "shards" / "x-00.tar").unlink()
        wrong = bench.submit(
            "wrong", shards=wrong.request["shards"], classes="cifar10", classes_digest="of another list"
        )
        assert "the class set cifar10 has changed" in str((await bench.until(wrong)).error)
        assert bench.started == []
        await bench.runner.stop()

    run(story())


def test_events_replay_the_last_state_and_beat_and_end(place: Path) -> None:
    async def story() -> None:
        bench = Bench(place)
        await bench.runner.start()
        job = bench.submit("a")
        process = await bench.process(0)
        for text in ("one", "two"):
            process.say("note", text=text)
        state = await bench.until(job, lambda job: len(job.progress.notes) == 2)
        numbers = [note.number for note in state.progress.notes]
        events = bench.runner.events(job.id, numbers[0], asyncio.Event(), heartbeat=0.001)
        seen: list[JobEvent | None] = [await anext(events) for _ in range(3)]
        assert [(e.kind, e.note) if e else None for e in seen] == [("note", "two"), ("progress", None), None]
        assert seen[1] is not None
        assert seen[1].number == numbers[1]
        process.say("done", summary={})
        process.end()
        rest = [event.kind async for event in events if event is not None]
        assert rest[-1] == "done"
        late = [event async for event in bench.runner.events(job.id, 0, asyncio.Event())]
        assert [e.kind for e in late if e] == ["note", "note", "done"]
        closing = asyncio.Event()
        other = bench.submit("b")
        stream = bench.runner.events(other.id, 0, closing)
        await anext(stream)
        closing.set()
        assert [event.kind async for event in stream if event] in ([], ["progress"])
        await bench.runner.stop()

    run(story())


def test_a_real_job_cancelled_half_way_goes_on_when_asked_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATE_FILE", str(place / "gate"))

    async def story() -> None:
        bench = Bench(place, GATED)
        await bench.runner.start()
        job = bench.submit("a")
        half = await bench.until(job, lambda job: job.progress.shards_done == 1)
        assert half.state == "running"
        cancelled = await bench.runner.cancel(job.id)
        assert (cancelled.state, cancelled.summary) == ("cancelled", None)
        written = (place / "jobs" / "a" / "x-00.parquet").stat().st_mtime_ns
        assert not (place / "jobs" / "a" / "x-02.parquet").exists()
        (place / "gate").touch()
        done = await bench.until(bench.submit("a"))
        assert (done.state, done.progress.shards_before, done.progress.shards_done) == ("done", 1, 2)
        assert (place / "jobs" / "a" / "x-00.parquet").stat().st_mtime_ns >= written
        await bench.runner.stop()

    run(story())


def test_a_real_crash_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRASH_FILE", str(place / "crash"))
    (place / "crash").write_text("xx")

    async def story() -> None:
        bench = Bench(place, CRASHING)
        await bench.runner.start()
        failed = await bench.until(bench.submit("a"))
        assert (failed.state, failed.error) == ("failed", "the job's process was killed by SIGKILL (attempt 2)")
        await bench.runner.stop()

    run(story())


def test_a_model_that_cannot_be_loaded_says_why_at_once(place: Path) -> None:
    async def story() -> None:
        bench = Bench(place, "python:tests.fakes:Nothing")
        await bench.runner.start()
        failed = await bench.until(bench.submit("a"))
        assert (failed.state, failed.attempts) == ("failed", 0)
        assert "Nothing" in str(failed.error)
        await bench.runner.stop()

    run(story())


def test_the_process_ends_with_its_server(place: Path) -> None:
    environment = {**os.environ, "GATE_FILE": str(place / "gate"), "OMP_NUM_THREADS": "1"}
    task = Task(
        out=str(place / "out"),
        shards=[str(place / "shards" / f"x-{i:02d}.tar") for i in range(3)],
        settings=AnnotateSettings(model=GATED, beta=BETA, workers=0).to_dict(),
        classes=None,
    )
    pipe = subprocess.PIPE
    with subprocess.Popen(command(), stdin=pipe, stdout=pipe, env=environment, cwd=ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(task.line())
        process.stdin.flush()
        for line in process.stdout:
            if b'"shard"' in line:
                break
        process.stdin.close()  # as the system does for a server that was killed
        assert process.wait(60) == ORPHANED
    assert (place / "out" / "x-00.parquet").exists()
    assert not (place / "out" / "x-01.parquet").exists()
