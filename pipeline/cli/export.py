"""`noisegate export`: a run's result in the format of other tools."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from noisegate.pipeline.system.machine import format_size
from noisegate.pipeline.system.progress import counted

from .options import Folder, refuse_memory
from .output import JsonOption, Output, percent

if TYPE_CHECKING:
    from noisegate.pipeline.export import Exported


def export(
    folder: Folder,
    kind: Annotated[
        str,
        typer.Option(
            "--as",
            help="keys, datacomp (uids, .npy), parquet, csv, jsonl, shards, datasets (Hugging Face), lance or cleanlab.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="File, or folder for shards, datasets and lance.")],
    where: Annotated[
        str | None, typer.Option(help="Keep the rows for which this rule over the table's columns is true.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Take what a recipe of the field takes of these rows: clip-score, negcliploss-normsim, soft-cap."
        ),
    ] = None,
    share: Annotated[
        float | None, typer.Option(help="Share of the rows that the recipe takes (default: its own, such as 0.3).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of a recipe that draws rows.")] = 0,
    columns: Annotated[
        str | None,
        typer.Option(
            help="For flat files and datasets: names with commas, caption too (default: key, shard, all scores)."
        ),
    ] = None,
    with_shard: Annotated[bool, typer.Option("--with-shard", help="For keys: write shard/key.")] = False,
    spreadsheet_safe: Annotated[
        bool,
        typer.Option(
            "--spreadsheet-safe",
            help="For csv and cleanlab: an apostrophe before texts that a spreadsheet would run as a formula (= + - @ first).",
        ),
    ] = False,
    add_columns: Annotated[
        str | None,
        typer.Option(help="For shards: columns to put into each sample's json, such as osa_weight or w=osa_weight."),
    ] = None,
    review_labels: Annotated[
        bool,
        typer.Option("--review-labels", help="Write people's labels (noisegate review) in place of the given ones."),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the result for other tools: all rows, or those that a rule keeps.

    [cyan]noisegate export tables --as shards --where "clean_probability > 0.9" --out kept[/]

    [cyan]noisegate export tables --as datacomp --where "osa_weight > 0" --out subset.npy[/]

    [cyan]noisegate export tables --as csv --columns shard,key,caption,osa_weight --where "status = 'ok'" --out scores.csv[/]

    [cyan]noisegate export tables --as datasets --where "clean and not flags like 'duplicate_of:%'" --out dataset[/]

    [cyan]noisegate export tables --as keys --where "review = 'keep' or (review is null and clean)" --out keys.txt[/]

    [cyan]noisegate export tables --as datacomp --recipe clip-score --share 0.3 --out subset.npy[/]

    Croissant metadata lie in the folder (croissant.json), or beside the file (NAME.croissant.json).

    A rule compares columns (= <> < <= > >=, also 0.2 < similarity < 0.4), with and, or, not, in (…), between, like, is null
    and + - * / %. Text is quoted; 'word' in flags searches the flags; a comparison with null is false.
    """
    from noisegate.pipeline.export import export as run
    from noisegate.pipeline.export.shards import parse_added_columns

    refuse_memory(out)
    output = Output(as_json)
    done = run(
        folder,
        out,
        kind,
        where=where,
        recipe=recipe,
        share=share,
        seed=seed,
        columns=None if columns is None else [name.strip() for name in columns.split(",") if name.strip()],
        with_shard=with_shard,
        spreadsheet_safe=spreadsheet_safe,
        add_columns=parse_added_columns(add_columns) if add_columns else None,
        review_labels=review_labels,
        overwrite=overwrite,
    )
    _print(done, output)
    output.result(done.to_dict())


def _print(done: "Exported", output: Output) -> None:
    share = percent(done.kept / done.rows) if done.rows else "–"
    files = f"{len(done.files):,} files" if len(done.files) > 1 else done.files[0]
    rows = [
        ("rows in the run", f"{done.rows:,}"),
        ("kept", f"{done.kept:,} ({share})"),
        ("written", f"{done.written:,}"),
        *((f"left out: {why}", f"{count:,}") for why, count in done.left_out.items()),
        ("files", f"{files}, {format_size(done.bytes)}"),
    ]
    output.table(f"Exported as {done.kind} to {done.out}", rows)
    if done.empty_shards:
        some = ", ".join(done.empty_shards[:5]) + (", …" if len(done.empty_shards) > 5 else "")
        output.note(f"skipped, because nothing would be in them: {some} (shards: {len(done.empty_shards):,})")
    if done.unscored_shards:
        output.note(
            f"not in it, because they could not be read when the run was scored: {counted(done.unscored_shards, 'shard')}"
        )
