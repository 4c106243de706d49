"""Pretrain a network for a bench on clean scenes that no cell uses for training or evaluation."""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from noisegate.pipeline.datasets.scenes import write_scenes
from noisegate.pipeline.errors import StoppedError
from noisegate.pipeline.system import write_atomically
from noisegate.trainers.config import merge_trees

from .cells import STOPPED

FROM_SCRATCH_ONLY = ("architecture", "preprocess", "vocabulary")
"""settings of a target that come with pretrained weights"""


class Pretraining(BaseModel):
    """Clean scenes to draw and training settings, which override the preset's `config`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    train: int = Field(ge=10)
    seed: int = 1011
    """of the scenes, other than those of `data` and its held-out ones"""
    config: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class Pretrained:
    """Folder of the weights in open_clip's format, and their figures on the held-out scenes before any fine-tuning."""

    weights: Path
    figures: dict[str, float]

    def target(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return a preset's target that starts from these weights instead of random ones."""
        kept = {name: value for name, value in settings.items() if name not in FROM_SCRATCH_ONLY}
        return {**kept, "model": f"local-dir:{self.weights}"}


def pretrain(
    pretraining: Pretraining,
    config: Mapping[str, Any],
    task: str,
    size: int,
    held_out: Path,
    out: Path,
    note: Callable[[str], None],
) -> Pretrained:
    """Train a retrieval network by `config` on clean scenes of `size` pixels and measure it by `task`, unless already done."""
    from noisegate.trainers.train import train  # imports torch

    given = json.dumps([pretraining.model_dump(), config, size, held_out.name], sort_keys=True, default=str)
    folder = out / "data" / f"pretrained-{hashlib.sha256(given.encode()).hexdigest()[:12]}"
    weights, facts = folder / "open_clip", folder / f"{task}.json"
    if not facts.exists():  # written last
        note(f"pretraining on {pretraining.train:,} clean scenes")
        shutil.rmtree(folder, ignore_errors=True)
        write_scenes(folder / "scenes", pretraining.train, 4, pretraining.seed, size)
        settings: dict[str, Any] = {
            "data": {"shards": [str(folder / "scenes" / "*.tar")]},
            "method": {"name": "baseline"},
            "loop": {"evaluate_every": 0},
            "logging": {"every": 1_000_000, "tensorboard": False},
            "out": str(folder / "runs"),
        }
        trained = train(merge_trees(merge_trees(settings, config), pretraining.config), quiet=True)
        if trained.stopped:
            raise StoppedError(STOPPED)
        shutil.move(trained.folder / "open_clip", weights)
        shutil.rmtree(folder / "runs")
        figures = _measure(Pretrained(weights, {}).target(config["target"]), task, held_out)
        write_atomically(facts, (json.dumps(figures) + "\n").encode())
    return Pretrained(weights, json.loads(facts.read_text(encoding="utf-8")))


def _measure(target: dict[str, Any], task: str, held_out: Path) -> dict[str, float]:
    """Measure a target on the held-out scenes, whose folder also has the class names."""
    from noisegate.trainers.config import DataConfig, TaskConfig
    from noisegate.trainers.evaluate import evaluation_data, measure
    from noisegate.trainers.targets import build_target

    classes = {"classes": str(held_out / "classes.txt")} if task == "classification" else {}
    built = build_target({**target, **classes})
    data = evaluation_data(DataConfig(eval_shards=(str(held_out / "*.tar"),)), task, built)
    try:
        return measure(built, data, TaskConfig.model_validate({"name": task}))
    finally:
        data.close()
