"""The commands `noisegate train`, `evaluate-model` and `bench`; nothing heavy is imported before one of them runs."""

import typer

from . import cli_bench, cli_train

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the trainers' commands."""
    cli_train.register(app)
    cli_bench.register(app)
