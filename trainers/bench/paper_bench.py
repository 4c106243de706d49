"""Run a bench on a data set of the papers: their set-up and noise on your copy of the data, to compare with their figures.

`presets/NAME.yaml` describes one data set: how its shards are made from the usual download, which noise is added, and for each
set-up (a target with its optimiser) the settings of a training run and what each method changes. `presets/papers.yaml` holds
the reported figures. In commands SOURCE stands for the user's download, DATA for the folder of shards.
"""

from __future__ import annotations

import math
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from noisegate.pipeline.datasets.convert import KINDS, Kind
from noisegate.pipeline.datasets.noise import TRUTH_FILE, find_protocol, noise_captions, noise_labels
from noisegate.pipeline.errors import ConfigError, NoisegateError, did_you_mean
from noisegate.pipeline.runs import RunFolder
from noisegate.pipeline.system import count_processors
from noisegate.trainers.config import merge_trees

from .cells import Cell, CellResult, finished_cells, noises_with_results, run_cells
from .given_arrays import GivenArrays
from .labelled_features import LabelledFeatures
from .preset_files import PRESETS, PresetPart, check_preset, preset_names, rate_name, read_yaml
from .scene_bench import TRUTH, judge_table
from .truth_table import make_truth_table

DATA = "DATA"
REAL = "real"
PAPERS_FILE = "papers"
"""the file of presets/ with the reported figures"""
NOISE_SEED = 0
"""the noise is the same for all seeds of training"""
MAIN_FIGURE = {"retrieval": "rsum", "classification": "accuracy", "image_retrieval": "map_at_r"}


class PaperNoise(PresetPart):
    """A protocol of `noisegate noise` with the papers' rates, or `real`: the noise of the data itself."""

    protocol: str
    rates: tuple[float, ...] = ()
    options: dict[str, Any] = Field(default_factory=dict)


class PaperSetup(PresetPart):
    """A target with its training settings, and the changes of each method."""

    convert: tuple[str, ...] = ()
    """commands that make DATA; none if the preset has `arrays`"""
    annotate: str | None = None
    """the command that makes DATA/tables, for methods that read one"""
    also_on: dict[str, str] = Field(default_factory=dict)
    """other evaluation shards by name"""
    notes: tuple[str, ...] = ()
    """what differs from the paper, or is not published"""
    config: dict[str, Any]
    methods: dict[str, dict[str, Any]]
    """by name; NAME@WORD is NAME with further settings, and trained only where it is asked for. The table `truth` has the
    truth as its `clean`"""
    variants: tuple[str, ...] = ()
    """NAME@WORD to train without being asked for"""
    seeds: tuple[int, ...] = (0,)

    def default_jobs(self) -> int:
        """Return how many cells to train at once: one per processor if they train there, else one at a time."""
        return count_processors() if self.config.get("loop", {}).get("device") == "cpu" else 1

    def default_methods(self) -> tuple[str, ...]:
        """The methods to train if none are asked for."""
        return tuple(name for name in self.methods if "@" not in name or name in self.variants)


class PaperPreset(PresetPart):
    """One data set of the papers."""

    name: str
    summary: str
    task: Literal["retrieval", "classification", "image_retrieval"]
    noise: tuple[PaperNoise, ...]
    arrays: GivenArrays | None = None
    """where DATA is a folder of arrays: shards and tables are made from them"""
    labelled: LabelledFeatures | None = None
    """where DATA has shards whose own noise is known, and features of their pictures, which make the table"""
    setups: dict[str, PaperSetup]
    default_setups: tuple[str, ...] = ()
    """those to train if none is asked for; empty: the first"""

    def choose_setups(self, asked: str | None, methods: Sequence[str] | None = None) -> tuple[str, ...]:
        """Return the names in `asked`, such as "vse,sgr", or the preset's; each must have all of `methods`, or ConfigError."""
        names = self.default_setups or tuple(self.setups)[:1]
        if asked is not None:
            names = tuple(dict.fromkeys(name.strip() for name in asked.split(",")))
        for name in names:
            self.find_setup(name)
            for method in methods or ():
                self.run_config(name, method)
        return names

    def find_setup(self, name: str) -> PaperSetup:
        """Return the set-up of that name; for an unknown one raise ConfigError with the known names."""
        if name not in self.setups:
            raise ConfigError.of("setup", name, f"is unknown; {self.name} has {', '.join(self.setups)}")
        return self.setups[name]

    def run_config(self, setup: str, method: str, data: str | Path = DATA) -> dict[str, Any]:
        """Return the settings of one run as a tree for `TrainConfig.parse`; `data` replaces DATA."""
        found = self.find_setup(setup)
        if method not in found.methods:
            raise ConfigError.of("methods", method, f"is unknown; {self.name} {setup} has {', '.join(found.methods)}")
        plain = method.partition("@")[0]
        config = merge_trees(found.config, {"task": {"name": self.task}, "method": {"name": plain}})
        for name in dict.fromkeys((plain, method)):
            config = merge_trees(config, found.methods[name])
        filled: dict[str, Any] = _fill_data_folder(config, str(data))
        return filled


