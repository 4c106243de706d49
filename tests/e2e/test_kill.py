"""A job that is killed again and again ends with the bytes of one that never was."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from noisegate.pipeline.datasets.scenes import write_scenes
from tests.commands import FAKE, command, run_noisegate
from tests.fakes import pairs, write_tar
from tests.jobs import files_of

SHARDS = 12


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kill")
    write_scenes(folder, 20 * SHARDS, SHARDS, seed=9, size=32)
    return folder


@pytest.fixture(scope="module")
def undisturbed(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    done = run_noisegate("annotate", shards, "--out", out, *FAKE, "--workers", "0")
    assert done.returncode == 0, done.stderr
    return files_of(out)


class Watch:
    """Counts the steps a run has taken: each shard's table appears when it is encoded and changes when it is scored."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._seen: set[tuple[str, int, int]] = set()

    def steps(self) -> int:
        if self._out.exists():
            with os.scandir(self._out) as entries:
                for entry in entries:
                    if entry.name.endswith(".parquet") and not entry.name.startswith("."):
                        self._look(entry)
        return len(self._seen)

    def _look(self, entry: "os.DirEntry[str]") -> None:
        try:
            stat = entry.stat()
        except FileNotFoundError:
            return  # replaced at this very moment
        self._seen.add((entry.name, stat.st_ino, stat.st_mtime_ns))


def _alive(process: "subprocess.Popen[Any]") -> bool:
    """Wait for the end for a millisecond, so that looking does not take the processor from those who work."""
    try:
        process.wait(0.001)
    except subprocess.TimeoutExpired:
        return True
    return False


def kill_when(arguments: tuple[object, ...], reached: Callable[[int], bool], looks: int) -> int:
    """Start the command and kill it `looks` looks after `reached` is true of its process id; its exit code."""
    with subprocess.Popen(**command(*arguments), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        while _alive(process) and not reached(process.pid):
            pass
        for _ in range(looks):
            _alive(process)
        process.send_signal(signal.SIGKILL)
        return process.wait(60)


def test_ten_kills_change_nothing(shards: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    """The kills are spread over encoding (the first SHARDS steps), learning β, and scoring (the other SHARDS)."""
    rng = np.random.default_rng(2024)
    out = tmp_path / "out"
    moments = [0, *sorted(rng.integers(1, 2 * SHARDS, 7).tolist()), SHARDS, 2 * SHARDS - 1]
    watch, codes, steps = Watch(out), [], []
    for i, moment in enumerate(sorted(moments)):
        workers = "1" if i == 2 else "0"
        arguments = ("annotate", shards, "--out", out, *FAKE, "--workers", workers)

        def reached(pid: int, moment: int = moment) -> bool:
            lock = out / "_lock"
            return watch.steps() >= moment and lock.exists() and f"process {pid} " in lock.read_text()

        codes.append(kill_when(arguments, reached, int(rng.integers(0, 10))))
        steps.append(watch.steps())
    assert codes == [-signal.SIGKILL] * 10
    assert min(steps) < SHARDS  # while encoding
    assert any(SHARDS < step < 2 * SHARDS for step in steps)  # while scoring
    done = run_noisegate("annotate", shards, "--out", out, *FAKE, "--workers", "0")
    assert done.returncode == 0, done.stderr
    assert files_of(out) == undisturbed


def test_a_kill_with_the_fast_decoder_changes_nothing(shards: Path, tmp_path: Path) -> None:
    """The embedded model, whose workers are forked from a server, killed while it encodes."""
    kept, out = tmp_path / "kept", tmp_path / "out"
    done = run_noisegate("annotate", shards, "--out", kept, "--workers", "1")
    assert done.returncode == 0, done.stderr
    watch, arguments = Watch(out), ("annotate", shards, "--out", out, "--workers", "1")
    assert kill_when(arguments, lambda pid: watch.steps() >= SHARDS // 2, 0) == -signal.SIGKILL
    assert SHARDS // 2 <= watch.steps() < 2 * SHARDS
    done = run_noisegate("annotate", shards, "--out", out, "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert files_of(out) == files_of(kept)


def children_of(pid: int) -> set[int]:
    """Worker processes, as Linux lists them by the thread that started them, and those that they started."""
    lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    own = {int(child) for text in lists for child in text.split()}
    return own.union(*(children_of(child) for child in own))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes as Linux lists them")
def test_a_kill_leaves_no_worker_behind(shards: Path, tmp_path: Path) -> None:
    out, watch = tmp_path / "out", Watch(tmp_path / "out")
    workers: set[int] = set()

    def reached(pid: int) -> bool:
        if watch.steps() < 1:
            return False
        workers.update(children_of(pid))
        return True

    kill_when(("annotate", shards, "--out", out, *FAKE, "--workers", "2"), reached, 0)
    assert len(workers) >= 2
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as clock:
        for _ in range(10_000):
            if not any(map(is_running, workers)):
                break
            _alive(clock)  # a millisecond
        clock.communicate(b"\n")
    assert not any(map(is_running, workers))


def ctrl_c(pid: int) -> None:
    os.killpg(pid, signal.SIGINT)  # as a terminal does: to the workers too


def sigterm(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)  # as `kill`, Docker and Kubernetes do


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("interrupt", [ctrl_c, sigterm])
def test_a_signal_says_how_to_go_on(
    shards: Path, undisturbed: dict[str, bytes], tmp_path: Path, interrupt: Callable[[int], None]
) -> None:
    out = tmp_path / "out"
    arguments = ("annotate", shards, "--out", out, *FAKE, "--workers", "1", "--json")
    start = command(*arguments)
    start["env"]["COLOUR_SECONDS"] = "1"  # the signal comes long before the end
    with subprocess.Popen(**start, stderr=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("[2/"):
                break
        interrupt(process.pid)
        printed, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert printed == ""
    assert "stopped: run the same command again, without --overwrite, and it goes on" in said
    assert "Traceback" not in said
    assert 2 <= len(list(out.glob("*.parquet"))) < SHARDS
    done = run_noisegate(*arguments)
    assert done.returncode == 0, done.stderr
    assert files_of(out) == undisturbed


def test_a_second_job_is_told_who_is_at_work(tmp_path: Path) -> None:
    big = write_tar(tmp_path / "x.tar", pairs(400))
    arguments = ("annotate", big, "--out", tmp_path / "out", *FAKE, "--workers", "0", "--beta", "fixed:0.4")
    lock = tmp_path / "out" / "_lock"
    with subprocess.Popen(**command(*arguments), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as first:
        while _alive(first) and not (lock.exists() and lock.read_text()):
            pass
        first.send_signal(signal.SIGSTOP)  # holds the lock for as long as the second needs to ask for it
        try:
            second = run_noisegate(*arguments)
        finally:
            first.send_signal(signal.SIGCONT)
        assert first.wait(60) == 0
    assert second.returncode == 2
    assert f"is being written by process {first.pid} on " in second.stderr
    assert second.stdout == ""
