"""A server that is killed, or stopped, in the middle of a job: started again, the job ends with the bytes of `annotate`."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.commands import command, run_noisegate
from tests.fakes import pairs, write_tar
from tests.jobs import files_of
from tests.service.jobs.models import GATED

BETA = "fixed:0.4"


@contextmanager
def server(place: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """`noisegate serve` and its URL; whatever is left of it at the end is killed."""
    flags = ("--model", GATED, "--beta", BETA, "--jobs-folder", place / "jobs", "--root", place / "data", "--port", "0")
    with subprocess.Popen(**command("serve", *flags), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if "listens on" in line)
            yield process, next(word for word in line.split() if word.startswith("http://"))
        finally:
            process.kill()


def events(url: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(event, data) of a job as they arrive."""
    with httpx.stream("GET", url, timeout=60) as stream:
        kind = ""
        for line in stream.iter_lines():
            name, _, value = line.partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                yield kind, json.loads(value)


def job_processes(place: Path) -> set[int]:
    """Processes on Linux that run a job of this test: those that hold its folder's lock open."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(str(place / "jobs" / "corpus") in str(link.readlink()) for link in folder.iterdir()):
                found.add(int(folder.parent.name))
        except OSError:  # another user's, or gone
            continue
    return found


def wait_for_end(pids: set[int], clock: "subprocess.Popen[Any]") -> None:
    for _ in range(20_000):
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return
        try:
            clock.wait(0.001)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError(f"{pids} outlived their server")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks for processes as Linux lists them")
def test_killed_and_stopped_in_the_middle_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path.resolve()
    shards = [write_tar(place / "data" / f"x-{i:02d}.tar", pairs(6, 10 * i)) for i in range(4)]
    gate = place / "gate"
    monkeypatch.setenv("GATE_FILE", str(gate))
    gate.touch()
    plain = run_noisegate(
        "annotate", *shards, "--out", place / "plain", "--model", GATED, "--beta", BETA, "--workers", "0"
    )
    assert plain.returncode == 0, plain.stderr
    gate.unlink()

    with server(place) as (process, url):
        request = {"name": "corpus", "shards": ["x-*.tar"], "beta": BETA}
        answer = httpx.post(f"{url}/v1/jobs", json=request, timeout=60)
        assert answer.status_code == 202, answer.text
        path = answer.headers["location"]
        half = next(data for _, data in events(f"{url}{path}/events") if data.get("progress", {}).get("shards_done"))
        assert half["state"] == "running"
        working = job_processes(place)
        assert len(working) == 1
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as clock:
            wait_for_end(working, clock)
            clock.communicate()
    written = {path.name for path in (place / "jobs" / "corpus").glob("*.parquet")}
    assert written == {"x-00.parquet"}

    with server(place) as (process, url):  # it goes on by itself, to the gate; stopped in order this time
        stream = events(f"{url}{path}/events")
        reached = ((p["shards_before"], p["shards_done"]) for _, data in stream if (p := data.get("progress")))
        assert (1, 1) in reached
        working = job_processes(place)
        process.send_signal(signal.SIGTERM)
        assert [kind for kind, _ in stream if kind == "done"] == []  # the stream ends, the job does not
        assert process.wait(60) == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in working)

    gate.touch()
    with server(place) as (process, url):
        kind, job = list(events(f"{url}{path}/events"))[-1]
        assert (kind, job["state"], job["error"]) == ("done", "done", None)
        assert job["progress"]["shards_before"] == 2
        assert job["summary"]["samples"] == 24
        assert "corpus" in [run["name"] for run in httpx.get(f"{url}/v1/runs", timeout=60).json()["runs"]]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert files_of(place / "jobs" / "corpus") == files_of(place / "plain")