class PaperFigure(PresetPart):
    """Figures that a paper reports for one method, by the names in our evaluation.

    rate: share of noise, None for the data's own noise. part: what was measured, if not the trained model.
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
    """List the names of data sets for --data: the papers' data sets, and real ones to compare methods on."""
    names = {path.stem for path in PRESETS.glob("*.yaml")}
    return tuple(sorted(names - {PAPERS_FILE, *preset_names()}))


@cache
def load_paper_preset(name: str) -> PaperPreset:
    """Load the preset of that name; for an unknown one raise ConfigError with the known names."""
    if name not in paper_presets():
        known = paper_presets()
        raise ConfigError.of("preset", name, f"is unknown; use one of {', '.join(known)}{did_you_mean(name, known)}")
    return check_preset(PaperPreset, read_yaml(name), name)


def paper_figures(
    preset: str | None = None,
    *,
    setup: str | None = None,
    method: str | None = None,
    noise: str | None = None,
    rate: float | None = None,
) -> tuple[PaperFigure, ...]:
    """Return the figures that match all given values, in the order of the papers.

    >>> [row.figures for row in paper_figures("flickr30k", method="crcl", rate=0.4)]
    [{'rsum': 505.2}]
    """
    wanted = {"preset": preset, "setup": setup, "method": method, "noise": noise, "rate": rate}
    given = {name: value for name, value in wanted.items() if value is not None}
    return tuple(row for row in _all_figures() if all(getattr(row, name) == value for name, value in given.items()))


@cache
def _all_figures() -> tuple[PaperFigure, ...]:
    return tuple(
        check_preset(PaperFigure, {"witness": paper["witness"], **row, "paper": paper["title"]}, PAPERS_FILE)
        for paper in read_yaml(PAPERS_FILE).values()
        for row in paper["rows"]
    )


def _fill_data_folder(value: Any, data: str) -> Any:
    """Replace DATA at the beginning of texts by the folder."""
    if isinstance(value, Mapping):
        return {name: _fill_data_folder(inner, data) for name, inner in value.items()}
    if isinstance(value, list):
        return [_fill_data_folder(inner, data) for inner in value]
    if isinstance(value, str) and value.startswith(f"{DATA}/"):
        return data + value.removeprefix(DATA)
    return value


# --- the bench --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Condition:
    """One noise protocol at one rate; `real` is the noise of the data itself, at an unknown rate (None)."""

    protocol: str
    rate: float | None
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        return REAL if self.rate is None else f"{self.protocol}-{rate_name(self.rate)}"

    @property
    def title(self) -> str:
        return "its own noise" if self.rate is None else f"{self.protocol} {100 * self.rate:g} %"


@dataclass(frozen=True)
class PaperBench:
    """Our results, and the papers' figures for the same set-up."""

    preset: PaperPreset
    setup: str
    methods: tuple[str, ...]
    conditions: tuple[Condition, ...]
    cells: dict[tuple[str, str], list[CellResult]]
    """by method and condition's name, one per seed"""
    reported: tuple[PaperFigure, ...]
    tables: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """by condition's name: `judge_table` of its weight table, where there is one and the noise is known"""


