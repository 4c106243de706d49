"""`noisegate rescore`: other scores for a finished run, without a model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.settings import ScoreSettings, read_tasks

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
    load_anchors,
    neighbour_search,
    option,
)
from .output import JsonOption, Output
from .summary import print_summary


def register(app: typer.Typer) -> None:
    app.command("rescore", no_args_is_help=True)(rescore)


def rescore(
    folder: Annotated[Path, typer.Argument(help="A finished run with its embeddings.", show_default=False)],
    beta: Annotated[str | None, option("beta", show_default=False)] = None,
    task: Annotated[str | None, option("tasks", show_default=False)] = None,
    k: K = None,
    neighbourhood: Neighbourhood = None,
    anchors: AnchorVectors = None,
    anchor_labels: AnchorLabels = None,
    methods: Annotated[
        str | None,
        typer.Option(
            "--with", help="Add columns of lnc, crcl, gsl before any training, such as lnc,crcl.", show_default=False
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            help="Temperature of crcl (default: 0.01 for a pretrained CLIP, else 0.05).",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int | None, option("seed", show_default=False, min=None)] = None,
    engine: NeighbourEngine = "local",
    address: NeighbourAddress = None,
    memory: NeighbourMemory = None,
    index: NeighbourIndex = "auto",
    workers: NeighbourWorkers = 1,
    as_json: JsonOption = False,
) -> None:
    """Recompute every score of a run from its kept embeddings, without the model. Settings that are not given stay.

    [cyan]noisegate rescore tables --beta fixed:0.22[/]

    [cyan]noisegate rescore tables --task pairs,labels --k 100[/]

    [cyan]noisegate rescore tables --with lnc,crcl,gsl[/]

    [cyan]noisegate rescore tables --task labels --engine ray --address auto --neighbour-memory 8GB[/]

    A stopped neighbour search goes on.

    The columns of --with depend on the other samples of a batch: they are means over five seeded permutations in batches of
    128, with their spread. gsl is a reconstruction from its paper's supplement and reading notes.
    """
    from noisegate.pipeline.methods.columns import OneStep
    from noisegate.pipeline.rescore import rescore as run

    def settings(recorded: Mapping[str, Any]) -> ScoreSettings:
        wanted = ScoreSettings(
            beta=beta or recorded["beta"],
            tasks=read_tasks(task) if task else tuple(recorded["tasks"]),
            k=k if k is not None else recorded["k"],
            neighbourhood=recorded["neighbourhood"] if neighbourhood is None else neighbourhood,
            seed=recorded["seed"] if seed is None else seed,
            joint=recorded["joint"],
        )
        if beta:
            wanted.refuse_unused_beta()
        return wanted

    if temperature is not None and not methods:
        raise ConfigError("--temperature is that of crcl; add --with crcl", "temperature", temperature)
    names = tuple(name.strip() for name in (methods or "").split(",") if name.strip())
    one_step = OneStep(methods=tuple(dict.fromkeys(names)), temperature=temperature)
    output = Output(as_json)
    with neighbour_search(engine, address, memory, index, workers) as search:
        summary = run(
            folder,
            settings,
            anchors=load_anchors(anchors, anchor_labels),
            one_step=one_step,
            search=search,
            note=output.note,
        )
    print_summary(summary, output)
    output.result(summary.to_dict())
