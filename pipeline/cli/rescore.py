"""`noisegate rescore` and `noisegate score-embeddings`: scores without a model."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .annotate import print_summary
from .neighbour_options import Address, Engine, NeighbourIndex, NeighbourMemory, NeighbourWorkers, neighbour_search
from .options import Seed
from .output import JsonOption, Output

if TYPE_CHECKING:
    from noisegate.pipeline.labels.anchors import Anchors

__all__ = ["register"]

Vectors = Annotated[Path | None, typer.Option("--anchors", help="Text anchors, .npy (A, d).", show_default=False)]
VectorLabels = Annotated[
    Path | None, typer.Option("--anchor-labels", help="Their classes, .npy (A,).", show_default=False)
]
K = Annotated[
    int | None, typer.Option("--k", help="Neighbours (default: by the size of the data).", show_default=False)
]
Neighbourhood = Annotated[
    bool | None,
    typer.Option(
        "--neighbourhood/--no-neighbourhood", help="Compare pairs with their neighbours' partners.", show_default=False
    ),
]


def register(app: typer.Typer) -> None:
    app.command("rescore", no_args_is_help=True)(rescore)
    app.command("score-embeddings", no_args_is_help=True)(score_embeddings)


def rescore(
    folder: Annotated[Path, typer.Argument(help="A finished run with its embeddings.", show_default=False)],
    beta: Annotated[str | None, typer.Option("--beta", "-b", help="As in annotate.", show_default=False)] = None,
    task: Annotated[
        str | None, typer.Option("--task", help="pairs, labels or pairs,labels.", show_default=False)
    ] = None,
    k: K = None,
    neighbourhood: Neighbourhood = None,
    anchors: Vectors = None,
    anchor_labels: VectorLabels = None,
    methods: Annotated[
        str | None,
        typer.Option(
            "--with", help="Columns of lnc, crcl, gsl as before training, such as lnc,crcl.", show_default=False
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature", help="Of crcl (default: 0.01 for a pretrained CLIP, else 0.05).", show_default=False
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of everything random.", show_default=False)] = None,
    engine: Engine = "local",
    address: Address = None,
    memory: NeighbourMemory = None,
    index: NeighbourIndex = "auto",
    workers: NeighbourWorkers = 1,
    as_json: JsonOption = False,
) -> None:
    """Recompute every score of a run from its kept embeddings, without the model. What is not given stays as it was.

    [cyan]noisegate rescore tables --beta fixed:0.22[/]

    [cyan]noisegate rescore tables --task pairs,labels --k 100[/]

    [cyan]noisegate rescore tables --with lnc,crcl,gsl[/]

    [cyan]noisegate rescore tables --task labels --engine ray --address auto --neighbour-memory 8GB[/]

    A neighbour search that was stopped goes on where it was.

    The columns of --with depend on who shares a batch: means over five seeded permutations in batches of 128, with their
    spread. gsl is a reconstruction from its paper's supplement and reading notes.
    """
    from noisegate.pipeline.errors import ConfigError
    from noisegate.pipeline.methods.columns import OneStep
    from noisegate.pipeline.rescore import refuse_unused_beta
    from noisegate.pipeline.rescore import rescore as run
    from noisegate.pipeline.score_run import ScoreSettings

    def settings(recorded: Mapping[str, Any]) -> ScoreSettings:
        wanted = ScoreSettings(
            beta=beta or recorded["beta"],
            tasks=_tasks(task) if task else tuple(recorded["tasks"]),
            k=k if k is not None else recorded["k"],
            neighbourhood=recorded["neighbourhood"] if neighbourhood is None else neighbourhood,
            seed=recorded["seed"] if seed is None else seed,
            joint=recorded["joint"],
        )
        if beta:
            refuse_unused_beta(wanted)
        return wanted

    if temperature is not None and not methods:
        raise ConfigError("--temperature is that of crcl; add --with crcl")
    names = tuple(name.strip() for name in (methods or "").split(",") if name.strip())
    one_step = OneStep(methods=tuple(dict.fromkeys(names)), temperature=temperature)
    output = Output(as_json)
    with neighbour_search(engine, address, memory, index, workers) as search:
        summary = run(
            folder,
            settings,
            anchors=_anchors(anchors, anchor_labels),
            one_step=one_step,
            search=search,
            note=output.note,
        )
    print_summary(summary, output)
    output.result(summary.to_dict())


def score_embeddings(
    images: Annotated[
        Path, typer.Option("--images", help=".npy (N, d), a folder of them, or clip-retrieval's output folder.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the tables.")],
    texts: Annotated[
        Path | None, typer.Option("--texts", help=".npy (N, d'), or a folder of them.", show_default=False)
    ] = None,
    labels: Annotated[
        Path | None, typer.Option("--labels", help="Given classes, .npy (N,).", show_default=False)
    ] = None,
    metadata: Annotated[
        Path | None, typer.Option("--metadata", help="Parquet with the keys.", show_default=False)
    ] = None,
    anchors: Vectors = None,
    anchor_labels: VectorLabels = None,
    beta: Annotated[str, typer.Option("--beta", "-b", help="auto (here: intersection), fixed:VALUE, …")] = "auto",
    separate: Annotated[
        bool, typer.Option("--separate-spaces", help="Images and texts come from two unrelated encoders of one width.")
    ] = False,
    k: K = None,
    neighbourhood: Neighbourhood = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is in the folder.")] = False,
    seed: Seed = 0,
    engine: Engine = "local",
    address: Address = None,
    memory: NeighbourMemory = None,
    index: NeighbourIndex = "auto",
    workers: NeighbourWorkers = 1,
    as_json: JsonOption = False,
) -> None:
    """Weight tables from embeddings of any model, any modality, any language.

    [cyan]noisegate score-embeddings --images img.npy --texts txt.npy --out tables[/]

    [cyan]noisegate score-embeddings --images img.npy --labels y.npy --anchors a.npy --anchor-labels c.npy --out tables[/]

    [cyan]noisegate score-embeddings --images clip-retrieval-output --out tables[/]

    Encoders that share no space (say, a vision model and a sentence model) are judged by their neighbourhoods alone.
    """
    from noisegate.pipeline.errors import ConfigError
    from noisegate.pipeline.rescore import score_embeddings as run
    from noisegate.pipeline.runs.arrays import find_parts, open_array
    from noisegate.pipeline.score_run import ScoreSettings

    if separate and neighbourhood is False:
        raise ConfigError("--separate-spaces leaves only neighbourhoods to compare; leave out --no-neighbourhood")
    if neighbourhood is False:
        left, right = find_parts(images, texts, metadata)[0].widths
        if right not in (0, left):
            raise ConfigError(
                f"images have {left} numbers and texts {right}, which leaves only neighbourhoods to compare; leave out "
                "--no-neighbourhood"
            )
    output = Output(as_json)
    with neighbour_search(engine, address, memory, index, workers) as search:
        summary = run(
            out,
            images,
            texts=texts,
            labels=open_array(labels, "labels", 1, kinds="iu") if labels else None,
            metadata=metadata,
            anchors=_anchors(anchors, anchor_labels),
            joint=not separate,
            settings=ScoreSettings(beta=beta, k=k, neighbourhood=bool(neighbourhood), seed=seed),
            overwrite=overwrite,
            search=search,
            note=output.note,
        )
    print_summary(summary, output)
    output.result(summary.to_dict())


def _tasks(text: str) -> tuple[str, ...]:
    from noisegate.pipeline.shards.workers import DecodeOptions

    return DecodeOptions(tasks=tuple(t.strip() for t in text.split(",") if t.strip())).tasks


def _anchors(vectors: Path | None, labels: Path | None) -> "Anchors | None":
    from noisegate.pipeline.errors import ConfigError
    from noisegate.pipeline.labels.anchors import read_anchors

    if vectors is None and labels is None:
        return None
    if vectors is None or labels is None:
        raise ConfigError("--anchors and --anchor-labels belong together; give both")
    return read_anchors(vectors, labels)