def list_conditions(preset: PaperPreset, rates: Sequence[float] | None = None) -> tuple[Condition, ...]:
    """List the noise conditions of the papers, or those of the given rates."""
    if rates is not None and any(noise.protocol == REAL for noise in preset.noise):
        raise ConfigError.of("rates", rates, f"are not for {preset.name}, which has noise of its own; leave them out")
    wrong = [rate for rate in rates or () if not 0 <= rate < 1]
    if wrong:
        raise ConfigError.of("rates", wrong[0], "is no share of noise; use for example 0.4")
    found = []
    for noise in preset.noise:
        if noise.protocol == REAL:
            found.append(Condition(REAL, None, {}))
        found += [Condition(noise.protocol, rate, noise.options) for rate in (rates or noise.rates)]
    return tuple(found)


def run_paper_bench(
    preset: PaperPreset,
    setup: str,
    data: Path,
    out: Path,
    *,
    methods: Sequence[str] | None = None,
    rates: Sequence[float] | None = None,
    seeds: Sequence[int] | None = None,
    settings: Mapping[str, Any] | None = None,
    estimator: str | None = None,
    jobs: int | None = None,
    finished: bool = False,
    note: Callable[[str], None] = lambda text: None,
    progress: Callable[[CellResult, int, int], None] = lambda result, done, total: None,
) -> PaperBench:
    """Add noise to the shards in `data`, score them if a method reads a table, train, and measure.

    `settings` is a tree that changes the configuration of every run; `estimator` scores the tables instead of the preset's
    model. Finished parts are kept below `out`, as in `run_bench`. None means the preset's value. With `finished` nothing is
    trained: the result has only the finished cells, and the noise that has any.
    """
    data, out = data.absolute(), out.absolute()
    described = preset.find_setup(setup)
    jobs = jobs or described.default_jobs()
    chosen, seeds = tuple(methods or described.default_methods()), tuple(seeds or described.seeds)
    configs = {method: preset.run_config(setup, method, data) for method in chosen}
    conditions = list_conditions(preset, rates)
    check_shards(preset, setup, data)
    place = out / preset.name / setup
    if finished:
        found = noises_with_results(place / "cells", [condition.name for condition in conditions])
        conditions = tuple(condition for condition in conditions if condition.name in found)
    planned: dict[tuple[int, str, str], Cell] = {}
    judged: dict[str, dict[str, float | None]] = {}
    for condition in conditions:
        own: dict[str, Any] = {"logging": {"every": 100, "tensorboard": False}}
        if preset.arrays is not None:
            made = out / preset.name / "data"
            shards = preset.arrays.make_train_shards(data, condition.rate or 0.0, made, note)
            own["data"] = {"shards": shards, "eval_shards": preset.arrays.make_test_shards(data, made)}
        else:
            shards = make_noisy_shards(configs[chosen[0]], condition, place, note)
            own["data"] = {"shards": shards}
        table = truth = None
        if preset.labelled is not None:
            table = preset.labelled.make_table(data, shards, place, note)
            truth = preset.labelled.write_truth(table, place)
        for method in chosen:
            config = configs[method]
            if config["data"].get("table") == TRUTH:
                right = make_truth_table(config, shards, condition.rate, place / f"truth-{condition.name}")
                config = merge_trees(config, {"data": {"table": str(right)}})
            elif config["data"].get("table"):
                if table is None and preset.arrays is not None:
                    table = preset.arrays.make_table(data, condition.rate or 0.0, shards, made, note)
                table = table or make_table(described, condition, shards, data, place, estimator, note)
                config = merge_trees(config, {"data": {"table": str(table)}})
            config = merge_trees(merge_trees(config, own), settings or {})
            rate = math.nan if condition.rate is None else condition.rate
            for seed in seeds:
                file = place / "cells" / f"{method}-{condition.name}-{seed}.json"
                planned[seed, condition.name, method] = Cell(
                    method, rate, seed, {**config, "seed": seed}, file, None if jobs == 1 else 1, truth, (data, out)
                )
        if table is not None and (condition.rate or truth is not None):
            judged[condition.name] = judge_table(table, preset.task != "retrieval", truth)
    order = [(seed, one.name, method) for seed in seeds for one in conditions for method in chosen]
    cells = [planned[key] for key in order]
    cells = finished_cells(cells, place) if finished else cells
    by_file = {cell.file: result for cell, result in zip(cells, run_cells(cells, jobs, progress=progress), strict=True)}
    by_place: dict[tuple[str, str], list[CellResult]] = {
        (method, one.name): [] for one in conditions for method in chosen
    }
    for key in order:
        if planned[key].file in by_file:
            by_place[key[2], key[1]].append(by_file[planned[key].file])
    return PaperBench(preset, setup, chosen, conditions, by_place, paper_figures(preset.name, setup=setup), judged)


