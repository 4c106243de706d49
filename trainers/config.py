"""All settings of a training run as one checked object, from YAML, from `a.b=c` words, or from Python.

Reading it loads nothing; `check` then asks everything that can be asked without reading a shard or building a network.
A setting that cannot work is one line: its name, the value given, and one that works.
"""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from noisegate.pipeline.errors import ConfigError

if TYPE_CHECKING:
    from .methods import Method

__all__ = [
    "DataConfig",
    "LoggingConfig",
    "LoopConfig",
    "OptimizerConfig",
    "ScheduleConfig",
    "TaskConfig",
    "TrainConfig",
    "build_method",
    "merge_trees",
    "parse_settings",
    "read_config",
]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def _listed(value: Any) -> Any:
    return (str(value),) if isinstance(value, str | Path) else value


Shards = Annotated[tuple[str, ...], BeforeValidator(_listed)]
"""one pattern, or several"""


Decay = Annotated[float, Field(ge=0, lt=1)]


class DataConfig(_Section):
    """Training data, and the data that the task is measured on."""

    shards: Shards = ()
    """webdataset tars as `noisegate annotate` takes them; empty: those that the table names"""
    table: Path | None = None
    where: str | None = None
    batch_size: int = Field(default=256, ge=2)
    """of all devices together, and of one step; with loop.accumulate so many batches make one update"""
    workers: int = Field(default=0, ge=0)
    sampler: str = "auto"
    """window, sequential, or m_per_class:4; auto: m_per_class:4 for image_retrieval, else window"""
    window_shards: int = Field(default=8, ge=1)
    captions: str = "one"
    text_field: str | None = None
    label_field: str | None = None
    image_part: Literal["npy"] | None = None
    """npy: features of the part npy in place of pictures"""
    max_mismatch: float = Field(default=0.0, ge=0, lt=1)
    cache: Path | None = None
    keep_decoded: bool = False
    """hold decoded pictures in memory, for small data and a target with augment: {crop: null}"""
    eval_shards: Shards = ()
    eval_table: Path | None = None
    eval_captions: str | None = None
    """as captions, for the evaluation data; None: the same"""
    eval_batch_size: int = Field(default=256, ge=1)


class TaskConfig(_Section):
    """What is learnt, and measured after each epoch."""

    name: Literal["retrieval", "classification", "image_retrieval"] = "retrieval"
    monitor: str = "auto"
    """the figure that decides what is best; auto: rsum, accuracy or map_at_r"""
    options: dict[str, Any] = Field(default_factory=dict)
    """of the task's own evaluation, such as folds: 5"""


