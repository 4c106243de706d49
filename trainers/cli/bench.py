"""`noisegate bench`: methods side by side on the same data, noise and seeds."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from noisegate.pipeline.cli.output import JsonOption, Output, escape
from noisegate.pipeline.errors import ConfigError, did_you_mean
from noisegate.pipeline.system import format_duration, require_extra

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from noisegate.trainers.bench.cells import CellResult
    from noisegate.trainers.bench.paper_bench import PaperPreset
    from noisegate.trainers.bench.preset_files import ScenePreset

PAPERS = "Data sets of the papers"
Number = TypeVar("Number", int, float)


def register(app: typer.Typer) -> None:
    app.command("bench", no_args_is_help=True)(bench)


def bench(
    preset: Annotated[
        list[str],
        typer.Option(
            "--preset",
            "-p",
            help="scenes-retrieval, scenes-pretrained (pairs and labels), scenes-classification, scenes-image-retrieval, "
            "scenes for all of them; flickr8k, cifar10n: real photos; or a data set of the papers: flickr30k, coco, cc120k, "
            "cc152k, cifar100, cifar100n, tinyimagenet, webvision, food101n, animal10n, cars98n, web-aircraft, web-bird, "
            "web-car, msrvtt, lsmdc, youcook2; or a YAML file of your own that changes a preset of scenes; repeatable.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for data, cells and tables.")] = Path("bench"),
    quick: Annotated[bool, typer.Option("--quick", help="One seed, two rates, little data: minutes.")] = False,
    methods: Annotated[
        str | None, typer.Option("--methods", help="Such as baseline,osa,oracle (default: the preset's).")
    ] = None,
    rates: Annotated[str | None, typer.Option("--rates", help="Noise rates, such as 0,0.4.")] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", help="Such as 0,1,2.")] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", "-j", min=1, help="Cells at once (default: one per processor; 1 where the preset uses GPUs)."
        ),
    ] = None,
    finished: Annotated[
        bool, typer.Option("--finished", help="Train nothing: tables of the cells that are done.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Shards of the data set, as noisegate convert makes them.", rich_help_panel=PAPERS),
    ] = None,
    setup: Annotated[
        str | None,
        typer.Option(
            "--setup",
            help="Such as clip or clip,regions (default: the first; of flickr8k both).",
            rich_help_panel=PAPERS,
        ),
    ] = None,
    estimator: Annotated[
        str | None,
        typer.Option(
            "--estimator", help="Model for the weight tables, in place of the preset's.", rich_help_panel=PAPERS
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of every run, such as loop.epochs=1.", rich_help_panel=PAPERS),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train every method at every noise rate with every seed, and put the results into one table.

    [cyan]noisegate bench --preset scenes-retrieval --quick[/]

    [cyan]noisegate bench --preset scenes --out bench[/]

    [cyan]noisegate bench --preset flickr8k --data flickr8k-regions --setup vse --rates 0.4 --seeds 0[/]

    [cyan]noisegate bench --preset flickr30k --data flickr-shards --setup clip --seeds 0,1,2[/]

    A cell that is done is kept: stop it whenever you like, and run the same command again. `oracle` is training on the
    samples that are right in truth, the best that any table could do. All methods make the same number of updates; with
    @passes, as oracle@passes, as many passes over the samples they train on. On a data set of the papers, each method has
    the settings of its paper, and the paper's figures stand beside ours.

    A preset of your own says what it changes, such as [cyan]base: scenes-retrieval[/] and [cyan]settings: {lnc@mine: {method:
    {warmup: 2}}}[/] in mine.yaml: [cyan]noisegate bench --preset mine.yaml --methods lnc,lnc@mine[/]
    """
    require_extra("trainers", "noisegate bench")
    from noisegate.trainers.bench.paper_bench import describe_source, load_paper_preset, paper_presets
    from noisegate.trainers.bench.preset_files import preset_names

    output = Output(as_json)
    names = expand_presets(preset, preset_names(), paper_presets())
    choices = BenchChoices(
        None if methods is None else [word.strip() for word in methods.split(",")],
        _parse_numbers(rates, float, "rates"),
        _parse_numbers(seeds, int, "seeds"),
        jobs,
        finished,
    )
    papers = {name: load_paper_preset(name) for name in names if name in paper_presets()}
    setups = {name: one.choose_setups(setup, choices.methods) for name, one in papers.items()}
    for name, value in (("data", data), ("setup", setup), ("estimator", estimator), ("set", settings)):
        if value and not papers:
            raise ConfigError.of(name, value, "is for data sets of the papers, as --preset flickr30k; leave it out")
    if papers and data is None:
        first, paper = next(iter(papers.items()))
        source = describe_source(paper, setups[first][0])
        raise ConfigError(f"data is not given; --preset {first} needs the folder of its shards: {source}", "data")
    if papers and quick:
        raise ConfigError.of("quick", True, "is for drawn scenes; use --set loop.max_steps=100 --methods baseline,osa")
    scenes = plan_scenes([name for name in names if name not in papers], choices, quick)
    results = {}
    for name in names:
        if name in papers:
            assert data is not None
            for one in setups[name]:
                key = name if len(setups[name]) == 1 else f"{name}-{one}"
                results[key] = bench_paper(papers[name], one, choices, data, out, estimator, settings or [], output)
        elif name in scenes:
            results[name] = bench_scenes(name, scenes[name], choices, out / "quick" if quick else out, output)
    output.result(results)


