"""All settings of a training run in one checked object, from YAML, from `a.b=c` words, or from Python.

`TrainConfig.parse` checks each value by itself; `checks.check_config` then checks them against files, tables and devices. An
error is one line: the setting, the value given, and one that works.
"""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from noisegate.pipeline.errors import ConfigError

from .methods import Method, method_class
from .targets import target_config


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def _to_tuple(value: Any) -> Any:
    return (str(value),) if isinstance(value, str | Path) else value


Shards = Annotated[tuple[str, ...], BeforeValidator(_to_tuple)]
"""one pattern, or several"""


Decay = Annotated[float, Field(ge=0, lt=1)]


class DataConfig(_Section):
    """Training data, and the data that the task is measured on."""

    shards: Shards = ()
    """webdataset tars as `noisegate annotate` takes them; empty: those that the table lists"""
    table: Path | None = None
    where: str | None = None
    batch_size: int = Field(default=256, ge=2)
    """of all devices together; loop.accumulate batches make one update"""
    workers: int = Field(default=0, ge=0)
    sampler: str = "auto"
    """window, sequential, or m_per_class:4; auto: m_per_class:4 for image_retrieval, else window"""
    window_shards: int = Field(default=8, ge=1)
    captions: str = "one"
    text_field: str | None = None
    label_field: str | None = None
    label_column: Literal["refined_label", "predicted_label"] | None = None
    """the table's column to learn in place of the given class: refined_label is the label after the table's repair"""
    image_part: Literal["npy"] | None = None
    """npy: features of the part npy in place of pictures"""
    max_mismatch: float = Field(default=0.0, ge=0, lt=1)
    cache: Path | None = None
    keep_decoded: bool = False
    """keep decoded pictures in memory, for small data and a target with augment: {crop: null}"""
    eval_shards: Shards = ()
    eval_table: Path | None = None
    eval_captions: str | None = None
    """as captions, for the evaluation data; None: the same"""
    eval_batch_size: int = Field(default=256, ge=1)

    def read_options(self, task: str) -> dict[str, Any]:
        """Return options of `WeightedShards` that say which parts of each sample a task reads."""
        captions = "one" if task != "retrieval" else "read" if self.captions == "one" else self.captions
        names = ("image_part", "text_field", "label_field", "cache")
        return {"label": task != "retrieval", "captions": captions, **{name: getattr(self, name) for name in names}}

    def training_options(self, task: str) -> dict[str, Any]:
        """Return `read_options` of the training data, whose labels may be a column of the table."""
        options = self.read_options(task)
        return {**options, "label": self.label_column or options["label"]}


class TaskConfig(_Section):
    """The task to learn and measure."""

    name: Literal["retrieval", "classification", "image_retrieval"] = "retrieval"
    monitor: str = "auto"
    """the figure by which the best weights are chosen; auto: rsum, accuracy or map_at_r"""
    options: dict[str, Any] = Field(default_factory=dict)
    """options of the evaluation, such as folds: 5"""


