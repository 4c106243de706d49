"""Two programs take turns: each loads once, then does its work whenever it is asked to, and says what that took.

`serve` is the side of a peer; it runs in the peer's environment, so it imports nothing but the standard library.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

MARK = "turns:"


def descendants() -> dict[int, list[str]]:
    """Living children of this process, their children and so on, by id: the fields of /proc/ID/stat after the name."""
    found: dict[int, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            found[int(path.parent.name)] = path.read_text().rpartition(") ")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # it has ended since
            continue

    def is_below(pid: int) -> bool:
        parent = int(found[pid][1])
        return parent == os.getpid() or (parent in found and is_below(parent))

    return {pid: fields for pid, fields in found.items() if is_below(pid)}


def child_seconds() -> float:
    """Processor seconds of all processes below this one, ended or alive, workers of a fork server among them."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks = sum(
        int(field) for fields in descendants().values() for field in fields[11:15]
    )  # own, and of ended children
    return ended.ru_utime + ended.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


def processor_seconds() -> float:
    """Of this process and of all below it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime + child_seconds()


def serve(work: Callable[[str], object]) -> None:
    """Do `work(argument)` for each line on stdin; answer with its seconds of the clock and of the processor.

    Where it returns a dict, that is added to the answer. Peers print too, so an answer has a mark.
    """
    print(f"{MARK} ready", flush=True)
    for line in sys.stdin:
        clock, processor = time.perf_counter(), processor_seconds()
        more = work(line.strip())
        took = {"wall": time.perf_counter() - clock, "cpu": processor_seconds() - processor}
        print(MARK, json.dumps(took | more if isinstance(more, dict) else took), flush=True)


class Side:
    """A program that serves: started, warm, and asked by `go`."""

    def __init__(self, command: Sequence[str | Path], environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        self._process = subprocess.Popen(
            [str(part) for part in command],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
        )
        self._answer()

    def go(self, argument: str | Path) -> dict[str, float]:
        """Seconds of the clock (`wall`) and of the processor (`cpu`) that the work took."""
        assert self._process.stdin is not None
        print(argument, file=self._process.stdin, flush=True)
        return dict(json.loads(self._answer()))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                return line.removeprefix(MARK).strip()
        raise SystemExit(f"{self._process.args}: it ended; its last words:\n{self._log.read_text()[-2000:]}")
