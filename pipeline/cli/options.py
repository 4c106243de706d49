"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "BatchSize",
    "Compile",
    "Device",
    "Draft",
    "Dtype",
    "Folder",
    "Model",
    "Pretrained",
    "Quiet",
    "Seed",
    "Shards",
    "TextField",
    "Workers",
]

Shards = Annotated[
    list[str],
    typer.Argument(
        help="Paths or URLs, quoted: 'x-{000000..000099}.tar', 'data/*.tar', a folder, 'a.tar::b.tar', or @list.txt.",
        show_default=False,
    ),
]
Folder = Annotated[Path, typer.Argument(help="A folder that `noisegate annotate` wrote.", show_default=False)]
Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="embedded (drawn scenes only), an open_clip name such as ViT-B-32, hf-hub:ORG/NAME, local-dir:FOLDER, "
        "hf:NAME (transformers), or python:MODULE:FACTORY.",
        rich_help_panel="Model",
    ),
]
Pretrained = Annotated[
    str | None,
    typer.Option("--pretrained", "-p", help="Tag of open_clip, or a checkpoint file.", rich_help_panel="Model"),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1 or mps.", rich_help_panel="Model")]
Dtype = Annotated[str, typer.Option("--dtype", help="auto, float32, bfloat16 or float16.", rich_help_panel="Model")]
BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        help="Samples per encoder call (default: by device).",
        show_default=False,
        rich_help_panel="Model",
    ),
]
Draft = Annotated[
    bool,
    typer.Option(
        "--draft",
        help="Decode large JPEGs at 1/2, 1/4 or 1/8 of their size: faster, slightly other scores (docs/speed.md).",
        rich_help_panel="Model",
    ),
]
Compile = Annotated[
    bool,
    typer.Option(
        "--compile",
        help="Compile the vision tower of an open_clip model by torch, and use it where it agrees and is faster; tables are "
        "then the same to rounding, not to the byte (docs/speed.md).",
        rich_help_panel="Model",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of everything random.")]
TextField = Annotated[
    str | None,
    typer.Option(
        "--text-field",
        help="JSON field with the caption (default: part txt, then caption, text).",
        show_default=False,
        rich_help_panel="Reading",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", "-w", help="Decoding processes (default: one per processor; 0: none).", show_default=False
    ),
]
