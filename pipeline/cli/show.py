"""A run at a glance, `noisegate show` in the terminal and `report` as one HTML page; two runs, `noisegate compare`."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from noisegate.pipeline.system.controls import show_line
from noisegate.pipeline.system.machine import format_size
from noisegate.pipeline.system.progress import counted

from .options import Folder, Seed, refuse_memory
from .output import JsonOption, Output, escape, number, percent, print_summary

if TYPE_CHECKING:
    from noisegate.pipeline.inspect.compare import Comparison, Disagreement
    from noisegate.pipeline.inspect.show import RunOverview, WorstSample

WIDTH = 80


def show(
    folder: Folder,
    top: Annotated[int, typer.Option(min=0, help="Number of worst samples to list.")] = 10,
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
    """Leave out the rows for speed and time: this command scores nothing."""

    def table(self, title: str, rows: Iterable[tuple[str, ...]], columns: tuple[str, ...] = ("", "")) -> None:
        super().table(title, [row for row in rows if row[0] not in ("speed", "time")], columns)


def print_overview(overview: "RunOverview", output: Output) -> None:
    """Print summary, histograms and lists, at most 80 columns wide."""
    from noisegate.pipeline.inspect.show import draw_histogram

    print_summary(overview.summary, output)
    width = min(WIDTH, output.console.width)
    for histogram in overview.histograms:
        output.say(f"\n[bold]{histogram.score}[/] of {counted(sum(histogram.counts), 'sample')}")
        for line in draw_histogram(histogram, width):
            output.console.print(Text(show_line(line)), no_wrap=True)
        worst = overview.worst[histogram.score]
        if worst:
            output.say(f"\n[bold]Lowest {histogram.score}[/]")
        for sample in worst:
            output.console.print(Text(show_line(format_sample(sample))), no_wrap=True, overflow="ellipsis")
    if overview.notes:
        output.say("")
    for note in overview.notes:
        output.say(f"[yellow]note[/]: {escape(note)}")


def format_sample(sample: "WorstSample") -> str:
    """Format a sample in one line, labels with the class that the sample looks like."""
    sure = f", {100 * sample.confidence:.0f} %" if sample.confidence is not None else ""
    classes = "" if sample.given is None else f"  given {sample.given}, looks like {sample.predicted}{sure}"
    caption = "" if sample.caption is None else f"  {sample.caption}"
    return f"{sample.score:7.3f}  {sample.shard}/{sample.key}{classes}{caption}"


def report(
    folder: Folder,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The file (default: report.html in FOLDER).")] = None,
    gallery: Annotated[int, typer.Option(help="Number of samples in each gallery.")] = 12,
    pictures: Annotated[
        bool, typer.Option("--pictures/--no-pictures", help="Read the shards again for pictures and captions.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Write one HTML page: scores, noise, the worst and the best pairs, labels, duplicates, failures, shards.

    [cyan]noisegate report tables[/]

    [cyan]noisegate report tables --out report.html --gallery 48[/]

    The file is self-contained and works without a network; only shards with samples that it shows are read.
    """
    from noisegate.pipeline.inspect.report import write_report

    refuse_memory(out)
    output = Output(as_json)
    made = write_report(folder, out, gallery=gallery, pictures=pictures, note=output.note)
    output.say(
        f"Report: [cyan]{escape(str(made.path))}[/]  "
        f"({format_size(made.size)}, {counted(made.samples, 'sample')}, {counted(made.pictures, 'picture')})"
    )
    if made.missing:
        output.say(escape(made.missing))
    output.result(made.to_dict())


def compare(
    first: Annotated[Path, typer.Argument(help="A folder of tables.")],
    second: Annotated[Path, typer.Argument(help="Another one, over the same shards.")],
    top: Annotated[int, typer.Option(min=0, help="Number of samples to list that they disagree on most.")] = 10,
    seed: Seed = 0,
    as_json: JsonOption = False,
) -> None:
    """Compare two runs over the same data, with another model, β or method: how they rank and cut, and where they differ.

    [cyan]noisegate compare tables-vit-b32 tables-vit-l14 --top 20[/]
    """
    from noisegate.pipeline.inspect.compare import compare as run

    comparison = run(first, second, top=top, seed=seed)
    output = Output(as_json)
    print_comparison(comparison, output)
    output.result(comparison.to_dict())


def print_comparison(comparison: "Comparison", output: Output) -> None:
    """Print correlations, agreement of the cuts, and the samples they disagree on."""
    output.say(f"A: [cyan]{escape(comparison.first)}[/], {counted(comparison.rows[0], 'row')}")
    output.say(f"B: [cyan]{escape(comparison.second)}[/], {counted(comparison.rows[1], 'row')}")
    over = "all of them" if comparison.compared == comparison.matched else f"a seeded sample of {comparison.compared:,}"
    output.say(f"{comparison.matched:,} rows are the same samples; correlations over {over}\n")
    rows = [
        (rank.score, number(rank.spearman), number(rank.kendall), f"{rank.rows:,}", f"{rank.kendall_rows:,}")
        for rank in comparison.ranks
    ]
    output.table("Do they rank alike?", rows, ("score", "Spearman ρ", "Kendall τ-b", "rows", "for τ-b"))
    if comparison.cut:
        cut = comparison.cut
        table = [
            ("A clean", f"{cut.both:,}", f"{cut.only_first:,}"),
            ("A not", f"{cut.only_second:,}", f"{cut.neither:,}"),
        ]
        output.table("Do they cut alike?", table, ("", "B clean", "B not"))
        output.say(f"The same for {percent(cut.share)} of {cut.rows:,} rows, Cohen's κ {number(cut.kappa, 3)}\n")
    if comparison.refined_rows:
        share = percent(comparison.refined_same / comparison.refined_rows)
        output.say(f"Refined labels: the same for {share} of {comparison.refined_rows:,} samples\n")
    if comparison.disagreements:
        output.say(f"Ranked most differently by {comparison.by} (0 % is the worst):")
        for one in comparison.disagreements:
            output.console.print(Text(show_line(_line(one, comparison.by or ""))), no_wrap=True, overflow="ellipsis")
    elif comparison.by is None:
        output.say("They rank every sample alike.")


def _line(one: "Disagreement", by: str) -> str:
    a, b = one.first.get(by), one.second.get(by)
    ranks = f"{100 * one.ranks[0]:3.0f} % → {100 * one.ranks[1]:3.0f} %"
    caption = f"  {one.caption}" if one.caption else ""
    return f"  {ranks}  {number(a, 3)} → {number(b, 3)}  {one.shard}/{one.key}{caption}"
