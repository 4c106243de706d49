"""The protocol of encoding engines, and the simplest engine: one model in this process."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from noisegate.pipeline.estimators import as_estimator
from noisegate.pipeline.estimators.base import Estimator, Identity
from noisegate.pipeline.labels.anchors import Anchors, embed_anchors
from noisegate.pipeline.labels.classes import ClassSet
from noisegate.pipeline.neighbours import Task, run_in_turn
from noisegate.pipeline.pairs.beta import Beta, beta_of_random_inputs
from noisegate.pipeline.shards.locate import Shard

from .shard_task import ProgressTotals, ShardTask, encode_shards


class EncodingEngine(Protocol):
    """A started engine: the operations of a job that need the model, wherever the model runs."""

    @property
    def searches_remotely(self) -> bool:
        """Whether `search` uses other machines."""

    @property
    def identity(self) -> Identity:
        """Identity of the scorer; waits until a model is loaded."""

    def encode(self, task: ShardTask, shards: Sequence[Shard], totals: ProgressTotals) -> None:
        """Encode all shards into the task's folder; each event is added to the totals."""

    def random_inputs(self, seed: int) -> Beta:
        """Measure OSA's β of the model alone."""

    def anchors(self, classes: ClassSet) -> Anchors:
        """Embed the prompts of the classes."""

    def search(self, tasks: Iterable[Task]) -> Iterable[Task]:
        """Carry out the tasks of a neighbour search; encoders may be stopped to make room."""


class EngineSettings(Protocol):
    """How to start an engine."""

    def start(self, estimator: Any, shards: int, note: Callable[[str], None]) -> AbstractContextManager[EncodingEngine]:
        """Load `estimator` (as `annotate` takes it) for this many shards; raise ConfigError for what cannot work."""


@dataclass(frozen=True)
class Local:
    """Encode in this process."""

    @contextmanager
    def start(self, estimator: Any, shards: int, note: Callable[[str], None]) -> Iterator["InProcessEngine"]:
        yield InProcessEngine(as_estimator(estimator))


class InProcessEngine:
    """One model in this process."""

    searches_remotely = False

    def __init__(self, model: Estimator) -> None:
        self._model = model

    @property
    def identity(self) -> Identity:
        return self._model.identity

    def encode(self, task: ShardTask, shards: Sequence[Shard], totals: ProgressTotals) -> None:
        encode_shards(task, self._model, shards, totals.add)

    def random_inputs(self, seed: int) -> Beta:
        return beta_of_random_inputs(self._model, seed=seed)

    def anchors(self, classes: ClassSet) -> Anchors:
        return embed_anchors(self._model, classes)

    def search(self, tasks: Iterable[Task]) -> Iterable[Task]:
        return run_in_turn(tasks)
