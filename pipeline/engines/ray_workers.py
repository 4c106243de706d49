"""Encoders as Ray actors, on one host or many. `ray` is imported when an engine is started.

Nothing large goes through Ray's object store: an actor reads its shards and writes their files itself, to the shared folder
or to the run's store, and only small events come back. An actor that is lost is replaced.
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

from .devices import pickle_factory
from .fleet import Fleet, Link, Lost, Message, Reply, serve
from .shard_task import Advanced

GATHER_SECONDS = 0.5  # how long an actor collects progress of samples; other replies are returned at once


@dataclass(frozen=True)
class ActorResources:
    """Number of actors, and the GPUs and CPUs of each."""

    count: int
    gpus: float
    cpus: float


@dataclass(frozen=True)
class Ray:
    """Ray engine; a None is chosen by the cluster's resources. `address` is passed to `ray.init`; None means RAY_ADDRESS, or a
    Ray on this host that ends with the job. If this process is connected to a Ray already, that one is used.
    """

    address: str | None = None
    actors: int | None = None
    gpus_per_worker: float | None = None
    cpus_per_worker: float | None = None

    def __post_init__(self) -> None:
        if self.actors is not None and self.actors < 1:
            raise ConfigError.of("ray-workers", self.actors, "is not a number of workers; use 2, or leave it out")
        gpus, cpus = self.gpus_per_worker or 0.0, self.cpus_per_worker or 0.0
        if gpus < 0 or (gpus > 1 and gpus % 1):
            raise ConfigError.of("gpus-per-worker", gpus, "is not possible; use 0, 0.5, or a whole number")
        if cpus < 0:
            raise ConfigError(f"cpus-per-worker {cpus:g} is negative; use 1, or leave it out", "cpus-per-worker", cpus)

    def local_cpus(self) -> int:
        """Return how many CPUs a Ray started here must offer."""
        return int((self.actors or 1) * (self.cpus_per_worker or 1))

    def choose_actors(self, nodes: Sequence[Mapping[str, float]], on_cpu: bool) -> ActorResources:
        """Choose the actors by the resources of each node: one per GPU (or part of a GPU), else one per node.

        >>> Ray(gpus_per_worker=0.5).choose_actors([{"CPU": 16, "GPU": 2}, {"CPU": 8}], on_cpu=False)
        ActorResources(count=4, gpus=0.5, cpus=4)
        >>> Ray().choose_actors([{"CPU": 16}, {"CPU": 8}], on_cpu=False)
        ActorResources(count=2, gpus=0.0, cpus=8)
        >>> Ray(actors=4).choose_actors([{"CPU": 16}], on_cpu=True)
        ActorResources(count=4, gpus=0.0, cpus=4)
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
        return ActorResources(count, gpus, cpus)

    @contextmanager
    def start(self, estimator: Any, shards: int, note: Callable[[str], None]) -> Iterator[Fleet]:
        ray = import_ray(self.address)
        on_cpu = isinstance(estimator, ModelSpec) and estimator.device == "cpu"
        make = pickle_factory(estimator, ray.cloudpickle.dumps)
        with connect_to_ray(ray, self.address, self.local_cpus()):
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            actors = self.choose_actors(nodes, on_cpu)
            if actors.gpus and not any(node.get("GPU", 0) >= min(actors.gpus, 1) for node in nodes):
                note(f"no node of the Ray cluster has {actors.gpus:g} GPUs now; waiting for one that has")
            count = min(actors.count, max(1, shards))
            note(f"{count} Ray workers with {actors.cpus:g} CPUs and {actors.gpus:g} GPUs each")
            places = [f"Ray worker {i + 1}" for i in range(count)]

            def workers(requested: int | None) -> int:
                return max(1, int(actors.cpus)) if requested is None else requested

            def search(tasks: Iterable[Task]) -> Iterator[Task]:
                with search_on_ray(self.address) as run:
                    yield from run(tasks)

            with Fleet(_Actors(ray, make, actors), places, workers, note, search) as fleet:
                yield fleet


class _Actor:
    """The encoder on Ray: the model works in a thread; `exchange` passes messages in and replies out."""

    def __init__(self, make: bytes, folder: str, path: list[str]) -> None:
        with suppress(OSError):  # paths and the user's own modules may be relative to this folder
            os.chdir(folder)
        sys.path.extend(entry for entry in path if entry and entry not in sys.path)
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        arguments = (lambda: pickle.loads(make)(), self._inbox, self._outbox.put, False)
        threading.Thread(target=serve, args=arguments, daemon=True).start()

    def exchange(self, messages: list[Message]) -> list[Reply]:
        """Take messages; wait at most `GATHER_SECONDS` and return the replies there are."""
        for message in messages:
            self._inbox.put(message)
        replies: list[Reply] = []
        ends = time.monotonic() + GATHER_SECONDS
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
        self.ray.kill(self.actor)  # the files of every `Written` it reported are complete


class _Actors:
    """Transport by Ray; each actor always has one `exchange` call running."""

    def __init__(self, ray: Any, make: bytes, actors: ActorResources) -> None:
        self._ray, self._make = ray, make
        self._class = ray.remote(_Actor).options(
            num_cpus=actors.cpus, num_gpus=actors.gpus, max_restarts=0, scheduling_strategy="SPREAD"
        )

    def start(self, place: str) -> _ActorLink:
        return _ActorLink(self._ray, self._class.remote(self._make, str(Path.cwd()), list(sys.path)))

    def receive(self, links: Sequence[Link]) -> list[tuple[Link, list[Reply | Lost]]]:
        by_call: dict[Any, _ActorLink] = {}
        for link in links:
            assert isinstance(link, _ActorLink)
            if link.call is None:
                link.call = link.actor.exchange.remote(link.waiting)
                link.waiting = []
            by_call[link.call] = link
        done, _ = self._ray.wait(list(by_call), num_returns=1)
        more, _ = self._ray.wait(list(by_call), num_returns=len(by_call), timeout=0)
        received: list[tuple[Link, list[Reply | Lost]]] = []
        for call in {*done, *more}:
            link = by_call[call]
            link.call = None
            try:
                received.append((link, self._ray.get(call)))
            except self._ray.exceptions.RayActorError as error:
                received.append((link, [Lost(first_line(error))]))
        return received
