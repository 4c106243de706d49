"""A bench on a data set of the papers: their set-up and noise on your copy of the data, their figures beside ours."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, NoisegateError
from pipeline.noise.label_shards import noise_labels
from pipeline.noise.protocols import find_protocol
from pipeline.noise.shards import TRUTH_FILE, noise_captions
from pipeline.table import RunFolder, write_atomically

from .cells import Cell, CellResult
from .paper_figures import DATA, PaperFigure, PaperPreset, Setup, paper_figures
from .preset import merged, rate_name
from .runner import run_cells
from .tables import Spread, markdown_row, notes_on, plain, spread

__all__ = [
    "Condition",
    "PaperBench",
    "conditions",
    "paper_json",
    "paper_markdown",
    "run_paper_bench",
    "write_paper_tables",
]

REAL = "real"
SEED = 0
"""of the noise, which is the same for all seeds of training"""
MAIN = {"retrieval": ("i2t_r1", "t2i_r1", "rsum"), "classification": ("accuracy",), "image_retrieval": ("map_at_r",)}


@dataclass(frozen=True)
class Condition:
    """One kind of noise at one rate; `real` is the data's own, whose rate nobody knows."""

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
    """Our cells, and the figures of the papers that belong to the same set-up."""

    preset: PaperPreset
    setup: str
    methods: tuple[str, ...]
    conditions: tuple[Condition, ...]
    cells: dict[tuple[str, str], list[CellResult]]
    """by method and condition's name, one per seed"""
    reported: tuple[PaperFigure, ...]


def conditions(preset: PaperPreset, rates: Sequence[float] | None = None) -> tuple[Condition, ...]:
    """The noise of the papers, or the given rates of it; raises ConfigError where a rate makes no sense."""
    if rates is not None and any(noise.protocol == REAL for noise in preset.noise):
        raise ConfigError(f"--rates {rates}: {preset.name} has noise of its own and takes none; leave it out")
    wrong = [rate for rate in rates or () if not 0 <= rate < 1]
    if wrong:
        raise ConfigError(f"--rates {wrong[0]:g} is no share of noise; use for example 0.4")
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
    seeds: Sequence[int] = (0,),
    settings: Mapping[str, Any] | None = None,
    estimator: str | None = None,
    jobs: int = 1,
    note: Callable[[str], None] = lambda text: None,
    progress: Callable[[CellResult, int, int], None] = lambda result, done, total: None,
) -> PaperBench:
    """Put noise into the shards in `data`, score them where a method reads a table, train, and measure.

    `settings` is a tree laid over every run's configuration; `estimator` a model in place of the preset's for the tables.
    What is done is kept below `out`, as in `run_bench`.
    """
    found = preset.setups.get(setup)
    if found is None:
        raise ConfigError(f"--setup {setup}: {preset.name} has {', '.join(preset.setups)}")
    chosen = tuple(methods or found.methods)
    configs = {method: preset.run_config(setup, method, data) for method in chosen}
    asked = conditions(preset, rates)
    require_shards(preset, setup, data)
    place = out / preset.name / setup
    cells: list[Cell] = []
    for condition in asked:
        shards = noisy_shards(configs[chosen[0]], condition, place, note)
        table: Path | None = None
        for method in chosen:
            config = configs[method]
            if config["data"].get("table"):
                table = table or table_of(found, condition, shards, data, place, estimator, note)
                config = merged(config, {"data": {"table": str(table)}})
            config = merged(config, {"data": {"shards": shards}, "logging": {"every": 100, "tensorboard": False}})
            config = merged(config, settings or {})
            for seed in seeds:
                file = place / "cells" / f"{method}-{condition.name}-{seed}.json"
                own = {**config, "seed": seed}
                cells.append(Cell(method, condition.rate or 0.0, seed, own, file, threads=None if jobs == 1 else 1))
    results = iter(run_cells(cells, jobs, progress=progress))
    by_place: dict[tuple[str, str], list[CellResult]] = {}
    for condition in asked:
        for method in chosen:
            by_place[method, condition.name] = [next(results) for _ in seeds]
    return PaperBench(preset, setup, chosen, asked, by_place, paper_figures(preset.name, setup=setup))


def require_shards(preset: PaperPreset, setup: str, data: Path) -> None:
    """Raises ConfigError that says which shards are missing and which commands make them."""
    found = preset.setups[setup]
    config = preset.run_config(setup, next(iter(found.methods)), data)
    wanted = [config["data"]["shards"], config["data"]["eval_shards"]]
    missing = [pattern for pattern in wanted if not _tars(pattern)]
    if missing:
        commands = "\n  ".join(line.replace(f"{DATA}/", f"{data}/") for line in found.convert)
        raise ConfigError(
            f"{preset.name} ({preset.summary}): there are no shards {' and no '.join(missing)}; make them from the usual "
            f"download, of which `noisegate convert {preset.name} --help` says the files:\n  {commands}"
        )


