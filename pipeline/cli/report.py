"""`noisegate report`: a run as one page to look at."""

from pathlib import Path
from typing import Annotated

import typer

from .options import Folder
from .output import JsonOption, Output, escape


def register(app: typer.Typer) -> None:
    app.command("report", no_args_is_help=True)(report)


def report(
    folder: Folder,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file (default: report.html in FOLDER).", show_default=False)
    ] = None,
    gallery: Annotated[int, typer.Option("--gallery", help="Number of samples in each gallery.")] = 12,
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

    output = Output(as_json)
    made = write_report(folder, out, gallery=gallery, pictures=pictures, note=output.note)
    output.say(
        f"Report: [cyan]{escape(str(made.path))}[/]  "
        f"({made.size / 1e6:,.1f} MB, {made.samples:,} samples, {made.pictures:,} pictures)"
    )
    if made.missing:
        output.say(escape(made.missing))
    output.result(made.to_dict())
