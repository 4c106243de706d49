"""Report how far a job is: a bar with rate and time left on a terminal, plain lines in a log, or nothing."""

import sys
import time
from typing import TYPE_CHECKING

from .controls import show_controls
from .machine import format_size

if TYPE_CHECKING:
    from rich.progress import TaskID


class Progress:
    """The interface for progress of jobs; this base class prints nothing. All text goes to standard error.

    Jobs over shards call `start`, `advance` and `shard`, conversions `samples`, trainings `epoch` and `batch`.
    """

    def start(self, todo: int, size: int, done: int) -> None:
        """Begin: `todo` shards of `size` bytes are to be processed, `done` are finished. The number of samples is unknown."""

    def advance(self, samples: int, size: int) -> None:
        """Report that `samples` more are processed; they took `size` bytes of their shard."""

    def shard(self, name: str, samples: int, failed: int) -> None:
        """Report a finished shard."""

    def samples(self, done: int, total: int, shard: str | None = None) -> None:
        """Report that `done` of `total` samples are written; `shard` names a shard that is now complete."""

    def epoch(self, number: int, epochs: int, batches: int, done: int) -> None:
        """Report that epoch `number` (from 1) begins, or continues after `done` of its batches."""

    def batch(self, loss: float | None, rate: float) -> None:
        """Report a finished batch, with no loss if it was skipped; `rate` is samples per second."""

    def note(self, text: str) -> None:
        """Show a message to the user."""

    def stop(self) -> None:
        """End the display."""


class Lines(Progress):
    """Plain lines for logs: one per shard, about ten per epoch. `verb` and `failures` are the words for the job."""

    def __init__(self, verb: str = "score", failures: str = "failed") -> None:
        self._verb, self._failures = verb, failures
        self._samples = self._shards = self._todo = 0
        self._epoch, self._batches, self._batch = "", 0, 0
        self._began = time.monotonic()

    def start(self, todo: int, size: int, done: int) -> None:
        self._todo, self._began = todo, time.monotonic()
        already = f", {done} done already" if self._verb == "score" else ""
        amount = f", {format_size(size)} to read" if size else ""  # unknown if a table contains the pictures
        self.note(f"{counted(todo, 'shard')} to {self._verb}{already}{amount}")

    def shard(self, name: str, samples: int, failed: int) -> None:
        self._shards += 1
        self._samples += samples
        rate = self._samples / max(time.monotonic() - self._began, 1e-9)
        self.note(
            f"[{self._shards}/{self._todo}] {name}: {counted(samples, 'sample')}, {failed:,} {self._failures}, {rate:,.0f}/s"
        )

    def samples(self, done: int, total: int, shard: str | None = None) -> None:
        if shard:
            self.note(f"[{done:,}/{total:,}] {shard}")

    def epoch(self, number: int, epochs: int, batches: int, done: int) -> None:
        self._epoch, self._batches, self._batch = f"epoch {number}/{epochs}", batches, done

    def batch(self, loss: float | None, rate: float) -> None:
        self._batch += 1
        if self._batch == self._batches or self._batch % max(1, self._batches // 10) == 0:
            self.note(f"{self._epoch} batch {self._batch}/{self._batches}: {_loss(loss)}, {rate:,.0f} samples/s")

    def note(self, text: str) -> None:
        print(show_controls(text), file=sys.stderr, flush=True)


class Bar(Progress):
    """One bar on the terminal at a time: for all shards, for all samples, or for the current epoch."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self._console = Console(stderr=True)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task: TaskID | None = None
        self._samples = self._shards = self._todo = 0
        self._began = time.monotonic()

    def start(self, todo: int, size: int, done: int) -> None:
        self._todo, self._began = todo, time.monotonic()
        if todo:
            self._show(f"shard 1/{todo}", size, 0, "  0%  0 samples  0/s")

    def advance(self, samples: int, size: int) -> None:
        if self._task is not None:
            self._samples += samples
            rate = self._samples / max(time.monotonic() - self._began, 1e-9)
            self._bar.update(self._task, advance=size)
            percent = self._bar.tasks[-1].percentage
            self._bar.update(self._task, state=f"{percent:>3.0f}%  {self._samples:,} samples  {rate:,.0f}/s")

    def shard(self, name: str, samples: int, failed: int) -> None:
        self._shards += 1
        if self._task is not None:
            self._bar.update(self._task, description=f"shard {min(self._shards + 1, self._todo)}/{self._todo}")

    def samples(self, done: int, total: int, shard: str | None = None) -> None:
        if self._task is None:
            self._show("samples", total, done, "")
        else:
            self._bar.update(self._task, completed=done, total=total, state=f"{done:,}/{total:,}")

    def epoch(self, number: int, epochs: int, batches: int, done: int) -> None:
        self._show(f"epoch {number}/{epochs}", batches, done, f"{done:,}/{batches:,}")

    def batch(self, loss: float | None, rate: float) -> None:
        if self._task is not None:
            self._bar.update(self._task, advance=1)
            task = self._bar.tasks[-1]
            state = f"{task.completed:,.0f}/{task.total:,.0f}  {_loss(loss)}  {rate:,.0f}/s"
            self._bar.update(self._task, state=state)

    def note(self, text: str) -> None:
        self._console.print(show_controls(text), highlight=False, markup=False)

    def stop(self) -> None:
        self._bar.stop()

    def _show(self, description: str, total: int, completed: int, state: str) -> None:
        """Begin a new bar in place of the last one."""
        if self._task is None:
            self._bar.start()
        else:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(description, total=total, completed=completed, state=state)


def progress_for(quiet: bool = False, verb: str = "score", failures: str = "failed") -> Progress:
    """Choose a bar on a terminal, lines in a log, or nothing if `quiet`. `verb` and `failures` are words for `Lines`."""
    if quiet:
        return Progress()
    return Bar() if sys.stderr.isatty() else Lines(verb, failures)


def _loss(loss: float | None) -> str:
    return "skipped" if loss is None else f"loss {loss:.4f}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Format a number with its noun in singular or plural.

    >>> counted(1, "batch", "batches"), counted(2_000, "epoch")
    ('1 batch', '2,000 epochs')
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
