"""Encoders as Ray actors, on one host or many. `ray` is imported when an engine is started, not before.

Nothing large goes through Ray's object store: an actor reads its shards and writes their files to the shared folder by
itself, and a few small facts per shard come back. An actor that is lost, with its host or without, is replaced.
"""

import os
import pickle
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators import ModelSpec
from noisegate.pipeline.neighbours import Task
from noisegate.pipeline.neighbours import ray_executor as search_on_ray
from noisegate.pipeline.system.ray_connection import connect_to_ray, first_line, import_ray

from .devices import portable
from .fleet import Fleet, Link, Lost
from .shard_task import Advanced
from .worker_protocol import Message, Reply, serve

__all__ = ["Crew", "Ray"]

HEAR = 0.5  # seconds for which an actor gathers news of samples; all else is told at once


@dataclass(frozen=True)
class Crew:
    """How many actors, and what each takes of the cluster."""

    count: int
    gpus: float
    cpus: float


@dataclass(frozen=True)
class Ray:
    """Settings; what is None is chosen by the cluster. `address` is that of `ray.init`, None for RAY_ADDRESS or a Ray of
    this host that ends with the job. A Ray that this process has started already is used as it is.
    """

    address: str | None = None
    actors: int | None = None
    gpus_per_worker: float | None = None
    cpus_per_worker: float | None = None

    def __post_init__(self) -> None:
        if self.actors is not None and self.actors < 1:
            raise ConfigError(f"ray-workers {self.actors} is no number of workers; use 2, or leave it out")
        gpus, cpus = self.gpus_per_worker or 0.0, self.cpus_per_worker or 0.0
        if gpus < 0 or (gpus > 1 and gpus % 1):
            raise ConfigError(f"gpus-per-worker {gpus:g} cannot be given; use 0, a part such as 0.5, or a whole number")
        if cpus < 0:
            raise ConfigError(f"cpus-per-worker {cpus:g} cannot be given; use 1, or leave it out")

    def local_cpus(self) -> int:
        """How many CPUs a Ray started here must offer."""
        return int((self.actors or 1) * (self.cpus_per_worker or 1))

    def crew(self, nodes: Sequence[Mapping[str, float]], on_cpu: bool) -> Crew:
        """By the resources of each node: an actor for each GPU (or part of one), else one for each node.

        >>> Ray(gpus_per_worker=0.5).crew([{"CPU": 16, "GPU": 2}, {"CPU": 8}], on_cpu=False)
        Crew(count=4, gpus=0.5, cpus=4)
        >>> Ray().crew([{"CPU": 16}, {"CPU": 8}], on_cpu=False)
        Crew(count=2, gpus=0.0, cpus=8)
        >>> Ray(actors=4).crew([{"CPU": 16}], on_cpu=True)
        Crew(count=4, gpus=0.0, cpus=4)
        """
        has_gpus = [node for node in nodes if node.get("GPU", 0) >= 1 and not on_cpu]
        gpus = self.gpus_per_worker if self.gpus_per_worker is not None else (1.0 if has_gpus else 0.0)
        places = has_gpus if gpus else [node for node in nodes if node.get("CPU", 0) >= 1]
        fitting = [int(node["GPU"] // gpus) if gpus else 1 for node in places]
        count = self.actors or sum(fitting) or 1
        if not gpus and places:
            fitting = [-(-count // len(places))] * len(places)
        shares = [node.get("CPU", 1) // max(1, fits) for node, fits in zip(places, fitting, strict=True)]
        cpus = self.cpus_per_worker if self.cpus_per_worker is not None else max(1, int(min(shares, default=1)))
        return Crew(count, gpus, cpus)

    @contextmanager
    def start(self, estimator: Any, shards: int, note: Callable[[str], None]) -> Iterator[Fleet]:
        ray = import_ray()
        on_cpu = isinstance(estimator, ModelSpec) and estimator.device == "cpu"
        make = portable(estimator, ray.cloudpickle.dumps)
        with connect_to_ray(ray, self.address, self.local_cpus()):
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            crew = self.crew(nodes, on_cpu)
            if crew.gpus and not any(node.get("GPU", 0) >= min(crew.gpus, 1) for node in nodes):
                note(f"no node of the Ray cluster has {crew.gpus:g} GPUs now; waiting for one that has")
            count = min(crew.count, max(1, shards))
            note(f"{count} Ray workers with {crew.cpus:g} CPUs and {crew.gpus:g} GPUs each")
            places = [f"Ray worker {i + 1}" for i in range(count)]

            def workers(asked: int | None) -> int:
                return max(1, int(crew.cpus)) if asked is None else asked

            def search(tasks: Iterable[Task]) -> Iterator[Task]:
                with search_on_ray(self.address) as run:
                    yield from run(tasks)

            with Fleet(_Actors(ray, make, crew), places, workers, note, search) as fleet:
                yield fleet


class _Actor:
    """The far end on Ray: the model works in a thread, and `exchange` brings messages and fetches replies."""

    def __init__(self, make: bytes, folder: str, path: list[str]) -> None:
        with suppress(OSError):  # names may be relative, also a module's of the user's own
            os.chdir(folder)
        sys.path.extend(entry for entry in path if entry and entry not in sys.path)
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        arguments = (lambda: pickle.loads(make)(), self._inbox, self._outbox.put)
        threading.Thread(target=serve, args=arguments, daemon=True).start()

    def exchange(self, messages: list[Message]) -> list[Reply]:
        """Take messages; return what there is to say, at the latest after a moment."""
        for message in messages:
            self._inbox.put(message)
        replies: list[Reply] = []
        ends = time.monotonic() + HEAR
        try:
            while not replies or isinstance(replies[-1], Advanced):
                replies.append(self._outbox.get(timeout=max(0.0, ends - time.monotonic())))
            while True:
                replies.append(self._outbox.get_nowait())
        except queue.Empty:
            return replies


class _ActorLink:
    def __init__(self, ray: Any, actor: Any) -> None:
        self.ray, self.actor = ray, actor
        self.waiting: list[Message] = []
        self.call: Any = None

    def send(self, message: Message) -> None:
        self.waiting.append(message)

    def end(self, at_once: bool) -> None:
        self.ray.kill(self.actor)  # all it has said to be written is written


class _Actors:
    """The transport: one call per actor is always under way."""

    def __init__(self, ray: Any, make: bytes, crew: Crew) -> None:
        self._ray, self._make = ray, make
        self._class = ray.remote(_Actor).options(
            num_cpus=crew.cpus, num_gpus=crew.gpus, max_restarts=0, scheduling_strategy="SPREAD"
        )

    def start(self, place: str) -> _ActorLink:
        return _ActorLink(self._ray, self._class.remote(self._make, str(Path.cwd()), list(sys.path)))

    def hear(self, links: Sequence[Link]) -> list[tuple[Link, list[Reply | Lost]]]:
        by_call: dict[Any, _ActorLink] = {}
        for link in links:
            assert isinstance(link, _ActorLink)
            if link.call is None:
                link.call = link.actor.exchange.remote(link.waiting)
                link.waiting = []
            by_call[link.call] = link
        done, _ = self._ray.wait(list(by_call), num_returns=1)
        more, _ = self._ray.wait(list(by_call), num_returns=len(by_call), timeout=0)
        heard: list[tuple[Link, list[Reply | Lost]]] = []
        for call in {*done, *more}:
            link = by_call[call]
            link.call = None
            try:
                heard.append((link, self._ray.get(call)))
            except self._ray.exceptions.RayActorError as error:
                heard.append((link, [Lost(first_line(error))]))
        return heard
