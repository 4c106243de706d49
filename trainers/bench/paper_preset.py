"""Set-ups and figures of the papers, read from YAML files.

`presets/NAME.yaml` describes one data set: how its shards are made from the usual download, which noise is added, and for each
set-up (a target with its optimiser) the settings of a training run and what each method changes. `presets/papers.yaml` holds
the reported figures. In commands SOURCE stands for the user's download, DATA for the folder of shards.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from noisegate.pipeline.errors import ConfigError, did_you_mean
from noisegate.trainers.config import merge_trees

FOLDER = Path(__file__).resolve().parent / "presets"
FIGURES = "papers.yaml"
DATA = "DATA"
MAIN_FIGURE = {"retrieval": "rsum", "classification": "accuracy", "image_retrieval": "map_at_r"}
Kind = TypeVar("Kind", bound="_Fact")


class _Fact(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PaperNoise(_Fact):
    """A protocol of `noisegate noise` with the rates of the papers, or `real`: the noise of the data itself."""

    protocol: str
    rates: tuple[float, ...] = ()
    options: dict[str, Any] = Field(default_factory=dict)


class PaperSetup(_Fact):
    """A target with its training settings, and what each method changes in them."""

    convert: tuple[str, ...]
    annotate: str | None = None
    """the command that makes DATA/tables, for methods that read one"""
    also_on: dict[str, str] = Field(default_factory=dict)
    """other evaluation shards by name"""
    notes: tuple[str, ...] = ()
    """what differs from the paper, or is not published"""
    config: dict[str, Any]
    methods: dict[str, dict[str, Any]]


class PaperPreset(_Fact):
    """One data set of the papers."""

    name: str
    summary: str
    task: Literal["retrieval", "classification", "image_retrieval"]
    noise: tuple[PaperNoise, ...]
    setups: dict[str, PaperSetup]

    def run_config(self, setup: str, method: str, data: str | Path = DATA) -> dict[str, Any]:
        """Settings of one run as a tree for `TrainConfig.parse`; `data` replaces DATA."""
        found = self.setups.get(setup)
        if found is None:
            raise ConfigError.of("setup", setup, f"is unknown; {self.name} has {', '.join(self.setups)}")
        if method not in found.methods:
            raise ConfigError(
                f"method={method!r} is unknown; {self.name} {setup} has {', '.join(found.methods)}", "methods", method
            )
        base = merge_trees(found.config, {"task": {"name": self.task}, "method": {"name": method}})
        settled: dict[str, Any] = _fill_data_folder(merge_trees(base, found.methods[method]), str(data))
        return settled


class PaperFigure(_Fact):
    """Figures that a paper reports for one method, by the names that our evaluation uses.

    rate: share of noise, None for that of the data itself. part: what was measured, if not the trained model.
    witness: `paper`, or `notes` if the figures come from reading notes.
    """

    paper: str
    preset: str
    setup: str
    method: str
    noise: str = "shuffle-captions"
    rate: float | None = None
    also_on: str | None = None
    part: str | None = None
    figures: dict[str, float]
    witness: Literal["paper", "notes"]
    note: str | None = None


def paper_presets() -> tuple[str, ...]:
    """Names of the data sets with a set-up of the papers."""
    named = {row.preset for row in _all_figures()}
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem in named))


@cache
def load_paper_preset(name: str) -> PaperPreset:
    """The preset of that name; raise ConfigError with the known names for another."""
    if name not in paper_presets():
        known = paper_presets()
        raise ConfigError.of("preset", name, f"is unknown; use one of {', '.join(known)}{did_you_mean(name, known)}")
    return _validate(PaperPreset, _read(f"{name}.yaml"), f"{name}.yaml")


def paper_figures(
    preset: str | None = None,
    *,
    setup: str | None = None,
    method: str | None = None,
    noise: str | None = None,
    rate: float | None = None,
) -> tuple[PaperFigure, ...]:
    """Figures that match all given values, in the order of the papers.

    >>> [row.figures for row in paper_figures("flickr30k", method="crcl", rate=0.4)]
    [{'rsum': 505.2}]
    """
    wanted = {"preset": preset, "setup": setup, "method": method, "noise": noise, "rate": rate}
    given = {name: value for name, value in wanted.items() if value is not None}
    return tuple(row for row in _all_figures() if all(getattr(row, name) == value for name, value in given.items()))


@cache
def _all_figures() -> tuple[PaperFigure, ...]:
    return tuple(
        _validate(PaperFigure, {"witness": paper["witness"], **row, "paper": paper["title"]}, FIGURES)
        for paper in _read(FIGURES).values()
        for row in paper["rows"]
    )


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return found


def _validate(kind: type[Kind], values: Mapping[str, Any], name: str) -> Kind:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"presets/{name}: {place}={first.get('input')!r}: {first['msg']}", place, first.get("input")
        ) from error


def _fill_data_folder(value: Any, data: str) -> Any:
    """Replace DATA at the beginning of texts by the folder."""
    if isinstance(value, Mapping):
        return {name: _fill_data_folder(inner, data) for name, inner in value.items()}
    if isinstance(value, list):
        return [_fill_data_folder(inner, data) for inner in value]
    if isinstance(value, str) and value.startswith(f"{DATA}/"):
        return data + value.removeprefix(DATA)
    return value
