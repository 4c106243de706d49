"""`noisegate score-embeddings`: weight tables from embeddings of any model."""

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
)
from .output import JsonOption, Output
from .summary import print_summary


def register(app: typer.Typer) -> None:
    app.command("score-embeddings", no_args_is_help=True)(score_embeddings)


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
    anchors: AnchorVectors = None,
    anchor_labels: AnchorLabels = None,
    beta: Annotated[str, typer.Option("--beta", "-b", help="auto (here: intersection), fixed:VALUE, …")] = "auto",
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

    Encoders that share no space (say, a vision model and a sentence model) are judged by their neighbourhoods alone.
    """
    from noisegate.pipeline.rescore import score_embeddings as run
    from noisegate.pipeline.runs.arrays import find_parts, open_array

    if separate and neighbourhood is False:
        raise ConfigError(
            "--separate-spaces leaves only neighbourhoods to compare; leave out --no-neighbourhood",
            "neighbourhood",
            False,
        )
    if neighbourhood is False:
        left, right = find_parts(images, texts, metadata)[0].widths
        if right not in (0, left):
            raise ConfigError(
                f"images have {left} numbers and texts {right}, which leaves only neighbourhoods to compare; leave out "
                "--no-neighbourhood",
                "neighbourhood",
                False,
            )
    output = Output(as_json)
    with neighbour_search(engine, address, memory, index, workers) as search:
        summary = run(
            out,
            images,
            texts=texts,
            labels=open_array(labels, "labels", 1, kinds="iu") if labels else None,
            metadata=metadata,
            anchors=load_anchors(anchors, anchor_labels),
            joint=not separate,
            settings=ScoreSettings(beta=beta, k=k, neighbourhood=bool(neighbourhood), seed=seed),
            overwrite=overwrite,
            search=search,
            note=output.note,
        )
    print_summary(summary, output)
    output.result(summary.to_dict())
