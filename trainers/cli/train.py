"""`noisegate train` and `noisegate evaluate-model`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noisegate.pipeline.cli.output import JsonOption, Output, escape, program
from noisegate.pipeline.errors import ConfigError, StoppedError
from noisegate.pipeline.system import counted, require_extra

if TYPE_CHECKING:
    from noisegate.trainers.train import TrainResult

DATA, TRAINING = "Data", "Training"
TARGETS = ("clip", "dual", "sgraf", "scan", "video")

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", help="Any setting, such as optimizer.lr=1e-4; may be given several times.", show_default=False
    ),
]


def _option(name: str, help: str, panel: str | None = None, *more: str) -> Any:
    return typer.Option(name, *more, help=help, show_default=False, rich_help_panel=panel)


def register(app: typer.Typer) -> None:
    app.command("train", no_args_is_help=True)(train)
    app.command("evaluate-model", no_args_is_help=True)(evaluate_model)


def train(
    config: Annotated[Path | None, _option("--config", "YAML file with settings; flags change it.", None, "-c")] = None,
    method: Annotated[
        str | None,
        _option(
            "--method",
            "baseline, select, osa, ncr, lnc, gsl, crcl, npc, bicro, in2r, decl, tango, ssr, dividemix, label_match, aum or "
            "deft.",
        ),
    ] = None,
    shards: Annotated[
        list[str] | None, _option("--shards", "Training shards (default: those of the table).", DATA)
    ] = None,
    table: Annotated[Path | None, _option("--table", "Folder that noisegate annotate wrote.", DATA, "-t")] = None,
    eval_shards: Annotated[list[str] | None, _option("--eval-shards", "Held-out shards to measure on.", DATA)] = None,
    target: Annotated[
        str | None,
        _option(
            "--target",
            "clip, dual, sgraf, scan, video, a CLIP of open_clip (embedded, ViT-B-32, local-dir:FOLDER) or hf:NAME.",
        ),
    ] = None,
    pretrained: Annotated[
        str | None, _option("--pretrained", "Tag or checkpoint file of the CLIP.", None, "-p")
    ] = None,
    task: Annotated[str | None, _option("--task", "retrieval, classification or image_retrieval.")] = None,
    classes: Annotated[
        str | None, _option("--classes", "Class names for classification: a file or a built-in list.")
    ] = None,
    out: Annotated[Path | None, _option("--out", "Folder for numbered runs (default: runs).", None, "-o")] = None,
    epochs: Annotated[int | None, _option("--epochs", "Passes over the data (loop.epochs).", TRAINING)] = None,
    batch_size: Annotated[
        int | None, _option("--batch-size", "Samples a step, on all devices together (data.batch_size).", TRAINING)
    ] = None,
    learning_rate: Annotated[float | None, _option("--lr", "Learning rate (optimizer.lr).", TRAINING)] = None,
    device: Annotated[str | None, _option("--device", "auto, cpu, cuda or mps.", TRAINING)] = None,
    workers: Annotated[int | None, _option("--workers", "Decoding processes per device.", DATA, "-w")] = None,
    seed: Annotated[int | None, _option("--seed", "Of everything random.", TRAINING)] = None,
    weights: Annotated[
        str | None, _option("--weights", "Column of the table that multiplies each sample's loss, such as osa_weight.")
    ] = None,
    settings: Settings = None,
    resume: Annotated[Path | None, _option("--resume", "Go on with a run that stopped, such as runs/001-osa.")] = None,
    paper: Annotated[
        bool,
        typer.Option("--paper", help="Optimiser, batch size, epochs and switches of the method's paper."),
    ] = False,
    write_table: Annotated[
        Path | None, _option("--write-table", "New folder for weight tables of what the method learnt of each sample.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a network against a weight table, so that wrong pairs count little or nothing.

    [cyan]noisegate train --method osa --table tables --target ViT-B-32 --pretrained openai --eval-shards 'held-out/*.tar'[/]

    [cyan]noisegate train --config train.yaml --set optimizer.lr=1e-4 --set loop.epochs=10[/]

    [cyan]noisegate train --resume runs/001-osa[/]

    Methods: baseline (everything alike), select (what the table calls clean), osa (the table's weights on the loss); for pairs
    ncr, lnc, gsl, bicro, in2r (two networks that divide the data for one another), crcl (soft labels by momentum, in pieces),
    npc (weights by a trial step) and decl (evidence and uncertainty); for classes
    tango (labels refined by text anchors and neighbours), ssr, dividemix, label_match (zero-shot agrees), aum (margins),
    deft (negative texts).

    Each run gets a numbered folder with its settings, logs (log.jsonl, TensorBoard), best and last weights, and all that
    --resume needs. Stop it with Ctrl-C whenever you like.
    """
    require_extra("trainers", "noisegate train")
    from noisegate.trainers.config import read_config
    from noisegate.trainers.loop.run_folder import TrainFolder
    from noisegate.trainers.paper_settings import with_paper_settings
    from noisegate.trainers.train import train as run
    from noisegate.trainers.write_table import check_write_table
    from noisegate.trainers.write_table import write_table as write

    flags = {
        "method.name": method, "method.weights": weights, "data.shards": shards, "data.table": table,
        "data.eval_shards": eval_shards,
        "task.name": task, "target.classes": classes, "target.pretrained": pretrained, "out": out, "loop.epochs": epochs,
        "data.batch_size": batch_size, "optimizer.lr": learning_rate, "loop.device": device, "data.workers": workers,
        "seed": seed, **_target_settings(target),
    }  # fmt: skip
    given = {
        name: str(value) if isinstance(value, Path) else value for name, value in flags.items() if value is not None
    }
    source: Path | dict[str, Any] | None = config
    if paper and resume is None:
        source, settings, given = with_paper_settings(read_config(config, settings or (), given)), None, {}
    if write_table is not None:
        values = TrainFolder(resume).read_config() if resume else read_config(source, settings or (), given)
        check_write_table(write_table, str(values.get("method", {}).get("name", "baseline")))
    result = run(source, settings=settings or (), flags=given, resume=resume, quiet=quiet)
    if result.rank:
        return
    if result.stopped:
        raise StoppedError(f"saved; go on with: {program('train', '--resume', str(result.folder))}")
    if write_table is not None:
        write(result, write_table)
    _print_result(result, Output(as_json), write_table)


