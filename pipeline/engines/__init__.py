"""Encode shards: in this process, in one process per device, on Ray, or as one of several nodes.

`shard_task` is the work itself: tar in, embeddings and unscored table out. `engine` says what an engine does and has the plain
one; `devices` and `ray_workers` start several encoders, which `fleet` keeps busy by the messages of `worker_protocol`;
`events` are what encoders report. `nodes` splits a run among processes that share only its folder.
"""

from noisegate.pipeline.settings import AnnotateSettings

from .devices import Devices
from .engine import EncodingEngine, EngineSettings, Local
from .events import ProgressTotals
from .nodes import Nodes, NodeShare, remove_plan
from .ray_workers import Ray
from .shard_task import ShardTask

__all__ = [
    "Devices",
    "EncodingEngine",
    "EngineSettings",
    "Local",
    "NodeShare",
    "Nodes",
    "ProgressTotals",
    "Ray",
    "ShardTask",
    "choose_engine",
    "remove_plan",
]


def choose_engine(settings: AnnotateSettings) -> EngineSettings:
    """The engine that the settings ask for; raise ConfigError for values that cannot work."""
    if settings.engine == "ray":
        return Ray(settings.address, settings.ray_workers, settings.gpus_per_worker, settings.cpus_per_worker)
    return Local() if settings.devices is None else Devices.read(settings.devices)
