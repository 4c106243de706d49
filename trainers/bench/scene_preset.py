"""Presets of drawn scenes: task, noise rates, methods and seeds that a bench compares, and one training set-up for all."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from noisegate.pipeline.errors import ConfigError, did_you_mean
from noisegate.trainers.config import merge_trees

ORACLE = "oracle"
"""`select` with the truth in place of the table's `clean`: the result of a perfect table"""
PASSES = "passes"
"""NAME@passes makes as many passes over its own samples as plain training over all, instead of as many updates"""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Figure(_Part):
    """The main figure of those that the task measures."""

    name: str
    label: str
    divide: float = Field(default=1.0, gt=0)


class SceneData(_Part):
    """Scenes to draw, and the noise to add."""

    train: int = Field(ge=10)
    held_out: int = Field(ge=10)
    size: int = Field(default=64, ge=16)
    seed: int = 11
    protocol: Literal["shuffle-captions", "symmetric"] = "shuffle-captions"


class ScenePreset(_Part):
    """One table of results. `config` is a tree for `TrainConfig`; `settings` change it for single methods.

    Every method makes about `updates` updates: those that train on fewer samples see them more often. NAME@passes is
    the exception; any other NAME@WORD is the method with the `settings` of that whole name on top.
    """

    name: str
    summary: str
    task: Literal["retrieval", "classification", "image_retrieval"]
    figure: Figure
    data: SceneData
    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    methods: tuple[str, ...]
    updates: int = Field(ge=1)
    config: dict[str, Any]
    settings: dict[str, dict[str, Any]] = Field(default_factory=dict)
    quick: dict[str, Any] = Field(default_factory=dict)

    def with_changes(self, **changes: Any) -> "ScenePreset":
        """A copy with other rates, seeds, methods or settings; None keeps a value."""
        values = {name: value for name, value in changes.items() if value is not None}
        return _validate(merge_trees(self.model_dump(), values), self.name)

    def quick_version(self) -> "ScenePreset":
        """The small version that runs in minutes."""
        return self.with_changes(**self.quick)


def preset_names() -> list[str]:
    """Names of the presets of drawn scenes."""
    names = [entry.name for entry in files("noisegate.trainers.bench").joinpath("presets").iterdir()]
    return sorted(name.removesuffix(".yaml") for name in names if name.startswith("scenes-") and name.endswith(".yaml"))


def load_preset(name: str) -> ScenePreset:
    """A preset by name, or from a YAML file with the changes to one of them (`base: scenes-retrieval`)."""
    if not is_file_name(name):
        return _validate(_read_preset(name), name)
    try:
        given = yaml.safe_load(Path(name).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError.of("preset", name, f"cannot be read: {error}") from error
    if not isinstance(given, dict) or "base" not in given:
        raise ConfigError.of("preset", name, f"does not say what it changes; begin it with base: {preset_names()[-1]}")
    changes = {key: value for key, value in given.items() if key != "base"}
    return _validate(merge_trees(_read_preset(str(given["base"])), {"name": Path(name).stem, **changes}), name)


def is_file_name(name: str) -> bool:
    """Whether a preset is given as a file.

    >>> [is_file_name(name) for name in ("scenes-retrieval", "mine.yaml")]
    [False, True]
    """
    return name.endswith((".yaml", ".yml"))


def _read_preset(name: str) -> dict[str, Any]:
    known = preset_names()
    if name not in known:
        raise ConfigError.of("preset", name, f"is unknown; use {', '.join(known)}{did_you_mean(name, known)}")
    tree: dict[str, Any] = yaml.safe_load(
        files("noisegate.trainers.bench").joinpath("presets", f"{name}.yaml").read_text(encoding="utf-8")
    )
    return tree


def _validate(values: Mapping[str, Any], name: str) -> ScenePreset:
    try:
        return ScenePreset.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(f"preset {name}: {place}: {first['msg']}", place, first.get("input")) from error


def rate_name(rate: float) -> str:
    """A noise rate as part of a file name, in percent.

    >>> rate_name(0.2)
    '20'
    """
    return f"{100 * rate:g}"


def check_methods(preset: ScenePreset, known: Sequence[str]) -> None:
    """Raise ConfigError for a method, or a variant of one, that does not exist."""
    for name in preset.methods:
        plain, _, variant = name.partition("@")
        if plain not in (*known, ORACLE):
            there = (*known, ORACLE)
            raise ConfigError(
                f"method {name!r} is unknown; use {', '.join(there)}{did_you_mean(plain, there)}", "methods", name
            )
        if variant and variant != PASSES and name not in preset.settings:
            variants = [f"{plain}@{PASSES}", *(one for one in preset.settings if one.startswith(f"{plain}@"))]
            raise ConfigError(
                f"method {name!r}: preset {preset.name} has no such variant; use {', '.join(variants)}", "methods", name
            )