def expand_presets(given: Sequence[str], scenes: Sequence[str], papers: Sequence[str]) -> list[str]:
    """Expand the given presets: a preset of scenes includes all whose names continue its own, and `scenes` includes all.

    >>> expand_presets(["scenes-b", "coco", "scenes"], ["scenes-a", "scenes-b", "scenes-b-labels"], ["coco"])
    ['scenes-b', 'scenes-b-labels', 'coco', 'scenes-a']
    """
    from noisegate.trainers.bench.preset_files import is_file_name

    known = [*scenes, "scenes", *papers]
    for name in given:
        if name not in known and not is_file_name(name):
            problem = f"is unknown; use one of {', '.join(known)}{did_you_mean(name, known)}"
            raise ConfigError.of("preset", name, problem)
    continued = [[name for name in scenes if f"{name}-".startswith(f"{one}-")] or [one] for one in given]
    return list(dict.fromkeys(name for names in continued for name in names))


@dataclass(frozen=True)
class BenchChoices:
    """Values of the command line that replace the preset's; None keeps the preset's value."""

    methods: list[str] | None
    rates: list[float] | None
    seeds: list[int] | None
    jobs: int | None
    finished: bool


def plan_scenes(names: Sequence[str], choices: BenchChoices, quick: bool) -> dict[str, ScenePreset]:
    """Return the presets of drawn scenes with the requested rates, seeds and methods; presets without methods are left out."""
    from noisegate.trainers.bench.preset_files import assign_methods, check_methods, load_preset
    from noisegate.trainers.methods import METHODS

    presets = [load_preset(name) for name in names]
    presets = [preset.quick_version() if quick else preset for preset in presets]
    methods: Sequence[list[str] | None] = [None] * len(presets)
    if choices.methods and presets:
        methods = assign_methods(presets, choices.methods, {name: kind.tasks for name, kind in METHODS.items()})
    planned = {
        name: preset.with_changes(methods=chosen, rates=choices.rates, seeds=choices.seeds)
        for name, preset, chosen in zip(names, presets, methods, strict=True)
        if chosen != []
    }
    for preset in planned.values():
        check_methods(preset, list(METHODS))
        check_figure(preset)
    return planned


def check_figure(preset: ScenePreset) -> None:
    """Raise ConfigError for a figure that the preset's task does not have."""
    from noisegate.trainers.tasks import list_figures

    name, known = preset.figure.name, list_figures(preset.task, **preset.config.get("task", {}).get("options", {}))
    if name not in known:
        raise ConfigError.of("figure.name", name, f"is no figure of {preset.task}; use one of {', '.join(known)}")


