"""The numbered folder of a training run.

runs/007-osa/
  config.yaml            all settings, resolved
  log.jsonl              one line per logged update, evaluation and event
  tensorboard/
  best.safetensors       weights with the best figure; best-1.safetensors of a second network
  last.safetensors       weights after the last whole epoch
  state.safetensors      everything that --resume needs
  open_clip/             the best weights in open_clip's format (target clip)
  result.json            written when the run is over
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system import write_atomically, writing_to
from noisegate.trainers.config import TrainConfig, read_config

_NUMBER = re.compile(r"([0-9]+)-.*")


class TrainFolder:
    """Paths of the files in a run's folder."""

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
        """The `best` or `last` weights of one network."""
        return self.path / (f"{which}.safetensors" if network == 0 else f"{which}-{network}.safetensors")

    def networks(self, which: str) -> list[Path]:
        """The existing files of `best` or `last`, one per network."""
        paths = [self.weights(which)]
        while self.weights(which, len(paths)).exists():
            paths.append(self.weights(which, len(paths)))
        return [path for path in paths if path.exists()]

    def write_config(self, config: TrainConfig) -> None:
        write_atomically(self.config_file, config.to_yaml().encode())

    def read_config(self) -> dict[str, Any]:
        """The resolved settings; raise ConfigError if the folder is no training run."""
        if not self.config_file.is_file():
            raise ConfigError(
                f"{self.path} is no training run (no {self.config_file.name}); give a folder such as runs/001-osa",
                "run",
                str(self.path),
            )
        return read_config(self.config_file)

    def write_result(self, result: Mapping[str, Any]) -> None:
        write_atomically(self.result_file, (json.dumps(result, indent=1) + "\n").encode())


def make_run_folder(out: Path, name: str) -> TrainFolder:
    """Make the next numbered folder below `out`; runs that start at the same time get different ones."""
    with writing_to(out):
        while True:
            taken = [int(match[1]) for path in out.iterdir() if (match := _NUMBER.fullmatch(path.name))]
            path = out / f"{max(taken, default=0) + 1:03d}-{name}"
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return TrainFolder(path)
