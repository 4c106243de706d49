"""The commands `noisegate train`, `evaluate-model` and `bench`; nothing heavy is imported before one of them runs."""

import typer

from . import bench, train

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the trainers' commands."""
    train.register(app)
    bench.register(app)
