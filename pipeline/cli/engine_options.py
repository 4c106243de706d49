"""Options of `annotate` that say who encodes: devices of this host, Ray workers, or one of several nodes."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from noisegate.pipeline.errors import ConfigError

if TYPE_CHECKING:
    from noisegate.pipeline.engines import EngineSettings

__all__ = [
    "Address",
    "CpusPerWorker",
    "Devices",
    "Engine",
    "GpusPerWorker",
    "NodeRank",
    "Nodes",
    "RayWorkers",
    "asks_for_ray",
    "chosen",
]

PANEL = "Several devices, several hosts"

Devices = Annotated[
    str | None,
    typer.Option(
        "--devices",
        help="One encoder process for each: all (GPUs), cuda:0,cuda:1, or 2 for two that share the processors.",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]
Engine = Annotated[str, typer.Option("--engine", help="local, or ray for workers on a cluster.", rich_help_panel=PANEL)]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        help="Of the Ray cluster: auto, HOST:PORT (default: RAY_ADDRESS, else a Ray of this host alone).",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]
RayWorkers = Annotated[
    int | None,
    typer.Option(
        "--ray-workers",
        help="How many encode (default: one per GPU or part of one, else one per node).",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]
GpusPerWorker = Annotated[
    float | None,
    typer.Option(
        "--gpus-per-worker",
        help="Of a Ray worker; 0.5 puts two on one GPU (default: 1 where there are GPUs).",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]
CpusPerWorker = Annotated[
    float | None,
    typer.Option(
        "--cpus-per-worker",
        help="Of a Ray worker (default: an equal share of its node's).",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]
Nodes = Annotated[
    str | None,
    typer.Option(
        "--nodes",
        help="Run as one of so many nodes that share --out, or slurm: count and rank from srun.",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]
NodeRank = Annotated[
    int | None,
    typer.Option(
        "--node-rank",
        help="Which of --nodes this is, from 0; the last to finish scores.",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]


def asks_for_ray(engine: str, of_ray: Mapping[str, object]) -> bool:
    """Whether the engine is Ray; raises ConfigError for an unknown one, and where Ray's options are given without it."""
    if engine not in ("local", "ray"):
        raise ConfigError(f"engine {engine!r} is unknown; use local or ray", "engine", engine)
    given = next((name for name, value in of_ray.items() if value is not None), None)
    if given and engine != "ray":
        raise ConfigError(f"--{given} is for Ray; add --engine ray", given, of_ray[given])
    return engine == "ray"


def chosen(
    engine: str,
    devices: str | None,
    address: str | None,
    workers: int | None,
    gpus: float | None,
    cpus: float | None,
    nodes: str | None,
) -> "EngineSettings | None":
    """The engine that these options ask for, None for the plain one; raises ConfigError for options that do not go together."""
    of_ray = {"address": address, "ray-workers": workers, "gpus-per-worker": gpus, "cpus-per-worker": cpus}
    if asks_for_ray(engine, of_ray):
        for name, value in {"devices": devices, "nodes": nodes}.items():
            if value is not None:
                raise ConfigError(f"--engine ray finds its devices and nodes itself; leave out --{name} {value}")
        from noisegate.pipeline.engines.ray_workers import Ray

        return Ray(address, workers, gpus, cpus)
    if devices is None:
        return None
    from noisegate.pipeline.engines.devices import Devices as DeviceSettings

    return DeviceSettings.read(devices)
