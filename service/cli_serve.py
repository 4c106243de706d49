"""`noisegate serve`: the scorer over HTTP."""

from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)


def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on (default: 127.0.0.1).", show_default=False)
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port (default: 8765).", show_default=False)] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="As in annotate.", show_default=False)] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with settings.", show_default=False)] = None,
) -> None:
    """Score image-text pairs over HTTP with the scorer that annotated the corpus.

    [cyan]noisegate serve --port 8765[/]
    """
    from .serve import run
    from .settings import load_settings

    given: dict[str, Any] = {"host": host, "port": port, "model": model}
    run(load_settings(config, **given))