def bench_scenes(name: str, preset: ScenePreset, choices: BenchChoices, folder: Path, output: Output) -> dict[str, Any]:
    """Run a preset of drawn scenes, write its tables and show them."""
    from noisegate.trainers.bench.scene_bench import run_bench
    from noisegate.trainers.bench.scene_tables import to_json, to_markdown, write_tables

    result = run_bench(
        preset,
        folder,
        jobs=choices.jobs,
        finished=choices.finished,
        note=lambda text: output.tell(escape(text)),
        progress=_cell_printer(output, preset.figure.name, preset.figure.divide),
    )
    _show_tables(name, to_markdown(result), write_tables(result, folder), result.cells, preset.figure.name, output)
    return to_json(result)


def bench_paper(
    preset: PaperPreset,
    setup: str,
    choices: BenchChoices,
    data: Path,
    out: Path,
    estimator: str | None,
    settings: list[str],
    output: Output,
) -> dict[str, Any]:
    """Run a set-up of a data set of the papers, write its tables and show them."""
    from noisegate.trainers.bench.paper_bench import MAIN_FIGURE, run_paper_bench
    from noisegate.trainers.bench.paper_tables import paper_json, paper_markdown, write_paper_tables
    from noisegate.trainers.config import read_config

    result = run_paper_bench(
        preset,
        setup,
        data,
        out,
        methods=choices.methods,
        rates=choices.rates,
        seeds=choices.seeds,
        settings=read_config(settings=settings),
        estimator=estimator,
        jobs=choices.jobs,
        finished=choices.finished,
        note=lambda text: output.tell(escape(text)),
        progress=_cell_printer(output, MAIN_FIGURE[preset.task], 1.0),
    )
    cells = [cell for cells in result.cells.values() for cell in cells]
    files = write_paper_tables(result, out)
    _show_tables(f"{preset.name} {setup}", paper_markdown(result), files, cells, MAIN_FIGURE[preset.task], output)
    return paper_json(result)


def _show_tables(
    name: str, markdown: str, files: list[Path], cells: Sequence[CellResult], figure: str, output: Output
) -> None:
    """Print the tables and their paths; raise ConfigError if all cells failed or none has the main figure."""
    output.say(escape(markdown))
    output.say(f"Tables: {', '.join(f'[cyan]{escape(str(file))}[/]' for file in files)}\n")
    if all(cell.error is not None for cell in cells):
        raise ConfigError(f"preset {name}: every cell failed, the first with: {cells[0].error}", "preset", name)
    if not any(figure in cell.figures for cell in cells):
        known = ", ".join(sorted({name for cell in cells for name in cell.figures}))
        raise ConfigError(f"preset {name}: no cell has the figure {figure}; use one of {known}", "figure.name", figure)


def _cell_printer(output: Output, figure: str, divide: float) -> Callable[[CellResult, int, int], None]:
    """Make a function that prints a line for a finished cell, with the time that is left at the speed of the cells so far."""
    began, trained = time.monotonic(), count(1)

    def show(result: CellResult, done: int, total: int) -> None:
        seconds = (time.monotonic() - began) / next(trained) * (total - done)
        value = result.figures.get(figure)
        shown = result.error if value is None else f"{value / divide:.1f}"
        left = f" (about {format_duration(seconds)} left)" if done < total else ""
        output.tell(f"{done}/{total} {result.title}: {escape(str(shown))}{left}")

    return show


def _parse_numbers(text: str | None, kind: type[Number], setting: str) -> list[Number] | None:
    """Parse a list such as 0,0.4."""
    try:
        return None if text is None else [kind(word) for word in text.split(",") if word.strip()]
    except ValueError as error:
        raise ConfigError.of(setting, text, "is no list of numbers; use for example 0,1") from error
