"""Presets of benches: the schema of the files in presets/, and checks of the methods they name."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from noisegate.pipeline.errors import ConfigError, did_you_mean
from noisegate.trainers.config import merge_trees

from .pretraining import Pretraining

PRESETS = Path(__file__).resolve().parent / "presets"
P = TypeVar("P", bound=BaseModel)
ORACLE = "oracle"
"""`select` with the truth in place of the table's `clean`: the result of a perfect table"""
PASSES = "passes"
"""NAME@passes makes as many passes over its own samples as plain training over all, instead of as many updates"""


class PresetPart(BaseModel):
    """A part of a preset file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Figure(PresetPart):
    """The main figure among those that the task measures."""

    name: str
    label: str
    divide: float = Field(default=1.0, gt=0)


class SceneData(PresetPart):
    """Scenes to draw, and the noise to add."""

    train: int = Field(ge=10)
    held_out: int = Field(ge=10)
    size: int = Field(default=64, ge=16)
    seed: int = 11
    protocol: Literal["shuffle-captions", "symmetric"] = "shuffle-captions"


class ScenePreset(PresetPart):
    """One table of results. `config` is a tree for `TrainConfig`; `settings` change it for single methods.

    Every method makes about `updates` updates: a method that trains on fewer samples sees them more often. NAME@passes is the
    exception; any other NAME@WORD is the method plus the `settings` of that whole name. With `epochs` in place of `updates`
    each method makes that many passes over the samples that it trains on. `pretrain` gives all cells the same pretrained
    weights at the start.
    """

    name: str
    summary: str
    task: Literal["retrieval", "classification", "image_retrieval"]
    figure: Figure
    data: SceneData
    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    methods: tuple[str, ...]
    updates: int | None = Field(default=None, ge=1)
    epochs: int | None = Field(default=None, ge=1)
    pretrain: Pretraining | None = None
    config: dict[str, Any]
    settings: dict[str, dict[str, Any]] = Field(default_factory=dict)
    quick: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_budget(self) -> "ScenePreset":
        if (self.updates is None) == (self.epochs is None):
            raise ValueError("give updates or epochs, one of them")
        return self

    def with_changes(self, **changes: Any) -> "ScenePreset":
        """A copy with other rates, seeds, methods or settings; None keeps a value."""
        values = {name: value for name, value in changes.items() if value is not None}
        return check_preset(ScenePreset, merge_trees(self.model_dump(), values), self.name)

    def quick_version(self) -> "ScenePreset":
        """Return the small version, which runs in minutes."""
        return self.with_changes(**self.quick)


def preset_names() -> list[str]:
    """List the names of the presets of drawn scenes."""
    return sorted(path.stem for path in PRESETS.glob("scenes-*.yaml"))


def load_preset(name: str) -> ScenePreset:
    """Load a preset by name, or from a YAML file with changes to a preset (`base: scenes-retrieval`)."""
    if not is_file_name(name):
        return check_preset(ScenePreset, _read_preset(name), name)
    try:
        given = yaml.safe_load(Path(name).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError.of("preset", name, f"cannot be read: {error}") from error
    if not isinstance(given, dict) or "base" not in given:
        raise ConfigError.of("preset", name, f"does not say what it changes; begin it with base: {preset_names()[-1]}")
    changes = {key: value for key, value in given.items() if key != "base"}
    tree = merge_trees(_read_preset(str(given["base"])), {"name": Path(name).stem, **changes})
    return check_preset(ScenePreset, tree, name)


def is_file_name(name: str) -> bool:
    """Return whether a preset is given as a file.

    >>> [is_file_name(name) for name in ("scenes-retrieval", "mine.yaml")]
    [False, True]
    """
    return name.endswith((".yaml", ".yml"))


def _read_preset(name: str) -> dict[str, Any]:
    known = preset_names()
    if name not in known:
        raise ConfigError.of("preset", name, f"is unknown; use {', '.join(known)}{did_you_mean(name, known)}")
    return read_yaml(name)


def read_yaml(name: str) -> dict[str, Any]:
    """Read a file of presets/."""
    tree: dict[str, Any] = yaml.safe_load((PRESETS / f"{name}.yaml").read_text(encoding="utf-8"))
    return tree


def check_preset(kind: type[P], values: Mapping[str, Any], name: str) -> P:
    """Parse values as an object of `kind`; raise ConfigError for the first mistake."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        about = f"{place}: " if place else ""
        raise ConfigError(f"preset {name}: {about}{first['msg']}", place or "preset", first.get("input")) from error


def rate_name(rate: float) -> str:
    """Format a noise rate in percent as part of a file name.

    >>> rate_name(0.2)
    '20'
    """
    return f"{100 * rate:g}"


def check_methods(preset: ScenePreset, known: Sequence[str]) -> None:
    """Raise ConfigError for an unknown method, or unknown variant of a method."""
    for name in preset.methods:
        plain, _, variant = name.partition("@")
        if plain not in (there := (*known, ORACLE)):
            raise ConfigError.of("methods", name, f"is unknown; use {', '.join(there)}{did_you_mean(plain, there)}")
        if variant and variant != PASSES and name not in preset.settings:
            variants = [f"{plain}@{PASSES}", *(one for one in preset.settings if one.startswith(f"{plain}@"))]
            raise ConfigError.of("methods", name, f"is no variant of preset {preset.name}; use {', '.join(variants)}")


def assign_methods(
    presets: Sequence[ScenePreset], asked: Sequence[str], tasks: Mapping[str, Sequence[str]]
) -> list[list[str]]:
    """For each preset, list the requested methods that fit its task, and variants that it knows; `tasks` by method.

    Raise ConfigError for a method that no preset has.

    >>> presets = [load_preset("scenes-pretrained"), load_preset("scenes-pretrained-labels")]
    >>> tasks = {"baseline": ("retrieval", "classification"), "decl": ("retrieval",)}
    >>> assign_methods(presets, ["baseline", "decl"], tasks)
    [['baseline', 'decl'], ['baseline']]
    """

    def fits(preset: ScenePreset, name: str) -> bool:
        plain, _, variant = name.partition("@")
        known = variant in ("", PASSES) or name in preset.settings
        return known and preset.task in tasks.get("select" if plain == ORACLE else plain, ())

    for name in asked:
        if not any(fits(preset, name) for preset in presets):
            check_methods(presets[0].with_changes(methods=[name]), list(tasks))
            known = tasks[name.partition("@")[0]]
            problem = f"is for {' and '.join(known)}, not for the task of {', '.join(one.name for one in presets)}"
            raise ConfigError.of("methods", name, problem)
    return [[name for name in asked if fits(preset, name)] for preset in presets]
