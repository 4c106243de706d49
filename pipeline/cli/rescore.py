"""Scores without a model: `noisegate rescore` from the embeddings of a run, `score-embeddings` from arrays of any model."""

from pathlib import Path
from typing import Annotated

import typer

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.settings import ScoreSettings

from .options import (
    AnchorLabels,
    AnchorVectors,
    K,
    NeighbourAddress,
    NeighbourEngine,
    Neighbourhood,
    NeighbourIndex,
    NeighbourMemory,
    NeighbourWorkers,
    Seed,
    load_anchors,
    neighbour_search,
    option,
    refuse_memory,
)
from .output import JsonOption, Output, print_summary


def rescore(
    folder: Annotated[Path, typer.Argument(help="A finished run with its embeddings.")],
    beta: Annotated[str | None, option("beta")] = None,
    cut: Annotated[str | None, option("cut")] = None,
    task: Annotated[str | None, option("tasks")] = None,
    k: K = None,
    neighbourhood: Neighbourhood = None,
    anchors: AnchorVectors = None,
    anchor_labels: AnchorLabels = None,
    repair: Annotated[str | None, option("repair", rich_help_panel=None)] = None,
    methods: Annotated[
        str | None,
        typer.Option("--with", help="Add columns: lnc, crcl, gsl, negcliploss, csls, normsim, semdedup; with commas."),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="τ of negcliploss (default: that of pair_quality) and crcl (0.01 for a pretrained CLIP, else 0.05)."
        ),
    ] = None,
    target: Annotated[
        Path | None, typer.Option(help="Target pictures of normsim: a folder of pictures, a run, or a .npy (M, d).")
    ] = None,
    norm: Annotated[str, typer.Option(help="Norm of normsim: 2, or inf for the nearest target.")] = "inf",
    trust_run: Annotated[
        bool, typer.Option("--trust-run", help="Let a recorded model that is no open_clip model encode --target.")
    ] = False,
    join: Annotated[
        Path | None, typer.Option(help="Add scores made elsewhere, by key: .csv, .parquet or .jsonl.")
    ] = None,
    seed: Annotated[int | None, option("seed", min=None)] = None,
    engine: NeighbourEngine = "local",
    address: NeighbourAddress = None,
    memory: NeighbourMemory = None,
    index: NeighbourIndex = "auto",
    workers: NeighbourWorkers = 1,
    as_json: JsonOption = False,
) -> None:
    """Recompute every score of a run from its kept embeddings, without the model. Settings that are not given stay.

    --join alone recomputes nothing and needs no embeddings.

    [cyan]noisegate rescore tables --beta fixed:0.22[/]

    [cyan]noisegate rescore tables --task pairs,labels --k 100[/]

    [cyan]noisegate rescore tables --with lnc,crcl,gsl[/]

    [cyan]noisegate rescore tables --with negcliploss,normsim --target imagenet-train[/]

    [cyan]noisegate rescore tables --join dfn-scores.parquet[/]

    [cyan]noisegate rescore tables --task labels --engine ray --address auto --neighbour-memory 8GB[/]

    A stopped neighbour search goes on.

    Columns of lnc, crcl and gsl depend on the other samples of a batch: they are means over five seeded permutations in
    batches of 128, with their spread. gsl is a reconstruction from its paper's supplement and reading notes.
    """
    from noisegate.pipeline.methods.columns import OneStep
    from noisegate.pipeline.rescore import rescore as run

    if norm not in ("2", "inf"):
        raise ConfigError.of("norm", norm, "is none of NormSim's; use 2 or inf")
    names = tuple(name.strip() for name in (methods or "").split(",") if name.strip())
    one_step = OneStep(
        methods=tuple(dict.fromkeys(names)),
        temperature=temperature,
        target=target,
        norm=float(norm),
        trust=trust_run,
        join=join,
    )
    output = Output(as_json)
    with neighbour_search(engine, address, memory, index, workers) as search:
        summary = run(
            folder,
            beta=beta,
            cut=cut,
            task=task,
            k=k,
            neighbourhood=neighbourhood,
            repair=repair,
            seed=seed,
            anchors=load_anchors(anchors, anchor_labels),
            one_step=one_step,
            search=search,
            note=output.note,
        )
    print_summary(summary, output)
    output.result(summary.to_dict())


