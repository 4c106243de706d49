"""`noisegate annotate`: shards in, weight tables out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .engine_options import Address, CpusPerWorker, Devices, Engine, GpusPerWorker, NodeRank, Nodes, RayWorkers, chosen
from .neighbour_options import NeighbourMemory
from .options import (
    BatchSize,
    Compile,
    Device,
    Draft,
    Dtype,
    Model,
    Pretrained,
    Quiet,
    Seed,
    Shards,
    TextField,
    Workers,
)
from .output import JsonOption, Output, escape, number, percent, program, why

if TYPE_CHECKING:
    from noisegate.pipeline.summary import Summary

__all__ = ["print_summary", "register"]


def register(app: typer.Typer) -> None:
    app.command("annotate", no_args_is_help=True)(annotate)


def annotate(
    shards: Shards,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the tables; a stopped run goes on there.")],
    model: Model = "embedded",
    pretrained: Pretrained = None,
    beta: Annotated[
        str,
        typer.Option(
            "--beta",
            "-b",
            help="auto, random_inputs (the paper's), intersection, fixed:VALUE, or shuffled_mean (diagnosis only: not the "
            "paper's quantity, keeps half of the noise).",
        ),
    ] = "auto",
    task: Annotated[str, typer.Option("--task", help="pairs, labels or pairs,labels.")] = "pairs",
    classes: Annotated[
        str | None,
        typer.Option(
            "--classes",
            help="Class names for the text anchors of labels: cifar10, cifar100, animal10n, a file with one name per line "
            r"in id order, or JSON of name: \[sentences].",
            show_default=False,
            rich_help_panel="Labels",
        ),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(
            "--k", help="Neighbours (default: by the data's size).", show_default=False, rich_help_panel="Labels"
        ),
    ] = None,
    neighbourhood: Annotated[
        bool,
        typer.Option(
            "--neighbourhood", help="Also compare each pair with its neighbours' partners, and find duplicates."
        ),
    ] = False,
    text_field: TextField = None,
    label_field: Annotated[
        str | None,
        typer.Option(
            "--label-field",
            help="JSON field with the class number (default: part cls, then label, cls).",
            show_default=False,
            rich_help_panel="Reading",
        ),
    ] = None,
    max_pixels: Annotated[
        int, typer.Option(help="Larger pictures become rows of status too_large.", rich_help_panel="Reading")
    ] = 90_000_000,
    max_image_bytes: Annotated[
        int, typer.Option(help="Likewise, for the picture's file.", rich_help_panel="Reading")
    ] = 64_000_000,
    max_text_chars: Annotated[int, typer.Option(help="Likewise, for captions.", rich_help_panel="Reading")] = 20_000,
    max_aspect: Annotated[
        int,
        typer.Option(
            help="Likewise, where one side is more than this many times the other.", rich_help_panel="Reading"
        ),
    ] = 200,
    workers: Workers = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    batch_size: BatchSize = None,
    draft: Draft = False,
    compile: Compile = False,
    drop_embeddings: Annotated[
        bool,
        typer.Option("--drop-embeddings", help="Do not keep embeddings; scores cannot be redone without the model."),
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Read failed samples once more, and only those.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Remove what an earlier run left in the folder, and start again.")
    ] = False,
    devices: Devices = None,
    engine: Engine = "local",
    address: Address = None,
    ray_workers: RayWorkers = None,
    gpus_per_worker: GpusPerWorker = None,
    cpus_per_worker: CpusPerWorker = None,
    neighbour_memory: NeighbourMemory = None,
    nodes: Nodes = None,
    node_rank: NodeRank = None,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: JsonOption = False,
) -> None:
    """Score every sample of SHARDS: a Parquet table per shard, one row per sample, failures included.

    [cyan]noisegate annotate 'data/{000000..000099}.tar' --model ViT-B-32 --pretrained laion2b_s34b_b79k --out tables[/]

    Stop it whenever you like and run the same command again: it goes on, and the tables come out the same to the byte.
    Exit code 0: done, failed samples are rows with a status. 1: a shard could not be read at all. 2: a setting is wrong.
    """
    from noisegate.pipeline.annotate import annotate as run
    from noisegate.pipeline.engines.nodes import Nodes as NodeSettings
    from noisegate.pipeline.errors import ConfigError
    from noisegate.pipeline.estimators import ModelSpec
    from noisegate.pipeline.labels.classes import load_classes
    from noisegate.pipeline.rescore import refuse_unused_beta
    from noisegate.pipeline.score_run import ScoreSettings
    from noisegate.pipeline.shards.decode import Limits
    from noisegate.pipeline.shards.workers import DecodeOptions
    from noisegate.pipeline.system.memory import read_size
    from noisegate.pipeline.system.progress import progress_for

    options = DecodeOptions(
        tasks=tuple(t.strip() for t in task.split(",") if t.strip()),
        text_field=text_field,
        label_field=label_field,
        limits=Limits(max_pixels, max_image_bytes, max_text_chars, max_aspect),
    )
    if classes and "labels" not in options.tasks:
        raise ConfigError("--classes are what labels are judged by, and this run scores none; add --task pairs,labels")
    if beta != "auto":
        refuse_unused_beta(ScoreSettings(beta, options.tasks))
    summary = run(
        shards,
        out,
        estimator=ModelSpec(model, pretrained, device, dtype, batch_size, draft, compile),
        beta=beta,
        options=options,
        classes=load_classes(classes) if classes else None,
        k=k,
        neighbourhood=neighbourhood,
        workers=workers,
        keep_embeddings=not drop_embeddings,
        overwrite=overwrite,
        retry_failed=retry_failed,
        seed=seed,
        neighbour_memory=read_size(neighbour_memory) if neighbour_memory else None,
        progress=progress_for(quiet),
        engine=chosen(engine, devices, address, ray_workers, gpus_per_worker, cpus_per_worker, nodes),
        nodes=NodeSettings.read(nodes, node_rank),
    )
    output = Output(as_json)
    print_summary(summary, output)
    if summary.samples and not summary.waits_for:
        output.say(f"Next: [cyan]{escape(program('show', str(out)))}[/]")
    output.result(summary.to_dict())
    if summary.failed_shards:
        raise typer.Exit(1)


def print_summary(summary: "Summary", output: Output) -> None:
    """The table at the end of a run."""
    from noisegate.pipeline.summary import hours_for

    beta, calibration = summary.beta, summary.calibration
    rows = _count_rows(summary)
    if beta and summary.scored:
        rows += [("β", str(beta)), ("  why", why(beta.reason))]
        rows += [("weight 0", percent(summary.zero_share)), ("mean weight", f"{summary.mean_weight or 0.0:.4g}")]
    if summary.similarity_quantiles:
        quantiles = summary.similarity_quantiles.items()
        rows += [("similarity", "  ".join(f"{f'{100 * float(share):g} %':>6}" for share, _ in quantiles))]
        rows += [("", "  ".join(f"{value:6.3f}" for _, value in quantiles))]
    if calibration and beta:
        expected = calibration.expected(beta.value)
        rows += [
            ("estimated noise", _rate(calibration.noise_rate, calibration.noise_interval)),
            ("  calibration error", f"{percent(calibration.ece)} on held-out pairs"),
            ("expected of w > 0", _promise(expected.clean_precision, expected.clean_recall)),
        ]
    if summary.neighbourhood and summary.neighbourhood["alone"] and summary.neighbourhood["calibration"]:
        rows += _neighbourhood_rows(summary.neighbourhood)
    if summary.labels:
        rows += _label_rows(summary.labels, summary.repaired, alone=not summary.judges_pairs)
    if summary.labels or summary.neighbourhood:
        both = ", by caption and label" if summary.labels and summary.judges_pairs else ""
        rows += [("kept as clean", f"{summary.kept:,}{both}")]
    rate = "nothing left to encode"
    if summary.pairs_per_second:
        hours = hours_for(1e6, summary.pairs_per_second)
        rate = f"{summary.pairs_per_second:,.0f} samples/s ({summary.encoded:,} encoded; a million take {hours:.1f} h)"
    rows += [("encoder", note) for note in summary.notes]
    rows += [("speed", rate), ("time", f"{summary.seconds:.1f} s")]
    output.table("What came out", rows)
    for warning in summary.warnings:
        output.tell(f"[yellow]note[/]: {escape(warning)}")
    for name, problem in summary.damaged_shards.items():
        output.tell(f"[yellow]damaged[/]: {escape(name)}: {escape(problem)}")
    for problem in summary.failed_shards.values():
        output.tell(f"[red]not read[/]: {escape(problem)}")
    if summary.waits_for:
        output.tell(
            f"[yellow]not scored yet[/]: waits for {escape(summary.waits_for)}; the last node to finish scores all"
        )
    if summary.shards:
        output.say(f"Tables: [cyan]{escape(summary.out)}[/]/*.parquet")


def _count_rows(summary: "Summary") -> list[tuple[str, str]]:
    """How many of each kind, one under the other; a failure with the first of its reasons."""
    counts = [summary.shards, summary.samples, *summary.statuses.values(), *summary.flags.values()]
    width = max(len(f"{count:,}") for count in counts)
    rows = [("shards", f"{summary.shards:{width},}"), ("samples", f"{summary.samples:{width},}")]
    for status, count in summary.statuses.items():
        share = f"{count:{width},}  {percent(count / summary.samples):>7}"
        reason = summary.errors.get(status)
        rows.append(
            (f"  {status}", f"{share}  {reason if len(reason) <= 80 else reason[:79] + '…'}" if reason else share)
        )
    return rows + [(f"  flag {flag}", f"{count:{width},}") for flag, count in summary.flags.items()]


def _neighbourhood_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was learned about pairs that have no cosine."""
    calibration, expected = facts["calibration"], facts["expected"]
    return [
        ("estimated noise", f"{_rate(calibration['noise_rate'], calibration['noise_interval'])} by neighbourhoods"),
        ("  calibration error", f"{percent(calibration['ece'])} on held-out pairs"),
        ("cut", f"neighbourhood > {number(facts['cut'], 2)}"),
        ("  why", why(facts["cut_reason"])),
        ("expected of the cut", _promise(expected["clean_precision"], expected["clean_recall"])),
    ]


