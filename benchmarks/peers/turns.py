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


def processor_seconds() -> float:
    """Of this process and of the children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def serve(work: Callable[[str], object]) -> None:
    """Do `work(argument)` for each line on stdin; answer with its seconds of the clock and of the processor.

    Peers print too, so an answer has a mark.
    """
    print(f"{MARK} ready", flush=True)
    for line in sys.stdin:
        clock, processor = time.perf_counter(), processor_seconds()
        work(line.strip())
        took = {"wall": time.perf_counter() - clock, "cpu": processor_seconds() - processor}
        print(MARK, json.dumps(took), flush=True)


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
