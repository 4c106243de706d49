"""`noisegate annotate`: shards in, weight tables out."""

from pathlib import Path
from typing import Annotated

import typer

from noisegate.pipeline.settings import AnnotateSettings

from .options import Quiet, Shards, refuse_memory, takes_settings
from .output import JsonOption, Output, escape, print_summary, program


@takes_settings
def annotate(
    settings: AnnotateSettings,
    shards: Shards,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder, or URL in a store, for the tables; a stopped run goes on.")
    ],
    report: Annotated[
        bool,
        typer.Option("--report", help="Also write report.html there: scores, noise, the worst and the best pairs."),
    ] = False,
    quiet: Quiet = False,
    as_json: JsonOption = False,
) -> None:
    """Score every sample of SHARDS: a Parquet table per shard, one row per sample, failures included.

    [cyan]noisegate annotate 'data/{000000..000099}.tar' --model ViT-B-32 --pretrained laion2b_s34b_b79k --out tables[/]

    [cyan]noisegate annotate photos --report --out tables[/]

    Stop it at any time and run the same command again: it goes on, and the tables are the same to the byte.
    Exit code 0: done; failed samples are rows with a status. 1: a shard could not be read at all or breaks off, as after
    half a download (its samples are scored), or no sample could be scored. 2: a setting is wrong.
    """
    from noisegate.pipeline.annotate import annotate_with
    from noisegate.pipeline.labels.classes import SOURCE, load_classes
    from noisegate.pipeline.system.progress import progress_for

    settings.refuse_unused()
    refuse_memory(out)
    classes = load_classes(settings.classes) if settings.classes not in (None, "", SOURCE) else None
    summary = annotate_with(settings, shards, out, classes=classes, progress=progress_for(quiet))
    output = Output(as_json)
    print_summary(summary, output, named=not quiet)
    result = summary.to_dict()
    if summary.statuses.get("ok") and not summary.waits_for:
        if report:
            from noisegate.pipeline.inspect.report import write_report

            page = write_report(out, note=output.note)
            output.say(f"Report: [cyan]{escape(str(page.path))}[/]")
            result["report"] = str(page.path)
        output.say(f"Next: [cyan]{escape(program('show', summary.out))}[/]")
    output.result(result)
    if summary.failed_shards or summary.cut_shards or (summary.samples and not summary.statuses.get("ok")):
        raise typer.Exit(1)
