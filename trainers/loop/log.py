"""The log of a training run: log.jsonl and TensorBoard."""

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from noisegate.pipeline.system import write_atomically

Values = Mapping[str, float | int | str]


class TrainLog:
    """Writer of log.jsonl and TensorBoard. A line has `kind`, `batch` (batches so far, of all epochs) and seconds.

    A resumed run removes the lines after its checkpoint, because it writes them again: lines after `batch`, and the evaluation
    at `batch` unless it was `measured` before the checkpoint.
    """

    def __init__(self, file: Path, tensorboard: Path | None, batch: int = 0, measured: bool = True) -> None:
        self._began = time.monotonic()
        _cut_log(file, batch, measured)
        self._file = file.open("a", encoding="utf-8")
        self._writer: Any = None
        if tensorboard is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(tensorboard), purge_step=batch + 1)

    def write(self, kind: str, batch: int, values: Values) -> None:
        """Write one line; numbers go to TensorBoard as kind/name."""
        line: dict[str, Any] = {"kind": kind, "batch": batch, **values}
        line |= {name: None for name, value in values.items() if isinstance(value, float) and not math.isfinite(value)}
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
    """Read the lines of a log, or of one kind; an incomplete last line is left out."""
    if not file.exists():
        return []
    lines = []
    for text in file.read_text(encoding="utf-8").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue  # the process was killed while it wrote this line
        if kind is None or line["kind"] == kind:
            lines.append(line)
    return lines


def _cut_log(file: Path, batch: int, measured: bool) -> None:
    kept = [
        line
        for line in read_log(file)
        if line["batch"] < batch or (line["batch"] == batch and (measured or line["kind"] != "eval"))
    ]
    write_atomically(file, "".join(json.dumps(line) + "\n" for line in kept).encode())
