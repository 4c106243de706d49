"""`noisegate adapt`: a model that has seen some of your data."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from .options import Device, Model, Pretrained, Quiet, Seed, Shards, Workers, panel
from .output import JsonOption, Output, number, percent

training_option = panel("Training")


def adapt(
    shards: Shards,
    out: Annotated[Path, typer.Option("--out", "-o", help="New folder for the model, loaded by local-dir:FOLDER.")],
    model: Model = "embedded",
    pretrained: Pretrained = None,
    device: Device = "auto",
    classes: Annotated[
        str | None,
        typer.Option(help="Adapt to class labels: names in id order, a file with one per line, or such as cifar10."),
    ] = None,
    image_pairs: Annotated[
        bool,
        typer.Option("--image-pairs", help="Adapt to labels for image retrieval: a pair is two pictures of one label."),
    ] = False,
    pairs: Annotated[
        int, typer.Option(help="Number of pairs to read, from the start; 10,000 of 224 px take 1.5 GB of memory.")
    ] = 10_000,
    keep: Annotated[
        float | None,
        typer.Option(
            help="Train on pairs that are clean with a probability above this (default: .8, with --classes .95)."
        ),
    ] = None,
    steps: Annotated[int, training_option(help="Number of steps of AdamW.")] = 100,
    batch_size: Annotated[int, training_option(help="Pairs per step.")] = 128,
    learning_rate: Annotated[float, training_option("--lr", help="Highest learning rate.")] = 1e-5,
    weight_decay: Annotated[float, training_option(help="Weight decay of the weight matrices.")] = 0.2,
    workers: Workers = None,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: JsonOption = False,
) -> None:
    """Fine-tune a model for a few steps on pairs of your data that look clean, before it scores the rest (OSA, appendix A).

    [cyan]noisegate adapt 'data/{000000..000009}.tar' --model ViT-B-32 --pretrained laion2b_s34b_b79k --out adapted[/]

    [cyan]noisegate annotate 'data/{000000..000099}.tar' --model local-dir:adapted --out tables[/]

    [cyan]noisegate adapt 'data/*.tar' --model ViT-B-32 --pretrained openai --classes classes.txt --out adapted[/]

    Pairs with a small loss count as clean, by a mixture of two Gaussians. Works for open_clip models: embedded, a name with
    --pretrained, hf-hub: or local-dir:. Worth a try if your pictures or captions differ from those of the web; check that
    the loss on held-out pairs falls. β is measured again, because the embeddings change; annotate uses auto unless --beta is
    given.
    """
    from noisegate.pipeline.labels.classes import load_classes
    from noisegate.pipeline.system.progress import progress_for
    from noisegate.pipeline.tools.adapt import adapt as run
    from noisegate.pipeline.tools.tuning import Tuning

    done = run(
        shards,
        out,
        model=model,
        pretrained=pretrained,
        device=device,
        classes=None if classes is None else load_classes(classes),
        image_pairs=image_pairs,
        pairs=pairs,
        keep=keep,
        tuning=Tuning(steps, batch_size, learning_rate, weight_decay),
        workers=workers,
        seed=seed,
        note=progress_for(quiet).note,
    )
    output, automatic = Output(as_json), (done.auto_before, done.auto_after)
    output.table(
        f"{done.source.model}, adapted",
        [
            ("pairs read", f"{done.pairs:,}", ""),
            ("kept", f"{done.kept:,}", percent(done.kept / done.pairs)),
            ("", "before", "after"),
            (f"loss on {done.held_out:,} held-out pairs", number(done.loss_before), number(done.loss_after)),
            ("β of random inputs", number(done.beta_before.value), number(done.beta_after.value)),
            ("β that auto takes for these pairs", *(f"{number(b.value)} ({b.mode})" for b in automatic)),
        ],
        ("", "", ""),
    )
    if done.loss_rose:
        output.say(
            "[yellow]note[/]: the loss rose; try a smaller --lr or fewer --steps, or stay with the model as it was"
        )
    output.say("Next:")
    task = [] if classes is None else ["--task", "labels", "--classes", classes]
    if image_pairs:
        task = ["--task", "labels"]
    command = shlex.join(["noisegate", "annotate", *shards, "--model", f"local-dir:{out}", *task, "--out", "tables"])
    output.say(f"  [cyan]{command}[/]")
    output.result({**done.to_dict(), "next": command})
