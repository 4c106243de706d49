"""The record of jobs: what goes in comes out, from any thread, after a restart, and never twice under one name."""

import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from noisegate.service.api.jobs import JobAnswer, answer
from noisegate.service.jobs.store import JobProgress, JobStore, NoRecord, Note
from tests.errors import refused


@pytest.fixture
def store(tmp_path: Path) -> JobStore:
    return JobStore(tmp_path / "jobs" / "jobs.sqlite")


def test_a_job_comes_back_as_it_was_put_in(store: JobStore, tmp_path: Path) -> None:
    job = store.add("café-1", {"shards": ["/data/ü.tar"], "k": None})
    progress = JobProgress(2, 5, 3, 100, 60, 24, 1, "x-3", 7, (Note(6, "β = 0.2"),))
    changed = store.update(job.id, state="running", progress=progress, attempts=1, started="now")
    assert (job.state, job.attempts, job.summary) == ("queued", 0, None)
    assert changed == replace(job, state="running", progress=progress, attempts=1, started="now")
    done = store.update(job.id, state="done", summary={"samples": 3}, error=None)
    store.close()
    again = JobStore(tmp_path / "jobs" / "jobs.sqlite")
    assert again.get(job.id) == again.named("café-1") == done
    assert again.get("other") is None


def test_the_order_is_that_of_arrival_and_a_name_is_taken_once(store: JobStore) -> None:
    jobs = [store.add(name, {}) for name in ("b", "a", "c")]
    assert store.latest(100) == jobs
    assert [store.latest(2), store.latest(2, skip=2), store.latest(2, skip=3)] == [jobs[1:], jobs[:1], []]
    assert (store.count(), store.names("queued"), store.names("done")) == (3, ["b", "a", "c"], [])
    store.update(jobs[1].id, state="running")
    assert [job.name for job in store.in_state("queued")] == ["b", "c"]
    assert [job.name for job in store.in_state("queued", "running")] == ["b", "a", "c"]
    with pytest.raises(KeyError, match="a"):
        store.add("a", {})
    store.delete(jobs[1].id)
    with pytest.raises(KeyError):
        store.update(jobs[1].id, state="done")
    assert store.add("a", {}).name == "a"
    assert [job.name for job in store.latest(100)] == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("name", "../../x"),
        ("request", "{"),
        ("request", "[]"),
        ("request", '{"shards": 3}'),
        ("state", "odd"),
        ("progress", '{"notes": 1}'),
        ("progress", '{"notes": [], "samples": "many"}'),
        ("summary", "3"),
        ("created", b"\xff"),
    ],
)
def test_a_damaged_row_is_a_failed_job_and_the_others_are_listed(store: JobStore, column: str, value: object) -> None:
    good, bad = store.add("good", {}), store.add("bad", {})
    store._db.execute(f"update jobs set {column} = ? where id = ?", [value, bad.id])
    first, second = store.latest(100)
    assert first == good
    assert (second.id, second.state) == (bad.id, "failed")
    assert "damaged" in str(second.error) and "/" not in second.name
    assert answer(second)["request"]["shards"] == []
    JobAnswer.model_validate(answer(second))
    assert store.in_state("queued") == [good]


def test_what_cannot_be_written_is_told_and_leaves_the_record_as_it_was(store: JobStore) -> None:
    job = store.add("a", {})
    store._db.execute("pragma max_page_count=1")  # as small as it can be made: the disk is full
    with pytest.raises(NoRecord) as error:
        store.update(job.id, error="x" * 100_000)
    assert (error.value.status, error.value.code, error.value.retry_after) == (503, "no_record", 30)
    store._db.execute("pragma max_page_count=1000000")
    assert store.latest(100) == [job]
    assert store.update(job.id, attempts=1).attempts == 1


def test_twenty_threads_at_once(store: JobStore) -> None:
    job = store.add("counted", {})
    problems: list[BaseException] = []

    def work(i: int) -> None:
        try:
            mine = store.add(f"job-{i}", {"i": i})
            for step in range(10):
                store.update(mine.id, attempts=step)
                store.get(job.id)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert sorted(job.attempts for job in store.latest(100)) == [0] + [9] * 20


def test_share_of_the_bytes() -> None:
    assert JobProgress().share is None
    assert JobProgress(bytes_todo=200, bytes_done=50).share == 0.25
    assert JobProgress(bytes_todo=200, bytes_done=999).share == 1


def test_records_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is no database, whatever else it may be" * 50)
    with refused("jobs_folder", tmp_path / "text"):
        JobStore(tmp_path / "text")
    JobStore(tmp_path / "later").close()
    with sqlite3.connect(tmp_path / "later") as db:
        db.execute("pragma user_version=9")
    with refused("jobs_folder", tmp_path / "later"):
        JobStore(tmp_path / "later")
