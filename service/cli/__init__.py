"""The commands `noisegate serve` and `noisegate score`; heavy libraries are imported when one of them runs."""

import typer

from . import score, serve

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the service's commands."""
    serve.register(app)
    score.register(app)
