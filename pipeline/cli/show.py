"""`noisegate show`: a run at a glance, in the terminal."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from .options import Folder
from .output import JsonOption, Output, escape
from .summary import print_summary

if TYPE_CHECKING:
    from noisegate.pipeline.inspect.show import RunOverview, WorstSample

WIDTH = 80


def register(app: typer.Typer) -> None:
    app.command("show", no_args_is_help=True)(show)


def show(
    folder: Folder,
    top: Annotated[int, typer.Option("--top", min=0, help="Number of worst samples to list.")] = 10,
    as_json: JsonOption = False,
) -> None:
    """Print the summary of a run, histograms of its scores with the cut, and its worst samples.

    [cyan]noisegate show tables --top 20[/]
    """
    from noisegate.pipeline.inspect.show import read_overview

    output = _Quiet(as_json)
    overview = read_overview(folder, top)
    print_overview(overview, output)
    output.result(overview.to_dict())


class _Quiet(Output):
    """Leaves out speed and time: nothing was scored here."""

    def table(self, title: str, rows: Iterable[tuple[str, ...]], columns: tuple[str, ...] = ("", "")) -> None:
        super().table(title, [row for row in rows if row[0] not in ("speed", "time")], columns)


def print_overview(overview: "RunOverview", output: Output) -> None:
    """Print summary, histograms and lists, at most 80 columns wide."""
    from noisegate.pipeline.inspect.show import draw_histogram

    print_summary(overview.summary, output)
    width = min(WIDTH, output.console.width)
    for histogram in overview.histograms:
        output.say(f"\n[bold]{histogram.score}[/] of {sum(histogram.counts):,} samples")
        for line in draw_histogram(histogram, width):
            output.console.print(Text(line), no_wrap=True)
        worst = overview.worst[histogram.score]
        if worst:
            output.say(f"\n[bold]Lowest {histogram.score}[/]")
        for sample in worst:
            output.console.print(Text(format_sample(sample)), no_wrap=True, overflow="ellipsis")
    if overview.notes:
        output.say("")
    for note in overview.notes:
        output.say(f"[yellow]note[/]: {escape(note)}")


def format_sample(sample: "WorstSample") -> str:
    """Format a sample in one line; a class that was not changed is named once."""
    changed = f" → {sample.refined}" if sample.refined != sample.given else ""
    classes = "" if sample.given is None else f"  {sample.given}{changed}"
    caption = "" if sample.caption is None else f"  {sample.caption}"
    return f"{sample.score:7.3f}  {sample.shard}/{sample.key}{classes}{caption}"
