"""Telling people how far a job is: a bar with rate and time left on a terminal, one line per shard in a log."""

import sys
import time
from typing import Protocol

__all__ = ["Bar", "Lines", "Progress", "Silent", "counted", "progress_for"]


class Progress(Protocol):
    """What a job reports. Sizes are bytes of shards, because the number of samples is not known beforehand."""

    def start(self, todo: int, size: int, done: int) -> None:
        """`todo` shards of `size` bytes are to be scored, `done` are already."""
        ...

    def advance(self, samples: int, size: int) -> None:
        """Some more samples are encoded; `size` is how many bytes of their shard they took."""
        ...

    def shard(self, name: str, samples: int, failed: int) -> None:
        """A shard's table is written."""
        ...

    def note(self, text: str) -> None:
        """Something the user should see."""
        ...

    def stop(self) -> None:
        """Nothing more will come."""
        ...


class Silent:
    """Says nothing."""

    def start(self, todo: int, size: int, done: int) -> None: ...
    def advance(self, samples: int, size: int) -> None: ...
    def shard(self, name: str, samples: int, failed: int) -> None: ...
    def note(self, text: str) -> None: ...
    def stop(self) -> None: ...


class Lines(Silent):
    """Plain lines on standard error, for logs."""

    def __init__(self) -> None:
        self._samples, self._shards, self._todo, self._began = 0, 0, 0, time.monotonic()

    def start(self, todo: int, size: int, done: int) -> None:
        self._todo, self._began = todo, time.monotonic()
        self.note(f"{todo} shards to score, {done} done already, {size / 1e6:,.1f} MB to read")

    def shard(self, name: str, samples: int, failed: int) -> None:
        self._shards += 1
        self._samples += samples
        rate = self._samples / max(time.monotonic() - self._began, 1e-9)
        self.note(f"[{self._shards}/{self._todo}] {name}: {samples:,} samples, {failed:,} failed, {rate:,.0f}/s")

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class Bar:
    """A bar on the terminal's standard error."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self._console = Console(stderr=True)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%  {task.fields[samples]:,} samples  {task.fields[rate]:,.0f}/s"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._samples, self._shards, self._todo, self._began = 0, 0, 0, time.monotonic()

    def start(self, todo: int, size: int, done: int) -> None:
        self._todo, self._began = todo, time.monotonic()
        if todo:
            self._bar.start()
            self._task = self._bar.add_task(f"shard 1/{todo}", total=size, samples=0, rate=0.0)

    def advance(self, samples: int, size: int) -> None:
        self._samples += samples
        rate = self._samples / max(time.monotonic() - self._began, 1e-9)
        self._bar.update(self._task, advance=size, samples=self._samples, rate=rate)

    def shard(self, name: str, samples: int, failed: int) -> None:
        self._shards += 1
        self._bar.update(self._task, description=f"shard {min(self._shards + 1, self._todo)}/{self._todo}")

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def stop(self) -> None:
        self._bar.stop()


def progress_for(quiet: bool = False) -> Progress:
    """A bar where somebody looks, lines where something records."""
    if quiet:
        return Silent()
    return Bar() if sys.stderr.isatty() else Lines()


def counted(number: int, noun: str, several: str = "") -> str:
    """As people say it.

    >>> counted(1, "batch", "batches"), counted(2_000, "epoch")
    ('1 batch', '2,000 epochs')
    """
    return f"{number:,} {noun if number == 1 else several or f'{noun}s'}"