def _target_settings(name: str | None) -> dict[str, str]:
    """Return settings for a target by name, or for a model of open_clip or transformers by its name there."""
    if name is None or name in TARGETS:
        return {} if name is None else {"target.name": name}
    return {"target.name": "hf" if name.startswith("hf:") else "clip", "target.model": name}


def _print_result(result: "TrainResult", output: Output, tables: Path | None) -> None:
    rows = [
        (name, _format_figure(name, value), _format_figure(name, result.last[name]))
        for name, value in result.best.items()
    ]
    done, skipped = counted(result.steps, "update"), counted(result.skipped, "batch", "batches")
    title = f"{result.method}, {result.task}: {result.over}, {done}, {skipped} skipped"
    output.say(title if rows else f"{title}; nothing was measured")
    if rows:
        output.table("", rows, ("", f"best (epoch {result.best_epoch})", "last"))
    output.say(f"Run: [cyan]{escape(str(result.folder))}[/]")
    if tables is not None:
        output.say(f"Tables: [cyan]{escape(str(tables))}[/]")
    command = program("evaluate-model", str(result.folder), "--shards", "SHARDS")
    output.say(f"Next: [cyan]{escape(command)}[/]")
    written = {} if tables is None else {"tables": str(tables)}
    output.result({**result.to_dict(), **written, "next": command})


def _format_figure(name: str, value: float) -> str:
    return f"{value:,.0f}" if name in ("images", "captions", "samples") else f"{value:.2f}"


def evaluate_model(
    source: Annotated[
        list[Path],
        typer.Argument(help="A run's folder, or a weights file of one; several are averaged.", show_default=False),
    ],
    shards: Annotated[list[str] | None, _option("--shards", "Held-out shards (default: those of the run).")] = None,
    which: Annotated[str, typer.Option("--which", help="best or last weights of the run.")] = "best",
    task: Annotated[
        str | None, _option("--task", "retrieval, classification or image_retrieval (default: the run's).")
    ] = None,
    folds: Annotated[
        int,
        typer.Option("--folds", min=1, help="Retrieval: also the mean over this many parts of the data (COCO 1K: 5)."),
    ] = 1,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1 or mps.")] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Measure a trained network on held-out shards.

    [cyan]noisegate evaluate-model runs/001-osa --shards 'held-out/*.tar'[/]

    [cyan]noisegate evaluate-model runs/001-osa/last.safetensors --shards 'coco-test/*.tar' --folds 5[/]

    [cyan]noisegate evaluate-model runs/001-lnc runs/002-lnc --shards 'coco-test/*.tar'[/]

    Several runs are measured by their mean similarity, as papers do with SGR and SAF.

    Retrieval: recall at 1, 5 and 10 both ways and their sum; rows with the same picture are one picture with several
    captions. Classification: accuracy. Image retrieval: P@1 and mAP@R.
    """
    require_extra("trainers", "noisegate evaluate-model")
    from noisegate.trainers.evaluate import evaluate_model as run

    if which not in ("best", "last"):
        raise ConfigError.of("which", which, "is unknown; use best or last")
    settings = {"task": {"options": {"folds": folds}}} if folds > 1 else None
    output = Output(as_json)
    with output.working(f"measuring {', '.join(map(str, source))}"):
        found = run(source, shards or None, which=which, task=task, device=device, settings=settings)
    output.say(f"Weights: [cyan]{escape(', '.join(found.weights))}[/]")
    output.table(found.task, [(name, _format_figure(name, value)) for name, value in found.figures.items()])
    output.result(found.to_dict())
