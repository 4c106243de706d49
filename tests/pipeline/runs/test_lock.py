"""One job per folder, held by a real process, freed however that process ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from noisegate.pipeline.errors import LockedError
from noisegate.pipeline.runs.lock import folder_lock

HOLDER = """
import sys
from pathlib import Path
from noisegate.pipeline.runs.lock import folder_lock
with folder_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that holds the lock on `tmp_path` until its standard input is closed."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_another_process_is_told_who_holds_it(tmp_path: Path, holder: "subprocess.Popen[str]") -> None:
    message = rf"out {tmp_path} is being written by process {holder.pid} on {os.uname().nodename}; .*another"
    with pytest.raises(LockedError, match=message), folder_lock(tmp_path):
        pass


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_holder_that_dies_frees_it(tmp_path: Path, holder: "subprocess.Popen[str]", how: signal.Signals) -> None:
    holder.send_signal(how)
    holder.wait(10)
    with folder_lock(tmp_path):
        assert (tmp_path / "_lock").read_text().startswith(f"process {os.getpid()} on ")


def test_a_holder_that_ends_frees_it(tmp_path: Path, holder: "subprocess.Popen[str]") -> None:
    holder.communicate("")
    assert (tmp_path / "_lock").read_text() == ""
    with folder_lock(tmp_path):
        pass


def test_it_is_freed_after_an_error_and_not_held_twice_in_one_process(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), folder_lock(tmp_path):
        raise ZeroDivisionError
    with folder_lock(tmp_path), pytest.raises(LockedError, match=f"process {os.getpid()}"), folder_lock(tmp_path):
        pass


def test_the_folder_is_made(tmp_path: Path) -> None:
    with folder_lock(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b" / "_lock").exists()
