"""`noisegate compare`: two runs over the same data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from .options import Seed
from .output import JsonOption, Output, escape, number, percent

if TYPE_CHECKING:
    from noisegate.pipeline.inspect.compare import Comparison, Disagreement


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

    found = run(first, second, top=top, seed=seed)
    output = Output(as_json)
    print_comparison(found, output)
    output.result(found.to_dict())


def print_comparison(found: "Comparison", output: Output) -> None:
    """Print correlations, agreement of the cuts, and the samples they disagree on."""
    output.say(f"A: [cyan]{escape(found.first)}[/], {found.rows[0]:,} rows")
    output.say(f"B: [cyan]{escape(found.second)}[/], {found.rows[1]:,} rows")
    over = "all of them" if found.compared == found.matched else f"a seeded sample of {found.compared:,}"
    output.say(f"{found.matched:,} rows are the same samples; correlations over {over}\n")
    rows = [
        (rank.score, number(rank.spearman), number(rank.kendall), f"{rank.rows:,}", f"{rank.kendall_rows:,}")
        for rank in found.ranks
    ]
    output.table("Do they rank alike?", rows, ("score", "Spearman ρ", "Kendall τ-b", "rows", "for τ-b"))
    if found.cut:
        cut = found.cut
        table = [
            ("A clean", f"{cut.both:,}", f"{cut.only_first:,}"),
            ("A not", f"{cut.only_second:,}", f"{cut.neither:,}"),
        ]
        output.table("Do they cut alike?", table, ("", "B clean", "B not"))
        output.say(f"The same for {percent(cut.share)} of {cut.rows:,} rows, Cohen's κ {number(cut.kappa, 3)}\n")
    if found.refined_rows:
        share = percent(found.refined_same / found.refined_rows)
        output.say(f"Refined labels: the same for {share} of {found.refined_rows:,} samples\n")
    if found.disagreements:
        output.say(f"Ranked most differently by {found.by} (0 % is the worst):")
        for one in found.disagreements:
            output.console.print(Text(_line(one, found.by or "")), no_wrap=True, overflow="ellipsis")
    elif found.by is None:
        output.say("They rank every sample alike.")


def _line(one: "Disagreement", by: str) -> str:
    a, b = one.first.get(by), one.second.get(by)
    ranks = f"{100 * one.ranks[0]:3.0f} % → {100 * one.ranks[1]:3.0f} %"
    caption = f"  {one.caption}" if one.caption else ""
    return f"  {ranks}  {number(a, 3)} → {number(b, 3)}  {one.shard}/{one.key}{caption}"
