"""The plain engine: one model in this process."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from noisegate.pipeline.estimators import as_estimator
from noisegate.pipeline.estimators.base import Estimator, Identity
from noisegate.pipeline.labels.anchors import Anchors, embed_anchors
from noisegate.pipeline.labels.classes import ClassSet
from noisegate.pipeline.neighbours import Task, run_in_turn
from noisegate.pipeline.pairs.beta import Beta, beta_of_random_inputs
from noisegate.pipeline.shards.locate import Shard

from .progress_totals import Tally
from .shard_task import ShardTask, encode_shards

__all__ = ["Local", "LocalEngine"]


@dataclass(frozen=True)
class Local:
    """Encode in this process."""

    @contextmanager
    def start(self, estimator: Any, shards: int, note: Callable[[str], None]) -> Iterator["LocalEngine"]:
        yield LocalEngine(as_estimator(estimator))


class LocalEngine:
    """A model, and what a job asks of it."""

    searches_remotely = False

    def __init__(self, model: Estimator) -> None:
        self._model = model

    @property
    def identity(self) -> Identity:
        return self._model.identity

    def encode(self, task: ShardTask, shards: Sequence[Shard], tally: Tally) -> None:
        encode_shards(task, self._model, shards, tally.take)

    def random_inputs(self, seed: int) -> Beta:
        return beta_of_random_inputs(self._model, seed=seed)

    def anchors(self, classes: ClassSet) -> Anchors:
        return embed_anchors(self._model, classes)

    def search(self, tasks: Iterable[Task]) -> Iterable[Task]:
        return run_in_turn(tasks)