def score_embeddings(
    images: Annotated[Path, typer.Option(help=".npy (N, d), a folder of them, or clip-retrieval's output folder.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder, or URL in a store, for the tables.")],
    texts: Annotated[Path | None, typer.Option(help=".npy (N, d'), or a folder of them.")] = None,
    labels: Annotated[Path | None, typer.Option(help="Given classes, .npy (N,).")] = None,
    metadata: Annotated[Path | None, typer.Option(help="Parquet with the keys.")] = None,
    shards: Annotated[
        str | None, typer.Option(help="The shards that were embedded: one table for each, for training. Needs keys.")
    ] = None,
    anchors: AnchorVectors = None,
    anchor_labels: AnchorLabels = None,
    class_names: Annotated[
        str | None, typer.Option(help="Names of the classes: cifar10, …, or a file with one per line in id order.")
    ] = None,
    repair: Annotated[str, option("repair", rich_help_panel=None)] = ScoreSettings.repair,
    beta: Annotated[str, typer.Option("--beta", "-b", help="auto (here: intersection), fixed:VALUE, …")] = "auto",
    cut: Annotated[str, option("cut")] = ScoreSettings.cut,
    separate: Annotated[
        bool, typer.Option("--separate-spaces", help="Images and texts come from two unrelated encoders of one width.")
    ] = False,
    k: K = None,
    neighbourhood: Neighbourhood = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is in the folder.")] = False,
    seed: Seed = 0,
    engine: NeighbourEngine = "local",
    address: NeighbourAddress = None,
    memory: NeighbourMemory = None,
    index: NeighbourIndex = "auto",
    workers: NeighbourWorkers = 1,
    as_json: JsonOption = False,
) -> None:
    """Write weight tables from embeddings of any model, any modality, any language.

    [cyan]noisegate score-embeddings --images img.npy --texts txt.npy --out tables[/]

    [cyan]noisegate score-embeddings --images img.npy --labels y.npy --anchors a.npy --anchor-labels c.npy --out tables[/]

    [cyan]noisegate score-embeddings --images clip-retrieval-output --out tables[/]

    [cyan]noisegate score-embeddings --images i.npy --texts t.npy --metadata keys.parquet --shards 'data/*.tar' --out tables[/]

    Encoders that share no space (say, a vision model and a sentence model) are judged by their neighbourhoods alone.
    """
    from noisegate.pipeline.labels.classes import load_classes
    from noisegate.pipeline.rescore import score_embeddings as run
    from noisegate.pipeline.runs.arrays import find_parts, open_array

    refuse_memory(out)
    if separate and neighbourhood is False:
        problem = "leaves nothing to compare with --separate-spaces; leave out --no-neighbourhood"
        raise ConfigError.of("neighbourhood", False, problem)
    if neighbourhood is False:
        left, right = find_parts(images, texts, metadata)[0].widths
        if right not in (0, left):
            problem = f"leaves nothing to compare, as images have {left} numbers and texts {right}"
            raise ConfigError.of("neighbourhood", False, f"{problem}; leave out --no-neighbourhood")
    names = load_classes(class_names).names if class_names else ()
    output = Output(as_json)
    with neighbour_search(engine, address, memory, index, workers) as search:
        summary = run(
            out,
            images,
            texts=texts,
            labels=open_array(labels, "labels", 1, kinds="iu") if labels else None,
            metadata=metadata,
            shards=shards,
            anchors=load_anchors(anchors, anchor_labels, names),
            class_names=names,
            joint=not separate,
            settings=ScoreSettings(
                beta=beta, k=k, neighbourhood=bool(neighbourhood), seed=seed, repair=repair, cut=cut
            ),
            overwrite=overwrite,
            search=search,
            note=output.note,
        )
    print_summary(summary, output)
    output.result(summary.to_dict())
