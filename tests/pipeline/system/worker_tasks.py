"""Work for worker processes, which import this module: it imports little."""

import os
import signal
import time
from pathlib import Path

LARGE = 150 << 20  # bytes
_kept: list[bytes] = []


def work(task: str) -> int:
    """Do what the task says; give the process id."""
    if task == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if task == "hang":
        time.sleep(3600)
    if task == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if task == "raise":
        raise ValueError("no such thing")
    if task == "grow":
        _kept.append(b"x" * LARGE)
    return os.getpid()


def is_ctrl_c_blocked(_: int) -> bool:
    """Whether this process was started with Ctrl-C blocked; nothing in it changes that."""
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def die_while_starting(folder: Path, times: int) -> None:
    """Kill the first `times` processes that come here."""
    for i in range(times):
        try:
            (folder / str(i)).touch(exist_ok=False)
        except FileExistsError:
            continue
        os.kill(os.getpid(), signal.SIGKILL)
