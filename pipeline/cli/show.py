"""`noisegate show`: a run at a glance, in the terminal."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from .options import Folder
from .output import JsonOption, Output, escape
from .summary import print_summary

if TYPE_CHECKING:
    from noisegate.pipeline.inspect.show import Glance, Worst

__all__ = ["register"]

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
    from noisegate.pipeline.inspect.show import glance

    output = _Quiet(as_json)
    found = glance(folder, top)
    print_glance(found, output)
    output.result(found.to_dict())


class _Quiet(Output):
    """Leaves out speed and time: nothing was scored here."""

    def table(self, title: str, rows: Iterable[tuple[str, ...]], columns: tuple[str, ...] = ("", "")) -> None:
        super().table(title, [row for row in rows if row[0] not in ("speed", "time")], columns)


def print_glance(found: "Glance", output: Output) -> None:
    """Print summary, histograms and lists, at most 80 columns wide."""
    from noisegate.pipeline.inspect.show import draw_histogram

    print_summary(found.summary, output)
    width = min(WIDTH, output.console.width)
    for histogram in found.histograms:
        output.say(f"\n[bold]{histogram.score}[/] of {sum(histogram.counts):,} samples")
        for line in draw_histogram(histogram, width):
            output.console.print(Text(line), no_wrap=True)
        worst = found.worst[histogram.score]
        if worst:
            output.say(f"\n[bold]Lowest {histogram.score}[/]")
        for one in worst:
            output.console.print(Text(line_of(one)), no_wrap=True, overflow="ellipsis")
    if found.notes:
        output.say("")
    for note in found.notes:
        output.say(f"[yellow]note[/]: {escape(note)}")


def line_of(one: "Worst") -> str:
    """A sample in one line; an unchanged class is named once."""
    changed = f" → {one.refined}" if one.refined != one.given else ""
    classes = "" if one.given is None else f"  {one.given}{changed}"
    caption = "" if one.caption is None else f"  {one.caption}"
    return f"{one.score:7.3f}  {one.shard}/{one.key}{classes}{caption}"
