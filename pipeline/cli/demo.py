"""`noisegate demo`, the whole flow on drawn scenes, and `noisegate scenes`, which draws them; nothing is downloaded."""

from pathlib import Path
from typing import Annotated

import typer

from noisegate.pipeline.errors import ConfigError, MismatchError
from noisegate.pipeline.system.progress import counted

from .evaluate import print_evaluation
from .options import Seed
from .output import JsonOption, Output, escape, print_summary, program


def scenes(
    out: Annotated[Path, typer.Argument(help="Folder for the shards.")],
    count: Annotated[int, typer.Option("--count", "-n", help="Number of scenes.")] = 2_000,
    shards: Annotated[int, typer.Option(help="Number of shards.")] = 4,
    size: Annotated[int, typer.Option(help="Width and height in pixels.")] = 64,
    hard_negatives: Annotated[
        bool, typer.Option("--hard-negatives", help="Add to each json a caption that is wrong in one attribute.")
    ] = False,
    seed: Seed = 0,
    as_json: JsonOption = False,
) -> None:
    """Draw scenes (shapes, colours, sizes, positions, counts, backgrounds) with captions and class labels, as shards.

    [cyan]noisegate scenes clean --count 2000 --shards 4[/]

    The embedded model understands such scenes, so a trial needs no download.
    """
    from noisegate.pipeline.datasets.noise.shards import TRUTH_FILE
    from noisegate.pipeline.datasets.scenes import write_scenes
    from noisegate.pipeline.system.output_files import refuse_other_shards, remove_half_written, writing_to

    with writing_to(out):
        refuse_other_shards(out, {f"scenes-{part:06d}.tar" for part in range(shards)})
        if (out / TRUTH_FILE).exists():
            raise ConfigError.of("out", out, f"holds shards with noise in them ({TRUTH_FILE}); use an empty folder")
        remove_half_written(out)
        paths = write_scenes(out, count, shards, seed, size=size, hard_negatives=hard_negatives)
    output = Output(as_json)
    output.say(f"{counted(count, 'scene')} in {counted(len(paths), 'shard')}: [cyan]{escape(str(out))}[/]/*.tar")
    output.result({"out": str(out), "count": count, "shards": [str(path) for path in paths]})


REAL_CLIP = ("--model", "ViT-B-32", "--pretrained", "laion2b_s34b_b79k", "--out", "tables")
SEED = 1


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for everything.")] = Path("demo"),
    count: Annotated[int, typer.Option("--count", "-n", help="Number of scenes.")] = 2_000,
    rate: Annotated[float, typer.Option("--rate", "-r", help="Share of captions to shuffle.")] = 0.4,
    as_json: JsonOption = False,
) -> None:
    """Draw scenes, shuffle 40 % of their captions, score them, judge the scores, and write a report.

    [cyan]noisegate demo[/]
    """
    from noisegate.pipeline.annotate import annotate
    from noisegate.pipeline.datasets.noise.shards import noise_captions
    from noisegate.pipeline.datasets.scenes import write_scenes
    from noisegate.pipeline.inspect.evaluation import evaluate
    from noisegate.pipeline.inspect.report import write_report
    from noisegate.pipeline.system.output_files import remove_half_written, writing_to
    from noisegate.pipeline.system.progress import progress_for

    output = Output(as_json)
    name = f"{count}-{round(100 * rate)}"
    clean, noisy, tables = out / f"clean-{count}", out / f"noisy-{name}", out / f"tables-{name}"
    wrong = wrong_captions(clean, noisy, count, rate)
    output.say(f"[bold]1[/] {count:,} drawn scenes with true captions: [cyan]{escape(str(clean))}[/]")
    if wrong is None:
        with writing_to(out):
            remove_half_written(clean)
            remove_half_written(noisy)
            write_scenes(clean, count, min(4, count), seed=SEED)
        wrong = noise_captions(sorted(clean.glob("*.tar")), noisy, rate=rate, seed=SEED).noisy
    output.say(f"[bold]2[/] {wrong:,} captions now on the wrong picture: [cyan]{escape(str(noisy))}[/]")
    output.say(f"[bold]3[/] every pair scored by the embedded model: [cyan]{escape(str(tables))}[/]\n")
    shards = sorted(noisy.glob("*.tar"))
    try:
        summary = annotate(shards, tables, progress=progress_for())
    except MismatchError:  # left by another version of noisegate
        summary = annotate(shards, tables, progress=progress_for(), overwrite=True)
    print_summary(summary, output)
    evaluation = evaluate(tables)
    output.say("\n[bold]4[/] judged by the truth, which the scores never saw:\n")
    print_evaluation(evaluation, output)
    page = write_report(tables)
    output.say(
        f"[bold]5[/] a report with the worst, the borderline and the best pairs: [cyan]{escape(str(page.path))}[/]\n"
    )
    commands = {
        "the run at a glance, with its worst pairs": program("show", str(tables)),
        "β by every mode": program("calibrate", f"{noisy}/*.tar"),
        "your own shards with a real CLIP, downloaded once": program("annotate", "your/shards/*.tar", *REAL_CLIP),
    }
    output.say("Next:")
    for what, command in commands.items():
        output.say(f"  [dim]# {what}[/]\n  [cyan]{escape(command)}[/]")
    output.result(
        {"summary": summary.to_dict(), "evaluation": evaluation.to_dict(), "tables": str(tables), "shards": str(noisy)}
        | {"report": str(page.path), "next": list(commands.values())}
    )


def wrong_captions(clean: Path, noisy: Path, count: int, rate: float) -> int | None:
    """Number of wrong captions of an earlier demo; None if it had other settings or did not finish."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from noisegate.pipeline.datasets.noise.protocols import protocol_id
    from noisegate.pipeline.datasets.noise.shards import TRUTH_FILE

    protocol = protocol_id("shuffle-captions", rate=rate, derange=False, seed=SEED)
    try:
        truth = pq.read_table(noisy / TRUTH_FILE)  # written last
    except (OSError, pa.ArrowInvalid):
        return None
    made = (truth.schema.metadata or {}).get(b"noisegate.noise_protocol", b"").decode()
    shards = [f"{stem}.tar" for stem in pc.unique(truth["shard"]).to_pylist()]
    there = all((folder / name).exists() for folder in (clean, noisy) for name in shards)
    return int(pc.sum(truth["noisy"]).as_py()) if there and made == protocol and len(truth) == count else None