def _label_rows(facts: Mapping[str, Any], repaired: int, *, alone: bool) -> list[tuple[str, str]]:
    """What was learned about the labels; `alone` where they decide what is clean."""
    from noisegate.pipeline.summary import label_promise

    expected = facts["expected"]
    sources = ", ".join(f"{name} {weight:.2f}" for name, weight in facts["source_weights"].items())
    promise = _promise(expected["clean_precision"], expected["clean_recall"])
    repairs = facts.get("repairs", True)
    if label_promise(facts) is None:
        promise = f"not known: no noise is shown, up to {percent(facts['noise_interval'][1])} is possible"
    return [
        ("classes", f"{facts['classes']:,}, {facts['k']} neighbours"),
        ("label noise rate", _rate(facts["noise_rate"], facts["noise_interval"])),
        ("  calibration error", f"{percent(facts['ece'])} in predicting the given labels"),
        ("  sources", sources),
        ("expected of clean" if alone else "expected of labels", promise),
        ("labels repaired", f"{repaired:,}" if repairs else "none: noise is not shown surely enough to change labels"),
    ]


def _rate(rate: float, interval: Sequence[float]) -> str:
    return f"{percent(rate)} (95 %: {percent(interval[0])} to {percent(interval[1])})"


def _promise(precision: float, recall: float) -> str:
    return f"precision {percent(precision)}, recall {percent(recall)}"
