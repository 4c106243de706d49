"""Finished runs by name: unknown ones, those of jobs, and what is held in memory."""

import threading
from pathlib import Path

import pytest

from noisegate.service.errors import ApiError
from noisegate.service.runs.against import FinishedRun
from noisegate.service.runs.catalogue import RunRegistry
from tests.errors import failed
from tests.fakes import pairs, write_tar
from tests.jobs import score


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_tar(tmp_path / "shards" / "x.tar", pairs(5))
    score(tmp_path / "shards", tmp_path / "run")
    return tmp_path / "run"


def test_names_of_settings_and_of_jobs() -> None:
    jobs = {"b": Path("jobs/b")}
    registry = RunRegistry({"a": Path("one"), "c": Path("two")}, lambda: jobs)
    assert registry.names() == ["a", "c", "b"]
    jobs["a"] = Path("jobs/a")
    jobs["d"] = Path("jobs/d")
    assert registry.names() == ["a", "c", "b", "d"]
    assert registry.path("a") == Path("one")
    assert registry.path("d") == Path("jobs/d")
    with pytest.raises(ApiError, match="there is no run 'e'; known are: a, c, b, d") as unknown:
        registry.path("e")
    assert (unknown.value.status, unknown.value.code) == (404, "unknown_run")


def test_a_run_is_read_once_until_it_changes(run: Path) -> None:
    registry = RunRegistry({"run": run})
    first = registry.load("run")
    assert registry.load("run") is first
    write_tar(run.parent / "shards" / "y.tar", pairs(3, 20))
    score(run.parent / "shards", run)
    second = registry.load("run")
    assert second is not first
    assert (len(first.rows), len(second.rows)) == (5, 8)


def test_only_the_last_few_stay_in_memory(run: Path, tmp_path: Path) -> None:
    read: list[str] = []

    def load(path: Path) -> FinishedRun:
        read.append(path.name)
        return FinishedRun.load(run)

    registry = RunRegistry({name: tmp_path / name for name in "abc"}, most=2, load=load)
    for name in "abacab":
        registry.load(name)
    assert read == ["a", "b", "c", "b"]


def test_many_threads_read_it_once(run: Path) -> None:
    read: list[Path] = []
    together = threading.Barrier(8)

    def load(path: Path) -> FinishedRun:
        read.append(path)
        return FinishedRun.load(path)

    registry = RunRegistry({"run": run}, load=load)
    found: list[FinishedRun] = []

    def ask() -> None:
        together.wait()
        found.append(registry.load("run"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read == [run]
    assert all(one is found[0] for one in found)


def test_a_run_that_cannot_be_read_is_tried_again(run: Path) -> None:
    registry = RunRegistry({"run": run})
    table = (run / "x.parquet").read_bytes()
    (run / "x.parquet").write_bytes(b"")
    with failed("damaged_run", ApiError):
        registry.load("run")
    (run / "x.parquet").write_bytes(table)
    assert len(registry.load("run").rows) == 5