def noisy_shards(
    config: Mapping[str, Any], condition: Condition, place: Path, note: Callable[[str], None]
) -> list[str]:
    """Tars with the condition's noise, made once; the given ones where it adds none."""
    sources = _tars(config["data"]["shards"])
    if not condition.rate:
        return sources
    folder = place / f"noisy-{condition.name}"
    if not (folder / TRUTH_FILE).exists():  # written last
        note(f"noise: {condition.title}")
        if find_protocol(condition.protocol).noises == "captions":
            noise_captions(
                sources, folder, protocol=condition.protocol, rate=condition.rate, seed=SEED, **condition.options
            )
        else:
            classes = config["target"].get("classes") or None
            noise_labels(
                sources,
                folder,
                protocol=condition.protocol,
                rate=condition.rate,
                seed=SEED,
                classes=classes,
                **condition.options,
            )
    return [str(path) for path in sorted(folder.glob("*.tar"))]


def _tars(pattern: str) -> list[str]:
    return [str(path) for path in sorted(Path(pattern).parent.glob(Path(pattern).name))]


def table_of(
    setup: Setup,
    condition: Condition,
    shards: Sequence[str],
    data: Path,
    place: Path,
    estimator: str | None,
    note: Callable[[str], None],
) -> Path:
    """The weight table of these shards, by the preset's own command; DATA/tables where the shards are the given ones."""
    own = data / "tables"
    if not condition.rate and estimator is None and (RunFolder(own).read_run() or {}).get("finished"):
        return own
    table = place / f"tables-{condition.name}"
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
        [sys.executable, "-c", "from pipeline.cli import main; main()", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise NoisegateError(f"annotate for {condition.title} failed: {lines[-1] if lines else done.returncode}")
    return table


def paper_markdown(bench: PaperBench) -> str:
    """One table for each figure: ours, and in brackets what a paper reports of the same method, data and noise."""
    preset = bench.preset
    trained = [row for row in bench.reported if row.part is None and row.also_on is None]
    names = list(dict.fromkeys([*MAIN[preset.task], *(name for row in trained for name in row.figures)]))
    seeds = max(len(cells) for cells in bench.cells.values())
    lines = [
        f"**{preset.name}, {bench.setup}:** {preset.summary}. Ours, mean ± standard deviation of {seeds} seed(s); "
        "in brackets the paper's own figure for the same method and noise.",
    ]
    for name in names:
        rows = []
        for method in bench.methods:
            words = [_beside(bench, trained, name, method, condition) for condition in bench.conditions]
            if any(word != "–" for word in words):
                rows.append(markdown_row([method, *words]))
        if rows:
            head = [name, *(condition.title for condition in bench.conditions)]
            lines += ["", markdown_row(head), markdown_row(["---"] * len(head)), *rows]
    notes = [*preset.setups[bench.setup].notes, *dict.fromkeys(row.note for row in trained if row.note)]
    witnesses = {row.paper: row.witness for row in trained}
    lines += ["", *(f"- {title} (figures from {'the paper' if kind == 'paper' else 'reading notes'})"
                    for title, kind in witnesses.items())]  # fmt: skip
    lines += [*notes_on(bench.methods), *(f"- {text}" for text in notes)]
    others = [row for row in bench.reported if row.also_on is not None]
    lines += [
        f"- on {row.also_on} the paper has {row.method} "
        f"{', '.join(f'{name} {value:g}' for name, value in row.figures.items())}: "
        f"noisegate evaluate-model RUN --shards '{preset.setups[bench.setup].also_on.get(str(row.also_on), row.also_on)}'"
        for row in others
    ]
    failed = [cell for cells in bench.cells.values() for cell in cells if cell.error is not None]
    lines += [f"- failed: {cell.method} at {100 * cell.rate:g} %, seed {cell.seed}: {cell.error}" for cell in failed]
    return "\n".join(lines).rstrip() + "\n"


def _beside(bench: PaperBench, trained: Sequence[PaperFigure], name: str, method: str, condition: Condition) -> str:
    ours = ours_of(bench, name, method, condition)
    theirs = [
        row.figures[name]
        for row in trained
        if row.method == method and name in row.figures and _same_noise(row, condition)
    ]
    if not ours.count and not ours.failed and not theirs:
        return "–"
    return f"{ours} ({', '.join(f'{value:g}' for value in theirs)})" if theirs else str(ours)


def ours_of(bench: PaperBench, name: str, method: str, condition: Condition) -> Spread:
    """Of the cells that measured this figure."""
    cells = bench.cells[method, condition.name]
    return spread([cell.figures.get(name) for cell in cells if cell.error is not None or name in cell.figures])


def _same_noise(row: PaperFigure, condition: Condition) -> bool:
    if condition.rate is None:
        return row.noise == REAL
    return row.rate == condition.rate and (row.noise == condition.protocol or condition.rate == 0)


def paper_json(bench: PaperBench) -> dict[str, Any]:
    """Every cell with its noise, and the papers' figures."""
    cells = [{"noise": name, **plain(asdict(cell))} for (_, name), found in bench.cells.items() for cell in found]
    reported = [row.model_dump(mode="json") for row in bench.reported]
    return {"preset": bench.preset.name, "setup": bench.setup, "cells": cells, "papers": reported}


def write_paper_tables(bench: PaperBench, out: Path) -> list[Path]:
    """`results.md` and `results.json` in the set-up's folder."""
    place = out / bench.preset.name / bench.setup
    texts = {"results.md": paper_markdown(bench), "results.json": json.dumps(paper_json(bench), indent=1) + "\n"}
    for name, text in texts.items():
        write_atomically(place / name, text.encode())
    return [place / name for name in texts]
