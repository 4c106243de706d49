"""How neighbours are searched: the options of commands that score without a model."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .engine_options import asks_for_ray

if TYPE_CHECKING:
    from noisegate.pipeline.neighbours import NeighbourSearch

__all__ = ["Address", "Engine", "NeighbourIndex", "NeighbourMemory", "NeighbourWorkers", "neighbour_search"]

_PANEL = "Neighbour search"
Engine = Annotated[str, typer.Option("--engine", help="local, or ray.", rich_help_panel=_PANEL)]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        help="Of a Ray cluster, such as auto; all its machines need the run's folder under one name.",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
NeighbourMemory = Annotated[
    str | None,
    typer.Option(
        "--neighbour-memory",
        help="Of each machine, such as 8GB (default: half of what is free).",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
NeighbourIndex = Annotated[
    str,
    typer.Option(
        "--neighbour-index",
        help="flat (exact), ivf, ivf-pq (compressed), or auto: flat up to a million rows, ivf beyond.",
        rich_help_panel=_PANEL,
    ),
]
NeighbourWorkers = Annotated[
    int,
    typer.Option(
        "--neighbour-workers", help="Processes that search, sharing memory and processors.", rich_help_panel=_PANEL
    ),
]


@contextmanager
def neighbour_search(
    engine: str, address: str | None, memory: str | None, index: Any, workers: int
) -> "Iterator[NeighbourSearch]":
    """The search these options ask for; what it starts ends with it."""
    from noisegate.pipeline.errors import ConfigError
    from noisegate.pipeline.neighbours import NeighbourSearch, process_executor, ray_executor
    from noisegate.pipeline.system.memory import read_size

    ray = asks_for_ray(engine, {"address": address})
    if workers != 1 and ray:
        raise ConfigError(
            f"neighbour-workers {workers} are processes of this machine; leave them out with --engine ray",
            "neighbour-workers",
            workers,
        )
    size = read_size(memory) if memory else None
    with ExitStack() as started:
        if ray:
            yield NeighbourSearch(size, index, started.enter_context(ray_executor(address)), remote=True)
        elif workers != 1:
            yield NeighbourSearch(size, index, started.enter_context(process_executor(workers)), at_once=workers)
        else:
            yield NeighbourSearch(size, index)
