"""Measure a trained target on held-out shards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators import Device

from .config import DataConfig, TaskConfig, TrainConfig, merge_trees
from .data import WeightedShards
from .loop.run_folder import TrainFolder
from .targets import Target, as_one, load_target
from .tasks import TASKS, check_task

IMAGE_FIELDS = ("image_id", "image_sha256")
"""fields that identify the rows of one image"""
PROBE = "a picture of two red circles"
"""a text by which tokenizers are compared, beside their vocabularies"""


@dataclass(frozen=True)
class ModelFigures:
    """The measured weights, the data, and the figures in percent."""

    weights: list[str]
    task: str
    shards: list[str]
    figures: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {"weights": self.weights, "task": self.task, "shards": self.shards, **self.figures}


def evaluation_data(data: DataConfig, task: str, target: Target) -> WeightedShards:
    """Open the evaluation shards in order, every row once."""
    options = data.read_options(task)
    if task == "retrieval":
        captions = data.eval_captions or (f"{data.captions}:all" if data.captions.count(":") == 1 else data.captions)
        options |= {"captions": captions, "text": target.tokenizer, "fields": IMAGE_FIELDS}
    try:
        return WeightedShards(
            data.eval_shards,
            data.eval_table,
            **options,
            batch_size=data.eval_batch_size,
            image=target.image_transform(False),
            sampler="sequential",
            workers=data.workers,
        )
    except ConfigError as error:
        problem = f"cannot be used: {error}; give others with --eval-shards (train) or --shards (evaluate-model)"
        raise ConfigError.of("data.eval_shards", data.eval_shards, problem) from error


def measure(target: Target, data: WeightedShards, task: TaskConfig) -> dict[str, float]:
    """Measure a target by the task's figures."""
    evaluate, _ = TASKS[task.name]
    data.load_state_dict({"epoch": 0, "batch": 0})
    return evaluate(target, data, **task.options)


def evaluate_model(
    source: str | Path | Sequence[str | Path],
    shards: str | Sequence[str] | None = None,
    *,
    which: str = "best",
    task: str | None = None,
    device: str = "auto",
    settings: Mapping[str, Any] | None = None,
) -> ModelFigures:
    """Measure a run (its `best` or `last` weights) or a weights file; for several, average their similarities.

    Several models must read the same pictures and tokens, like SGR and SAF trained on the same data; all have equal weight.
    `shards` are the evaluation shards, by default those of the first run; `settings` changes data and task options (`{"data":
    {"eval_captions": …}, "task": {"options": {"folds": 5}}}`).
    """
    sources = [Path(source)] if isinstance(source, str | Path) else [Path(one) for one in source]
    if not sources:
        raise ConfigError("source: none is given; give a run's folder, such as runs/001-osa", "source", ())
    found = [_find_weights(path, which) for path in sources]
    values = found[0][1]
    for section, changes in (settings or {}).items():
        values[section] = {**values.get(section, {}), **changes}
    if shards is not None:
        values = merge_trees(values, {"data": {"eval_shards": [shards] if isinstance(shards, str) else list(shards)}})
    if task is not None:
        values = merge_trees(values, {"task": {"name": task}})
    config = TrainConfig.parse(values)
    check_task(config.task.name, config.task.options)
    if not config.data.eval_shards:
        raise ConfigError("shards: nothing to measure on; give --shards 'held-out/*.tar'", "shards", None)
    targets = [as_one([load_target(file) for file in files]) for files, _ in found]
    for path, other in zip(sources[1:], targets[1:], strict=True):
        _require_same_inputs(targets[0], other, path)
    target = as_one(targets).to(torch.device(Device.choose(device).name))
    data = evaluation_data(config.data, config.task.name, target)
    try:
        figures = measure(target, data, config.task)
    finally:
        data.close()
    weights = [str(file) for files, _ in found for file in files]
    return ModelFigures(weights, config.task.name, list(config.data.eval_shards), figures)


def _find_weights(path: Path, which: str) -> tuple[list[Path], dict[str, Any]]:
    """Find the weights files of a run or a file, and the run's configuration if there is one."""
    if not path.exists():
        problem = "is not there; give a run's folder, such as runs/001-osa, or a weights file of one"
        raise ConfigError.of("source", str(path), problem)
    if path.is_dir():
        folder = TrainFolder(path)
        files = folder.networks(which)
        if not files:
            problem = f"has no {which}.safetensors yet; train until the end of an epoch, or use which=last"
            raise ConfigError(f"{path} {problem}", "which", which)
        return files, folder.read_config()
    has_config = (path.parent / "config.yaml").is_file()
    return [path], TrainFolder(path.parent).read_config() if has_config else {}


def _require_same_inputs(one: Target, other: Target, path: Path) -> None:
    """Raise ConfigError if two targets would turn the same samples into different inputs."""
    for what, same in (
        ("pictures or features", one.image_transform(False) == other.image_transform(False)),
        ("words", _describe_words(one) == _describe_words(other)),
        ("classes", (one.classes and one.classes.names) == (other.classes and other.classes.names)),
    ):
        if not same:
            problem = f"reads other {what} than the first; evaluate together what was trained on the same data"
            raise ConfigError.of("source", str(path), problem)


def _describe_words(target: Target) -> list[Any]:
    """Return a value that is equal if two tokenizers give the same tokens."""
    return [target.tokenizer([PROBE]).tolist(), *(getattr(target.tokenizer, name, None) for name in ("words", "ids"))]
