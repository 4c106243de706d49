"""`noisegate noise`: shards with mistakes that are known."""

from pathlib import Path
from typing import Annotated

import typer

from .options import Seed, Shards
from .output import JsonOption, Output, percent

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command("noise", no_args_is_help=True)(noise)


def noise(
    shards: Shards,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the noisy shards.")],
    rate: Annotated[float, typer.Option("--rate", "-r", help="Share of samples to spoil, 0 to 1.")],
    protocol: Annotated[
        str,
        typer.Option(
            "--protocol",
            help="shuffle-captions (NCR, NPC) or shuffle-images (all captions of a picture move together, DECL).",
        ),
    ] = "shuffle-captions",
    derange: Annotated[
        bool, typer.Option("--derange", help="Let no caption stay by chance: exactly the rate.")
    ] = False,
    seed: Seed = 0,
    as_json: JsonOption = False,
) -> None:
    """Copy shards with some captions mismatched on purpose, and record which.

    [cyan]noisegate noise 'clean/*.tar' --protocol shuffle-captions --rate 0.4 --seed 7 --out noisy[/]

    The mask is in each sample's json (field noisy) and in noise.parquet; `noisegate evaluate` reads either.
    """
    from ..noise.shards import noise_captions

    report = noise_captions(shards, out, protocol=protocol, rate=rate, seed=seed, derange=derange)
    output = Output(as_json)
    output.table(
        "Noise",
        [
            ("protocol", report.protocol),
            ("samples", f"{report.samples:,}"),
            ("noisy", f"{report.noisy:,} ({percent(report.rate)})"),
            *([("without caption", f"{report.untouched:,}")] if report.untouched else []),
        ],
    )
    output.say(f"Shards: [cyan]{out}[/]/*.tar  Truth: [cyan]{out}[/]/noise.parquet")
    output.result({**vars(report), "rate": report.rate})
