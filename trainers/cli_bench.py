"""`noisegate bench`: methods side by side on the same data, noise and seeds."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.output import JsonOption, Output, escape

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command("bench", no_args_is_help=True)(bench)


def bench(
    preset: Annotated[
        list[str],
        typer.Option(
            "--preset",
            "-p",
            help="scenes-retrieval, scenes-classification, scenes-image-retrieval, or scenes for all; repeatable.",
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
    jobs: Annotated[int, typer.Option("--jobs", "-j", help="Cells at once; 0: one per processor.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Train every method at every noise rate with every seed, and put the results into one table.

    [cyan]noisegate bench --preset scenes-retrieval --quick[/]

    [cyan]noisegate bench --preset scenes --out bench[/]

    A cell that is done is kept: stop it whenever you like, and run the same command again. `oracle` is training on the
    samples that are right in truth, the best that any table could do. All methods make the same number of updates; with
    @passes, as oracle@passes, as many passes over the samples they train on.
    """
    from pipeline.errors import ConfigError

    from .bench.cells import CellResult
    from .bench.preset import check_methods, load_preset, preset_names
    from .bench.runner import run_bench
    from .bench.tables import figure_of, to_json, to_markdown, write_tables
    from .methods import METHODS

    def numbers(text: str | None, kind: type[float] | type[int], setting: str) -> list[float] | list[int] | None:
        try:
            return None if text is None else [kind(word) for word in text.split(",") if word.strip()]
        except ValueError as error:
            raise ConfigError(f"{setting} {text!r} is no list of numbers; use for example 0,1") from error

    output = Output(as_json)
    names = [name for one in preset for name in (preset_names() if one == "scenes" else [one])]
    results = {}
    for name in dict.fromkeys(names):
        found = load_preset(name)
        found = (found.quickly() if quick else found).changed(
            methods=None if methods is None else [word.strip() for word in methods.split(",")],
            rates=numbers(rates, float, "--rates"),
            seeds=numbers(seeds, int, "--seeds"),
        )
        check_methods(found, list(METHODS))
        place = out / "quick" if quick else out

        def say(result: CellResult, done: int, total: int) -> None:
            value = result.figures.get(found.figure.name)  # noqa: B023  the loop waits for all of its cells
            shown = result.error if value is None else f"{value / found.figure.divide:.1f}"  # noqa: B023
            output.tell(
                f"{done}/{total} {result.method} at {100 * result.rate:g} % noise, seed {result.seed}: {escape(str(shown))}"
            )

        result = run_bench(found, place, jobs=jobs, note=lambda text: output.tell(escape(text)), progress=say)
        files = write_tables(result, place)
        output.say(escape(to_markdown(result)))
        output.say(f"Tables: {', '.join(f'[cyan]{escape(str(file))}[/]' for file in files)}\n")
        results[name] = to_json(result)
        if all(figure_of(result, cell) is None for cell in result.cells):
            raise ConfigError(f"preset {name}: every cell failed, the first with: {result.cells[0].error}")
    output.result(results)
