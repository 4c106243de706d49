"""Who carries out the tasks of a search besides this process: a pool of processes, or Ray."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from noisegate.pipeline.errors import ConfigError, NoisegateError
from noisegate.pipeline.runs.lock import folder_lock
from noisegate.pipeline.system.parent_watch import leave_with
from noisegate.pipeline.system.ray_connection import connected, import_ray

from .part import threads
from .plan import Task
from .search import RunTasks
from .task import forget, run_task

__all__ = ["first_line", "on_processes", "on_ray"]

_AGAIN = "run the same command again, it goes on, or give it less with --neighbour-memory"


@contextmanager
def on_processes(count: int) -> Iterator[RunTasks]:
    """`count` processes of this machine, which share its threads."""
    if count < 1:
        raise ConfigError(f"neighbour-workers {count} is no number of processes; use 2, or leave it out")
    each = max(1, threads() // count)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, context, initializer=_start, initargs=(os.getpid(), each)) as pool:

        def run(tasks: Iterable[Task]) -> Iterator[Task]:
            waiting: set[Future[Task]] = set()
            try:
                for task in tasks:
                    waiting.add(pool.submit(run_task, task))
                    if len(waiting) > 2 * count:
                        done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                        yield from (future.result() for future in done)
                while waiting:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            except BrokenProcessPool as error:
                raise NoisegateError(
                    f"a process of the neighbour search was lost, perhaps for want of memory; {_AGAIN}"
                ) from error
            finally:
                for future in waiting:
                    future.cancel()

        yield run


def _start(parent: int, count: int) -> None:
    os.environ["OMP_NUM_THREADS"] = str(count)  # read by `threads`
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it at once; the parent says so
    leave_with(parent)  # another search may begin there, and this one must not write into its folder


def first_line(error: Exception) -> str:
    """What Ray's many lines begin with."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]


def task_resources(nodes: Sequence[Mapping[str, float]], on_gpus: bool) -> tuple[int, int, int]:
    """CPUs and GPUs of a task, and how many machines have room for one, of which each does one at a time.

    GPUs are asked for only where faiss can use them: else machines without one would have nothing to do.

    >>> task_resources([{"CPU": 64, "GPU": 8}, {"CPU": 16}], on_gpus=False)
    (16, 0, 2)
    >>> task_resources([{"CPU": 64, "GPU": 8}, {"CPU": 16}], on_gpus=True)
    (64, 1, 1)
    """
    gpus = int(on_gpus and any(node.get("GPU", 0) >= 1 for node in nodes))
    able = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1 and node.get("GPU", 0) >= gpus]
    return min(able, default=1), gpus, max(1, len(able))


def run_alone(task: Task, run: Callable[[Task], Task] = run_task) -> Task:
    """A task on Ray, alone on its machine, which may have room for several: their memory would add up.

    Nothing is held when it ends, since the next one may be another process's.
    """
    with folder_lock(Path(tempfile.gettempdir()) / f"noisegate-search-{getattr(os, 'getuid', int)()}", wait=True):
        try:
            return run(task)
        finally:
            forget()


@contextmanager
def on_ray(address: str | None = None, cpus: int | None = None) -> Iterator[RunTasks]:
    """Tasks on a Ray cluster (None: RAY_ADDRESS, or a Ray of this machine that ends with the search).

    All machines must see the run's folder under the same name: tasks read the embeddings and write their files there,
    and nothing large goes through Ray's store.  A task takes `cpus`, by default all of the smallest machine, and then
    each machine has one at a time, so that its memory is the task's.  Ray repeats the tasks of a machine that is lost.
    """
    import faiss

    ray = import_ray()
    with connected(ray, address, cpus or 1):
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        each, gpus, room = task_resources(nodes, hasattr(faiss, "StandardGpuResources"))
        if cpus is not None:
            each, room = cpus, max(1, int(sum(node.get("CPU", 0) // cpus for node in nodes)))
        work = ray.remote(run_task if cpus is not None else run_alone)
        remote = work.options(num_cpus=each, num_gpus=gpus, max_retries=5, scheduling_strategy="SPREAD")

        def run(tasks: Iterable[Task]) -> Iterator[Task]:
            waiting: list[Any] = []
            try:
                for task in tasks:
                    waiting.append(remote.remote(task))
                    if len(waiting) > 2 * room:
                        done, waiting = ray.wait(waiting)
                        yield ray.get(done[0])
                while waiting:
                    done, waiting = ray.wait(waiting)
                    yield ray.get(done[0])
            except ray.exceptions.RayTaskError as error:
                raise error.cause from error  # what the task raised, without Ray's words around it
            except ray.exceptions.RayError as error:
                raise NoisegateError(
                    f"Ray lost a task of the neighbour search ({first_line(error)}); {_AGAIN}"
                ) from error
            finally:
                for unfinished in waiting if ray.is_initialized() else ():
                    ray.cancel(unfinished, force=True)

        yield run
