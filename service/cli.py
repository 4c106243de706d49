"""The commands `noisegate serve` and `noisegate score`; nothing heavy is imported before one of them runs."""

import typer

from . import cli_score, cli_serve

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the service's commands."""
    cli_serve.register(app)
    cli_score.register(app)
