"""`noisegate verify`: does a table still belong to its data?"""

from typing import TYPE_CHECKING, Annotated

import typer

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system.controls import show_line

from .options import BatchSize, Device, Folder, Pretrained, Quiet, Seed, TrustRun, option
from .output import JsonOption, Output, escape, number

if TYPE_CHECKING:
    from noisegate.pipeline.inspect.verify import Verification

SHOWN = 20


def verify(
    folder: Folder,
    samples: Annotated[int, typer.Option(min=0, help="Number of random samples to score again.")] = 200,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0, help="Largest change of a score that is accepted (default: 1e-4; 1e-3 with another --decoder)."
        ),
    ] = None,
    rescore: Annotated[
        bool, typer.Option("--rescore/--no-rescore", help="Score some samples again; needs the model.")
    ] = True,
    shards: Annotated[int | None, typer.Option(min=1, help="Check this many random shards (default: all).")] = None,
    model: Annotated[str | None, option("model", help="As in annotate (default: the recorded model).")] = None,
    pretrained: Pretrained = None,
    trust_run: TrustRun = False,
    device: Device = "auto",
    decoder: Annotated[
        str, option("decoder", help="Score with this decoder, pillow, fast or gpu (default: the run's own).")
    ] = "auto",
    batch_size: BatchSize = None,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: JsonOption = False,
) -> None:
    """Read the shards of a run again, and check whether its tables still belong to them.

    Checks files, digests, keys and their order, pictures, captions and labels; that the scores follow from similarity and
    β; and that some random samples get the same scores again.

    [cyan]noisegate verify tables[/]

    [cyan]noisegate verify tables --shards 10 --samples 1000[/]

    [cyan]noisegate verify tables --no-rescore[/]

    Exit code 0: all is as recorded. 1: something differs. 2: there is no run, or a setting is wrong.
    """
    from noisegate.pipeline.inspect.verify import verify as check
    from noisegate.pipeline.pairs.scorer import model_of_run
    from noisegate.pipeline.runs.table import RunFolder
    from noisegate.pipeline.system.progress import progress_for

    if pretrained is not None and model is None:
        raise ConfigError.of("pretrained", pretrained, "belongs to a model; give --model too, or leave both out")
    run = RunFolder.to_read(folder).recorded()
    named = (
        None if model is None else model_of_run(run, model, pretrained, device, batch_size=batch_size, decoder=decoder)
    )
    verification = check(
        folder,
        samples=samples,
        tolerance=tolerance,
        rescore=rescore,
        shards=shards,
        estimator=named,
        device=device,
        decoder=decoder,
        batch_size=batch_size,
        trust=trust_run,
        seed=seed,
        progress=progress_for(quiet, "check", "problems"),
    )
    output = Output(as_json)
    print_verification(verification, output)
    output.result(verification.to_dict())
    if not verification.ok:
        raise typer.Exit(1)


def print_verification(verification: "Verification", output: Output) -> None:
    """Print drift and notes, the first problems, and the verdict as the last line."""
    drift = verification.drift
    rows = [
        (name, number(value, 8))
        for name, value in (("similarity", drift.similarity), ("osa_weight", drift.weight), ("picture", drift.image))
        if value is not None
    ]
    if rows:
        output.table("Largest drift", [*rows, ("samples scored again", f"{drift.samples:,}")])
    for note in verification.notes:
        output.say(f"[yellow]note[/]: {escape(note)}")
    for problem in verification.problems[:SHOWN]:
        output.say(f"[red]differs[/]: {escape(show_line(str(problem)))}")
    if verification.problem_count > SHOWN:
        output.say(f"… and {verification.problem_count - SHOWN:,} more")
    output.say(f"[{'green' if verification.ok else 'bold red'}]{escape(verification.verdict)}[/]")