def check_shards(preset: PaperPreset, setup: str, data: Path) -> None:
    """If shards are missing, raise ConfigError with the commands that make them."""
    found = preset.setups[setup]
    if preset.arrays is not None:
        preset.arrays.check(data)
        return
    if preset.labelled is not None:
        preset.labelled.check(data)
    config = preset.run_config(setup, next(iter(found.methods)), data)
    wanted = [config["data"]["shards"], config["data"]["eval_shards"]]
    missing = [pattern for pattern in wanted if not _find_tars(pattern)]
    if missing:
        problem = f"there are no shards {' and no '.join(missing)}; {describe_source(preset, setup, data)}"
        raise ConfigError(f"{preset.name} ({preset.summary}): {problem}", "data", str(data))


def describe_source(preset: PaperPreset, setup: str, data: str | Path = DATA) -> str:
    """How to get the files that a preset reads, as the end of a message: downloads, the files in them, and commands."""
    given = preset.arrays or preset.labelled
    convert = preset.find_setup(setup).convert
    lines = [given.get if given else "make them from the unpacked download, SOURCE in these commands:"]
    for kind in map(_converted, convert):
        lines += [f"download of {kind.name}: {kind.source}", f"its files: {kind.expected}"]
    return "\n  ".join([*dict.fromkeys(lines), *(line.replace(f" {DATA}", f" {data}") for line in convert)])


def _converted(command: str) -> Kind:
    """Return the data set that a `noisegate convert` command reads, in the layout that it names."""
    words = shlex.split(command)
    kind = KINDS[words[2]]
    return kind.of_layout(words[words.index("--layout") + 1]) if "--layout" in words else kind


def make_noisy_shards(
    config: Mapping[str, Any], condition: Condition, place: Path, note: Callable[[str], None]
) -> list[str]:
    """Make, once, tars with the noise of the condition; return the given tars for rate 0 and for the data's own noise."""
    sources = _find_tars(config["data"]["shards"])
    if not condition.rate:
        return sources
    folder = place / f"noisy-{condition.name}"
    if not (folder / TRUTH_FILE).exists():  # written last
        note(f"noise: {condition.title}")
        noise: dict[str, Any] = {
            "protocol": condition.protocol,
            "rate": condition.rate,
            "seed": NOISE_SEED,
            **condition.options,
        }
        if find_protocol(condition.protocol).noises == "captions":
            noise_captions(sources, folder, **noise)
        else:
            noise_labels(sources, folder, classes=config["target"].get("classes") or None, **noise)
    return [str(path) for path in sorted(folder.glob("*.tar"))]


def _find_tars(pattern: str) -> list[str]:
    return [str(path) for path in sorted(Path(pattern).parent.glob(Path(pattern).name))]


def make_table(
    setup: PaperSetup,
    condition: Condition,
    shards: Sequence[str],
    data: Path,
    place: Path,
    estimator: str | None,
    note: Callable[[str], None],
) -> Path:
    """Make the weight table of these shards by the preset's command; DATA/tables if no noise was added."""
    own = data / "tables"
    if not condition.rate and estimator is None and (RunFolder(own).read_run() or {}).get("finished"):
        return own
    table = place / f"tables-{condition.name}"
    if estimator is not None:
        table = table.with_name(f"{table.name}-{re.sub(r'[^a-zA-Z0-9.]+', '-', estimator)}")
    if (RunFolder(table).read_run() or {}).get("finished"):
        return table
    assert setup.annotate is not None
    words = [word.replace(f"{DATA}/", f"{data}/") for word in shlex.split(setup.annotate)[3:]]
    options = {name: value for name, value in pairwise(words) if name.startswith("--")}
    options["--out"] = str(table)
    if estimator is not None:
        options["--model"] = estimator
        options.pop("--pretrained", None)
    command = ["annotate", *shards, *(word for pair in options.items() for word in pair)]
    note(f"scoring: noisegate annotate {shards[0]} … {' '.join(word for pair in options.items() for word in pair)}")
    done = subprocess.run(
        [sys.executable, "-m", "noisegate", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise NoisegateError(f"annotate for {condition.title} failed: {lines[-1] if lines else done.returncode}")
    return table
