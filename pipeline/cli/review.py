"""`noisegate review`: how often the tool agrees with people's marks, and where the cut should lie."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from noisegate.pipeline.system.progress import counted

from .options import Folder, Seed
from .output import JsonOption, Output, escape, number, percent, program

if TYPE_CHECKING:
    from noisegate.pipeline.inspect.review import Cut, ReviewFigures


def review(
    folder: Folder,
    take: Annotated[
        Path | None,
        typer.Option("--import", help="Add marks made elsewhere: a .csv or .parquet with mark, shard and key."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--export", help="Write the marks to this .csv or .parquet file.")] = None,
    fit: Annotated[
        bool, typer.Option("--recalibrate", help="Find the cut that agrees with the marks best; the tables stay.")
    ] = False,
    seed: Seed = 0,
    as_json: JsonOption = False,
) -> None:
    """Print how often the tool agreed with people's marks, which they make in Browse (noisegate serve).

    [cyan]noisegate review tables[/]

    [cyan]noisegate review tables --recalibrate[/]

    [cyan]noisegate review tables --export marks.csv[/]
    """
    from noisegate.pipeline.inspect.review import read_figures, recalibrate
    from noisegate.pipeline.inspect.review_files import export_marks, import_marks
    from noisegate.pipeline.runs.table import RunFolder

    output = Output(as_json)
    if take is not None:
        added, changed = import_marks(folder, take)
        output.say(f"Added {counted(added, 'mark')} from {escape(str(take))}")
        if changed:
            output.say(f"[yellow]left out[/]: {counted(changed, 'mark')}, because the samples have changed since")
    if out is not None:
        written = export_marks(folder, out)
        output.say(f"Wrote {counted(written, 'mark')} to [cyan]{escape(str(out))}[/]")
    figures = read_figures(folder)
    if figures is None:
        output.say("There are no marks yet. Start the page, open Browse, and mark samples with the keys k, d and r:")
        output.say(f"[cyan]{escape(program(*RunFolder.to_read(folder).browse_words()))}[/]")
        output.result({"marks": None})
        return
    print_figures(figures, output)
    cut = recalibrate(folder, seed) if fit else None
    if cut:
        print_cut(cut, folder, output)
    else:
        output.say("Next:")
        for words in ([["--recalibrate"]] if figures.fits_cut else []) + [["--export", "marks.csv"]]:
            output.say(f"[cyan]{escape(program('review', str(folder), *words))}[/]")
    output.result({**figures.to_dict(), "cut": cut.to_dict() if cut else None})


def print_figures(figures: "ReviewFigures", output: Output) -> None:
    """Print counts, agreement, and agreement by P(clean)."""
    output.table("What people said", figures.rows())
    if figures.bins:
        output.table("By P(clean)", figures.bin_rows(), ("P(clean)", "you keep (95 %)", "the tool agreed (95 %)"))


def print_cut(cut: "Cut", folder: Path, output: Output) -> None:
    """Print the fitted cut, what it gains, and the command that uses it."""
    rows = [
        ("cut", f"{cut.column} >= {cut.value:g} (95 %: {number(cut.interval[0])} to {number(cut.interval[1])})"),
        ("agrees with you in", str(cut.agreed)),
        ("  now", str(cut.agreed_now)),
        ("on marks it has not seen", f"{percent(cut.held_out)}; now {percent(cut.held_out_now)}"),
        ("marks and cut keep", f"{cut.keeps:,} of {counted(cut.rows, 'row')}"),
    ]
    output.table("The cut with the fewest disagreements", rows)
    if cut.held_out <= cut.held_out_now:
        output.say("The marks do not show that it is better than the present one: leave the cut, or mark more samples.")
    labels = ["--review-labels"] if "relabel" in cut.rule else []
    words = ["export", str(folder), "--as", "shards", "--where", cut.rule, *labels, "--out", "kept"]
    output.say(f"Use it:\n[cyan]{escape(program(*words))}[/]")
