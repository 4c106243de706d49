"""Who encodes the shards: this process, one process per device, or workers on Ray.

An engine's settings (`Local`, `Devices`, `Ray`) start it; all of them run the same shard task.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from noisegate.pipeline.estimators.base import Identity
    from noisegate.pipeline.labels.anchors import Anchors
    from noisegate.pipeline.labels.classes import ClassSet
    from noisegate.pipeline.neighbours import Task
    from noisegate.pipeline.pairs.beta import Beta
    from noisegate.pipeline.shards.locate import Shard

    from .progress_totals import Tally
    from .shard_task import ShardTask

__all__ = ["Engine", "EngineSettings"]


class Engine(Protocol):
    """A started engine: what a job needs of a model, wherever the model is."""

    @property
    def searches_remotely(self) -> bool:
        """Whether `search` uses machines that are not this one."""
        ...

    @property
    def identity(self) -> "Identity":
        """The scorer's; waits until a model is loaded."""
        ...

    def encode(self, task: "ShardTask", shards: "Sequence[Shard]", tally: "Tally") -> None:
        """Encode all shards into the task's folder; each event goes to the tally."""
        ...

    def random_inputs(self, seed: int) -> "Beta":
        """OSA's β of the model alone."""
        ...

    def anchors(self, classes: "ClassSet") -> "Anchors":
        """The classes' prompts, embedded."""
        ...

    def search(self, tasks: "Iterable[Task]") -> "Iterable[Task]":
        """Carry out a neighbour search's tasks where the encoders were, which may be gone by then."""
        ...


class EngineSettings(Protocol):
    """How to start an engine."""

    def start(self, estimator: Any, shards: int, note: Callable[[str], None]) -> AbstractContextManager[Engine]:
        """Load `estimator` (as `annotate` takes it) for this many shards; raises ConfigError for what cannot work."""
        ...