class OptimizerConfig(_Section):
    """The optimiser. Norms, biases and the logit scale never decay."""

    name: Literal["adamw", "adam", "sgd"] = "adamw"
    lr: float = Field(default=1e-5, gt=0, allow_inf_nan=False)
    weight_decay: float = Field(default=0.2, ge=0)
    betas: tuple[Decay, Decay] = (0.9, 0.98)
    eps: float = Field(default=1e-6, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    nesterov: bool = False


class ScheduleConfig(_Section):
    """The learning rate: linear warm-up, then as `name` says."""

    name: Literal["cosine", "constant", "step"] = "cosine"
    warmup: int = Field(default=0, ge=0)
    """updates"""
    floor: float = Field(default=0.0, ge=0, le=1)
    """end of the cosine, as a share of optimizer.lr"""
    every: int = Field(default=10, ge=1)
    """step: epochs between multiplications by `factor`"""
    factor: float = Field(default=0.1, gt=0, le=1)


class LoopConfig(_Section):
    """Settings of the training loop."""

    epochs: int = Field(default=5, ge=1)
    max_steps: int | None = Field(default=None, ge=1)
    """stop after this many updates, for a trial"""
    accumulate: int = Field(default=1, ge=1)
    """batches per update; negatives come from one batch only, so this differs from a larger batch"""
    clip: float | None = Field(default=1.0, gt=0)
    """largest norm of each network's gradient"""
    ema: float | None = Field(default=None, gt=0, lt=1)
    """decay of a moving average of the weights, which is then evaluated and saved as best"""
    patience: int | None = Field(default=None, ge=1)
    """stop after this many evaluations without a better figure"""
    evaluate_every: int = Field(default=1, ge=0)
    """epochs; 0: never, and the last weights are the best"""
    save_every: int | None = Field(default=None, ge=1)
    """updates between checkpoints to resume from, beside the one after each epoch"""
    nan_limit: int = Field(default=0, ge=0)
    """batches with a nan or infinite loss to skip before giving up"""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    devices: int = Field(default=1, ge=1)
    nodes: int = Field(default=1, ge=1)
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    deterministic: bool = False


class LoggingConfig(_Section):
    """Settings of the logs."""

    every: int = Field(default=10, ge=1)
    """updates between lines of log.jsonl"""
    tensorboard: bool = True


class TrainConfig(_Section):
    """A whole training run.

    `target` and `method` are checked by the class of their `name`, in trainers.targets and trainers.methods.
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
    """folder of numbered runs"""
    seed: int = Field(default=0, ge=0, le=2**62)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> TrainConfig:
        """Check a tree of values; raise ConfigError for the first mistake."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise _config_error(error, cls) from error

    def to_yaml(self) -> str:
        """As YAML, for the run folder."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def read_config(
    source: str | Path | Mapping[str, Any] | None = None,
    settings: Iterable[str] = (),
    flags: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Read values of a YAML file or tree, changed by flags, then by words such as `optimizer.lr=1e-4`; not checked yet.

    >>> read_config(settings=["optimizer.lr=1e-4", "data.shards=[a.tar, b.tar]"])
    {'optimizer': {'lr': 0.0001}, 'data': {'shards': ['a.tar', 'b.tar']}}
    """
    values = copy.deepcopy(dict(source)) if isinstance(source, Mapping) else _read_yaml(source) if source else {}
    for name, value in {**(flags or {}), **parse_settings(settings)}.items():
        _set_value(values, name, value)
    return values


def merge_trees(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a tree of settings in which the values of `changes` replace its own.

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
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError.of("config", str(path), f"cannot be read: {error.strerror}; give a YAML file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError.of("config", str(path), f"is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict | None):
        raise ConfigError.of("config", str(path), "is no mapping; it starts for example with: data:")
    return values or {}


def _set_value(values: dict[str, Any], name: str, value: Any) -> None:
    """Set `a.b.c` in a tree, adding missing sections."""
    section = values
    *above, last = name.split(".")
    for i, step in enumerate(above):
        if section.get(step) is None:
            section[step] = {}
        if not isinstance(section[step], dict):
            problem = f"--set {name}: {'.'.join(above[: i + 1])} is {section[step]!r}, with no settings of its own"
            raise ConfigError(problem, "set", name)
        section = section[step]
    section[last] = value


def parse_settings(settings: Iterable[str]) -> dict[str, Any]:
    """Parse `a.b=c` words by name, with values read as YAML: numbers, lists, true, null.

    >>> parse_settings(["loop.ema=0.99", "data.where=similarity > 0.2", "loop.clip=null"])
    {'loop.ema': 0.99, 'data.where': 'similarity > 0.2', 'loop.clip': None}
    """
    values = {}
    for word in settings:
        name, sign, text = word.partition("=")
        if not sign or not name.strip():
            raise ConfigError(f"--set {word!r}: write NAME=VALUE, for example --set optimizer.lr=1e-4", "set", word)
        values[name.strip()] = _parse_value(text.strip())
    return values


def _parse_value(text: str) -> Any:
    try:
        return float(text) if _is_number(text) and not text.lstrip("+-").isdigit() else yaml.safe_load(text)
    except yaml.YAMLError:
        return text  # such as the pattern {0..9}.tar


def _is_number(text: str) -> bool:
    """Return whether a text is a finite number; YAML reads 1e-4 as text."""
    try:
        float(text)
    except ValueError:
        return False
    return text.lower().lstrip("+-") not in ("nan", "inf", "infinity")


def build_method(config: TrainConfig) -> Method:
    """Build the method that `config.method` describes; raise ConfigError for unknown settings."""
    kind = method_class(config.method)
    try:
        checked = kind.Config.model_validate(config.method)
    except ValidationError as error:
        raise _config_error(error, kind.Config, "method") from error
    return kind(checked, config.task.name)


def resolve_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's whole configuration as a tree, with all defaults of method and target; raise ConfigError for mistakes.

    >>> tree = resolve_settings({"method": {"name": "npc"}, "target": {"name": "dual", "features": 8}})
    >>> tree["method"]["threshold"], tree["target"]["regions"], tree["loop"]["epochs"]
    (0.9, 36, 5)
    """
    config = TrainConfig.parse(values)
    resolved: dict[str, Any] = config.model_dump(mode="json")
    resolved["method"] = build_method(config).config.model_dump(mode="json")
    if config.target:
        resolved["target"] = target_config(config.target).model_dump(mode="json")
    return resolved


_INSTANCE = re.compile(r" or instance of \w+")
"""pydantic's words for a Python object, which no file can hold"""


def _config_error(error: ValidationError, kind: type[BaseModel], prefix: str = "") -> ConfigError:
    """Make an error for the first mistake, with the nearest known name or an example."""
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
        return ConfigError(f"{name} is no setting; {hint}", name, first.get("input"))
    field = model.model_fields.get(parts[depth]) if depth < len(parts) else None
    example = ""
    if field is not None and not field.is_required():
        default = field.get_default(call_default_factory=True)
        setting = ".".join([prefix, *parts[: depth + 1]] if prefix else parts[: depth + 1])
        sample = field.examples[0] if field.examples else default
        example = "" if sample in ({}, (), None) else f", for example {setting}={_to_yaml(sample)}"
    message = _INSTANCE.sub("", first["msg"][0].lower() + first["msg"][1:])
    return ConfigError(f"{name}={_to_yaml(first.get('input'))}: {message}{example}", name, first.get("input"))


def _to_yaml(value: Any) -> str:
    """Format a value on one line of YAML."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, str | int | float | bool | list | dict | None):
        text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=1_000, sort_keys=False)
        return text.removesuffix("\n").removesuffix("\n...")
    return str(value)
