"""What a run writes down and shows: log.jsonl, TensorBoard, and a bar on a terminal or lines in a log."""

import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from noisegate.pipeline.system.output_files import write_atomically

__all__ = ["Bar", "Display", "Lines", "Log", "Silent", "display_for", "read_log"]

Values = Mapping[str, float | int | str]


class Display(Protocol):
    """What people see while training goes on."""

    def epoch(self, number: int, of: int, batches: int, done: int) -> None:
        """Epoch `number` (from 1) begins, or goes on after `done` of its batches."""
        ...

    def batch(self, loss: float | None, rate: float) -> None:
        """A batch is done; no loss where it was skipped. `rate` is samples per second."""
        ...

    def note(self, text: str) -> None: ...

    def stop(self) -> None: ...


class Silent:
    """Says nothing."""

    def epoch(self, number: int, of: int, batches: int, done: int) -> None: ...
    def batch(self, loss: float | None, rate: float) -> None: ...
    def note(self, text: str) -> None: ...
    def stop(self) -> None: ...


class Lines(Silent):
    """Plain lines on standard error: about ten in an epoch."""

    def __init__(self) -> None:
        self._number = self._of = self._batches = self._done = 0

    def epoch(self, number: int, of: int, batches: int, done: int) -> None:
        self._number, self._of, self._batches, self._done = number, of, batches, done

    def batch(self, loss: float | None, rate: float) -> None:
        self._done += 1
        if self._done == self._batches or self._done % max(1, self._batches // 10) == 0:
            shown = "skipped" if loss is None else f"loss {loss:.4f}"
            self.note(
                f"epoch {self._number}/{self._of} batch {self._done}/{self._batches}: {shown}, {rate:,.0f} samples/s"
            )

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class Bar:
    """A bar for each epoch on the terminal's standard error."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}  {task.fields[shown]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task: TaskID | None = None

    def epoch(self, number: int, of: int, batches: int, done: int) -> None:
        if self._task is None:
            self._bar.start()
        else:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(f"epoch {number}/{of}", total=batches, completed=done, shown="")

    def batch(self, loss: float | None, rate: float) -> None:
        if self._task is not None:
            shown = "skipped" if loss is None else f"loss {loss:.4f}"
            self._bar.update(self._task, advance=1, shown=f"{shown}  {rate:,.0f}/s")

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def stop(self) -> None:
        self._bar.stop()


def display_for(quiet: bool) -> Display:
    """A bar where somebody looks, lines where something records."""
    if quiet:
        return Silent()
    return Bar() if sys.stderr.isatty() else Lines()


class Log:
    """log.jsonl and TensorBoard. Every line has `kind`, `batch` (batches so far, over all epochs) and seconds since the start.

    After a stop, lines that came after the checkpoint are taken out: they will be written again. Where it was made before
    the evaluation at its `batch`, and not `measured`, that line goes too.
    """

    def __init__(self, file: Path, tensorboard: Path | None, batch: int = 0, measured: bool = True) -> None:
        self._began = time.monotonic()
        _cut(file, batch, measured)
        self._file = file.open("a", encoding="utf-8")
        self._writer: Any = None
        if tensorboard is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(tensorboard), purge_step=batch + 1)

    def write(self, kind: str, batch: int, values: Values) -> None:
        """One line; numbers go to TensorBoard as kind/name."""
        line = {"kind": kind, "batch": batch, **{name: _plain(value) for name, value in values.items()}}
        line["seconds"] = round(time.monotonic() - self._began, 3)
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        if self._writer is not None:
            for name, value in values.items():
                if not isinstance(value, str):
                    self._writer.add_scalar(f"{kind}/{name}", value, batch)

    def close(self) -> None:
        self._file.close()
        if self._writer is not None:
            self._writer.close()


def read_log(file: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The lines of a log, or those of one kind; one that was not written to its end is left out."""
    if not file.exists():
        return []
    found = []
    for text in file.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue  # the writer was killed in the middle of its last line
        if kind is None or line["kind"] == kind:
            found.append(line)
    return found


def _cut(file: Path, batch: int, measured: bool) -> None:
    kept = [
        line
        for line in read_log(file)
        if line["batch"] < batch or (line["batch"] == batch and (measured or line["kind"] != "eval"))
    ]
    write_atomically(file, "".join(json.dumps(line) + "\n" for line in kept).encode())


def _plain(value: float | int | str) -> float | int | str | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value