class OptimizerConfig(_Section):
    """Norms, biases and the logit scale never decay."""

    name: Literal["adamw", "adam", "sgd"] = "adamw"
    lr: float = Field(default=1e-5, gt=0, allow_inf_nan=False)
    weight_decay: float = Field(default=0.2, ge=0)
    betas: tuple[Decay, Decay] = (0.9, 0.98)
    eps: float = Field(default=1e-6, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    nesterov: bool = False


class ScheduleConfig(_Section):
    """The learning rate's course: up in a line over the warm-up, then as `name` says."""

    name: Literal["cosine", "constant", "step"] = "cosine"
    warmup: int = Field(default=0, ge=0)
    """updates"""
    floor: float = Field(default=0.0, ge=0, le=1)
    """where the cosine ends, as a share of optimizer.lr"""
    every: int = Field(default=10, ge=1)
    """step: multiply by `factor` every so many epochs"""
    factor: float = Field(default=0.1, gt=0, le=1)


class LoopConfig(_Section):
    """How training proceeds."""

    epochs: int = Field(default=5, ge=1)
    max_steps: int | None = Field(default=None, ge=1)
    """stop after so many updates, for a trial"""
    accumulate: int = Field(default=1, ge=1)
    """batches per update; each has negatives of its own only, so this is not the same as a larger batch"""
    clip: float | None = Field(default=1.0, gt=0)
    """largest norm of each network's gradient"""
    ema: float | None = Field(default=None, gt=0, lt=1)
    """decay of a moving average of the weights, which is then evaluated and saved as best"""
    patience: int | None = Field(default=None, ge=1)
    """stop after so many evaluations without a better figure"""
    evaluate_every: int = Field(default=1, ge=0)
    """epochs; 0: never, and the last weights are the best"""
    save_every: int | None = Field(default=None, ge=1)
    """updates between checkpoints to resume from, beside the one after each epoch"""
    nan_limit: int = Field(default=0, ge=0)
    """batches whose loss is no number to skip before giving up"""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    devices: int = Field(default=1, ge=1)
    nodes: int = Field(default=1, ge=1)
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    deterministic: bool = False


class LoggingConfig(_Section):
    """What is written down."""

    every: int = Field(default=10, ge=1)
    """updates between lines of log.jsonl"""
    tensorboard: bool = True


class TrainConfig(_Section):
    """A whole training run.

    `target` and `method` are checked by the class that their `name` names: trainers.targets, trainers.methods.
    """

    data: DataConfig = DataConfig()
    target: dict[str, Any] = Field(default_factory=dict, examples=[{"name": "clip", "model": "ViT-B-32"}])
    method: dict[str, Any] = Field(default_factory=lambda: {"name": "baseline"})
    task: TaskConfig = TaskConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    loop: LoopConfig = LoopConfig()
    logging: LoggingConfig = LoggingConfig()
    out: Path = Path("runs")
    """each run gets a numbered folder of its own below"""
    seed: int = Field(default=0, ge=0, le=2**62)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> TrainConfig:
        """Check a tree of values; the first mistake is a ConfigError of one line."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError(_one_line(error, cls)) from error

    def to_yaml(self) -> str:
        """The resolved copy that a run folder keeps."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def read_config(
    source: str | Path | Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
    flags: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The values of a YAML file or of a tree, changed by flags, then by words such as `optimizer.lr=1e-4`; not checked yet.

    >>> read_config(settings=["optimizer.lr=1e-4", "data.shards=[a.tar, b.tar]"])
    {'optimizer': {'lr': 0.0001}, 'data': {'shards': ['a.tar', 'b.tar']}}
    """
    values = copy.deepcopy(dict(source)) if isinstance(source, Mapping) else _read_yaml(source) if source else {}
    for name, value in {**(flags or {}), **parse_settings(settings)}.items():
        _put(values, name, value)
    return values


def merge_trees(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a tree of settings in which those of `changes` replace its own.

    >>> merge_trees({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    """
    merged = dict(tree)
    for name, value in changes.items():
        own = merged.get(name)
        merged[name] = merge_trees(own, value) if isinstance(own, Mapping) and isinstance(value, Mapping) else value
    return merged


def _read_yaml(path: str | Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"config {path} cannot be read: {error.strerror}; give a YAML file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"config {path} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict | None):
        raise ConfigError(f"config {path} is no mapping; it starts for example with: data:")
    return found or {}


def _put(values: dict[str, Any], name: str, value: Any) -> None:
    """Set `a.b.c` in a tree, making what is missing on the way."""
    place = values
    *above, last = name.split(".")
    for i, step in enumerate(above):
        if place.get(step) is None:
            place[step] = {}
        if not isinstance(place[step], dict):
            raise ConfigError(
                f"--set {name}: {'.'.join(above[: i + 1])} is {place[step]!r}, with no settings of its own"
            )
        place = place[step]
    place[last] = value


def parse_settings(settings: Iterable[str]) -> dict[str, Any]:
    """`a.b=c` words by name, their values read as YAML: numbers, lists, true, null.

    >>> parse_settings(["loop.ema=0.99", "data.where=similarity > 0.2", "loop.clip=null"])
    {'loop.ema': 0.99, 'data.where': 'similarity > 0.2', 'loop.clip': None}
    """
    found = {}
    for word in settings:
        name, sign, text = word.partition("=")
        if not sign or not name.strip():
            raise ConfigError(f"--set {word!r}: write NAME=VALUE, for example --set optimizer.lr=1e-4")
        found[name.strip()] = _value(text.strip())
    return found


def _value(text: str) -> Any:
    try:
        return float(text) if _is_number(text) and not text.lstrip("+-").isdigit() else yaml.safe_load(text)
    except yaml.YAMLError:
        return text  # a pattern such as {0..9}.tar is a text


def _is_number(text: str) -> bool:
    """YAML takes 1e-4 for a text."""
    try:
        float(text)
    except ValueError:
        return False
    return text.lower().lstrip("+-") not in ("nan", "inf", "infinity")


def build_method(config: TrainConfig) -> Method:
    """The method that `config.method` describes; raises ConfigError for settings that it does not know."""
    from .methods import method_class

    kind = method_class(config.method)
    try:
        checked = kind.Config.model_validate(config.method)
    except ValidationError as error:
        raise ConfigError(_one_line(error, kind.Config, "method")) from error
    return kind(checked, config.task.name)


_INSTANCE = re.compile(r" or instance of \w+")
"""pydantic's word for an object of Python, which no file holds"""


def _one_line(error: ValidationError, kind: type[BaseModel], prefix: str = "") -> str:
    """The first thing that is wrong, with the nearest known name or an example."""
    first = error.errors()[0]
    parts = [str(part) for part in first["loc"]]
    name = ".".join([prefix, *parts] if prefix else parts)
    model, depth = kind, 0
    while depth < len(parts) - 1 and parts[depth] in model.model_fields:
        inner = model.model_fields[parts[depth]].annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            break
        model, depth = inner, depth + 1
    if first["type"] == "extra_forbidden":
        known = list(model.model_fields)
        near = difflib.get_close_matches(parts[-1], known, 1, 0.5)
        stem = name.rpartition(".")[0]
        hint = f"did you mean {f'{stem}.' if stem else ''}{near[0]}?" if near else f"known are {', '.join(known)}"
        return f"{name} is no setting; {hint}"
    field = model.model_fields.get(parts[depth]) if depth < len(parts) else None
    example = ""
    if field is not None and not field.is_required():
        default = field.get_default(call_default_factory=True)
        setting = ".".join([prefix, *parts[: depth + 1]] if prefix else parts[: depth + 1])
        shown = field.examples[0] if field.examples else default
        example = "" if shown in ({}, ()) else f", for example {setting}={_shown(shown)}"
    message = _INSTANCE.sub("", first["msg"][0].lower() + first["msg"][1:])
    return f"{name}={_shown(first.get('input'))}: {message}{example}"


def _shown(value: Any) -> str:
    """As one would write it in YAML."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, str | int | float | bool | list | dict | None):
        text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=1_000, sort_keys=False)
        return text.removesuffix("\n").removesuffix("\n...")
    return str(value)
