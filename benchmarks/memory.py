"""Peak memory of a program, for benchmarks that start one process for each figure."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["peak_mb", "peak_of_its_own_mb", "private_mb"]


def peak_mb() -> float:
    """Megabytes this program needed at most, from Linux; getrusage would also count what its parent had at the fork."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024


def private_mb(pid: int) -> float:
    """Megabytes that a process shares with no other; 0 for one that has ended."""
    try:
        pages = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, re.findall(r"Private_\w+:\s+(\d+) kB", pages))) / 1024


@contextmanager
def peak_of_its_own_mb() -> Iterator[list[float]]:
    """Megabytes a block needed at most beyond what was there, without pages of mapped files, looked at every 5 ms.

    The one number is in the list when the block has ended.
    """
    found, done = list[float](), threading.Event()
    before = _anonymous_mb()
    seen = [before]

    def watch() -> None:
        while not done.wait(0.005):
            seen.append(_anonymous_mb())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        done.set()
        watcher.join()
        found.append(max(seen) - before)


def _anonymous_mb() -> float:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.findall(r"RssAnon:\s+(\d+) kB", status)[0]) / 1024
