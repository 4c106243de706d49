"""The numbered folder of a training run, and interruptions of a run: signals and a full disk.

runs/007-osa/
  config.yaml            all settings, resolved
  log.jsonl              one line per logged update, evaluation and event
  tensorboard/
  best.safetensors       weights with the best figure; best-1.safetensors of a second network
  last.safetensors       weights after the last whole epoch
  state.safetensors      everything that --resume needs
  open_clip/             the best weights in open_clip's format (target clip)
  hf/                    the best weights in transformers' format (target hf)
  result.json            written when the run is over
"""

import errno
import json
import os
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from noisegate.pipeline.errors import ConfigError, NoisegateError, StoppedError
from noisegate.pipeline.system import write_atomically, writing_to
from noisegate.trainers.config import TrainConfig, read_config

_NUMBER = re.compile(r"([0-9]+)-.*")


class TrainFolder:
    """Paths of the files in a run's folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.yaml"
        self.log_file = self.path / "log.jsonl"
        self.tensorboard = self.path / "tensorboard"
        self.state_file = self.path / "state.safetensors"
        self.result_file = self.path / "result.json"
        self.open_clip = self.path / "open_clip"

    def weights(self, which: str, network: int = 0) -> Path:
        """Return the file of the `best` or `last` weights of one network."""
        return self.path / (f"{which}.safetensors" if network == 0 else f"{which}-{network}.safetensors")

    def networks(self, which: str) -> list[Path]:
        """List the existing files of `best` or `last`, one per network."""
        paths = [self.weights(which)]
        while self.weights(which, len(paths)).exists():
            paths.append(self.weights(which, len(paths)))
        return [path for path in paths if path.exists()]

    def write_config(self, config: TrainConfig) -> None:
        write_atomically(self.config_file, config.to_yaml().encode())

    def read_config(self) -> dict[str, Any]:
        """Read the resolved settings; raise ConfigError if the folder is not a training run."""
        if not self.config_file.is_file():
            problem = f"{self.path} is no training run (no {self.config_file.name}); give a folder such as runs/001-osa"
            raise ConfigError(problem, "run", str(self.path))
        return read_config(self.config_file)

    def write_result(self, result: Mapping[str, Any]) -> None:
        write_atomically(self.result_file, (json.dumps(result, indent=1) + "\n").encode())


def make_run_folder(out: Path, name: str) -> TrainFolder:
    """Make the next numbered folder below `out`; runs that start at the same time get different folders."""
    with writing_to(out):
        while True:
            taken = [int(match[1]) for path in out.iterdir() if (match := _NUMBER.fullmatch(path.name))]
            path = out / f"{max(taken, default=0) + 1:03d}-{name}"
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return TrainFolder(path)


# --- interrupts: Ctrl-C and SIGTERM stop after a checkpoint, a second Ctrl-C or a full disk at once --------------------

STOPPING = b"\nstopping as soon as this batch or evaluation is done, after a checkpoint; once more stops at once\n"


class StopRequest:
    """Whether the user asked to stop. Unless `quiet`, the request is confirmed on standard error."""

    def __init__(self, quiet: bool = True) -> None:
        self.asked, self._quiet = False, quiet

    def ask(self, number: int = signal.SIGINT, frame: FrameType | None = None) -> None:
        """Ask to stop; a signal handler."""
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.asked and not self._quiet:
            with suppress(OSError):
                os.write(2, STOPPING)  # not print: the signal may interrupt another print
        self.asked = True


@contextmanager
def stop_on_signals(quiet: bool = True) -> Iterator[StopRequest]:
    """Yield a request that SIGINT and SIGTERM set; outside the main thread Python allows no signal handlers."""
    request = StopRequest(quiet)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def explain_interrupts(folder: TrainFolder) -> Iterator[None]:
    """Turn a full disk or a second Ctrl-C into a message that says how to resume."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise StoppedError(f"at once; {_next_step(folder)}") from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        problem = f"no space left for {folder.path}; free some, and {_next_step(folder)}"
        raise NoisegateError(problem, "out", str(folder.path)) from error


def _next_step(folder: TrainFolder) -> str:
    if not folder.state_file.exists():
        return "start anew: there is no checkpoint yet"
    return f"go on from the last checkpoint with: noisegate train --resume {folder.path}"
