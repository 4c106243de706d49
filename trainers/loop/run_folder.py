"""The folder of a training run: numbered, so that none overwrites another.

runs/007-osa/
  config.yaml            all settings as they were resolved
  log.jsonl              one line per logged update, evaluation and event
  tensorboard/
  best.safetensors       weights with the best figure; best-1.safetensors of a second network
  last.safetensors       weights after the last whole epoch
  state.safetensors      everything that --resume needs
  open_clip/             the best weights as open_clip loads them (target clip)
  result.json            when the run is over
"""

import errno
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from noisegate.pipeline.errors import ConfigError, NoisegateError, StoppedError
from noisegate.pipeline.system.output_files import write_atomically, writing_to
from noisegate.trainers.config import TrainConfig, read_config

__all__ = ["TrainFolder", "new_run"]

_NUMBER = re.compile(r"([0-9]+)-.*")


class TrainFolder:
    """Names of the files in a run's folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def log_file(self) -> Path:
        return self.path / "log.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def state_file(self) -> Path:
        return self.path / "state.safetensors"

    @property
    def result_file(self) -> Path:
        return self.path / "result.json"

    @property
    def open_clip(self) -> Path:
        return self.path / "open_clip"

    def weights(self, which: str, network: int = 0) -> Path:
        """Of `best` or `last`."""
        return self.path / (f"{which}.safetensors" if network == 0 else f"{which}-{network}.safetensors")

    def networks(self, which: str) -> list[Path]:
        """The files of all networks of `best` or `last` that are there."""
        found = [self.weights(which)]
        while self.weights(which, len(found)).exists():
            found.append(self.weights(which, len(found)))
        return [path for path in found if path.exists()]

    def write_config(self, config: TrainConfig) -> None:
        write_atomically(self.config_file, config.to_yaml().encode())

    def read_config(self) -> dict[str, Any]:
        """The resolved settings; raises ConfigError where there are none."""
        if not self.config_file.is_file():
            raise ConfigError(
                f"{self.path} is no training run (no {self.config_file.name}); give a folder such as runs/001-osa"
            )
        return read_config(self.config_file)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """A full disk, or a second Ctrl-C, as a message that says how to go on."""
        try:
            yield
        except KeyboardInterrupt as error:
            raise StoppedError(f"at once; {self._next_step('')}") from error
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise NoisegateError(f"no space left for {self.path}; {self._next_step('free some, and ')}") from error

    def _next_step(self, before: str) -> str:
        if not self.state_file.exists():
            return f"{before}start anew: there is no checkpoint yet"
        return f"{before}go on from the last checkpoint with: noisegate train --resume {self.path}"

    def write_result(self, result: Mapping[str, Any]) -> None:
        write_atomically(self.result_file, (json.dumps(result, indent=1) + "\n").encode())


def new_run(out: Path, name: str) -> TrainFolder:
    """Make the next numbered folder below `out`; two runs that start at once get two."""
    with writing_to(out):
        while True:
            taken = [int(found[1]) for path in out.iterdir() if (found := _NUMBER.fullmatch(path.name))]
            path = out / f"{max(taken, default=0) + 1:03d}-{name}"
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return TrainFolder(path)
