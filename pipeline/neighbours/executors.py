"""Executors for the tasks of a search on disk besides this process: a pool of processes, or Ray."""

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
from noisegate.pipeline.system.processes import count_threads, exit_with_parent
from noisegate.pipeline.system.ray_connection import connect_to_ray, first_line, import_ray

from .disk_search import RunTasks
from .plan import Task
from .task import forget_index, run_task

_ADVICE = "run the same command again, it goes on, or use less memory with --neighbour-memory"


@contextmanager
def process_executor(count: int) -> Iterator[RunTasks]:
    """Start `count` processes, which share the threads of this machine, and yield the function that runs tasks on them."""
    if count < 1:
        raise ConfigError.of("neighbour-workers", count, "is too few; use 2, or leave it out")
    threads = max(1, count_threads() // count)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, context, initializer=_start_worker, initargs=(os.getpid(), threads)) as pool:

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
                    f"a process of the neighbour search died, perhaps because memory ran out; {_ADVICE}",
                    "neighbour-memory",
                ) from error
            finally:
                for future in waiting:
                    future.cancel()

        yield run


def _start_worker(parent: int, threads: int) -> None:
    os.environ["OMP_NUM_THREADS"] = str(threads)  # read by `count_threads`
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it at once; the parent prints the message
    exit_with_parent(parent)  # another search may start in the same folder


def task_resources(nodes: Sequence[Mapping[str, float]], on_gpus: bool) -> tuple[int, int, int]:
    """Return the CPUs and GPUs of a task, and how many machines have room for one; each runs one at a time.

    GPUs are reserved only where faiss can use them: otherwise machines without one would be idle.

    >>> task_resources([{"CPU": 64, "GPU": 8}, {"CPU": 16}], on_gpus=False)
    (16, 0, 2)
    >>> task_resources([{"CPU": 64, "GPU": 8}, {"CPU": 16}], on_gpus=True)
    (64, 1, 1)
    """
    gpus = int(on_gpus and any(node.get("GPU", 0) >= 1 for node in nodes))
    cpus = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1 and node.get("GPU", 0) >= gpus]
    return min(cpus, default=1), gpus, max(1, len(cpus))


def run_alone(task: Task, run: Callable[[Task], Task] = run_task) -> Task:
    """Run a task alone on its machine, which may have room for several whose memory would add up.

    Its index is freed at the end, because the next task may run in another process.
    """
    with folder_lock(Path(tempfile.gettempdir()) / f"noisegate-search-{getattr(os, 'getuid', int)()}", wait=True):
        try:
            return run(task)
        finally:
            forget_index()


@contextmanager
def ray_executor(address: str | None = None, cpus: int | None = None) -> Iterator[RunTasks]:
    """Connect to a Ray cluster (None: RAY_ADDRESS, or a Ray of this machine) and yield the function that runs tasks on it.

    All machines must see the run's folder under the same name: tasks read the embeddings and write their files there, and
    nothing large goes through Ray's store. A task takes `cpus`, by default all of the smallest machine; then each machine
    runs one at a time, with all of its memory. Ray repeats the tasks of a machine that is lost.
    """
    import faiss

    ray = import_ray()
    with connect_to_ray(ray, address, cpus or 1):
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        task_cpus, gpus, room = task_resources(nodes, hasattr(faiss, "StandardGpuResources"))
        if cpus is not None:
            task_cpus, room = cpus, max(1, int(sum(node.get("CPU", 0) // cpus for node in nodes)))
        function = ray.remote(run_task if cpus is not None else run_alone)
        remote = function.options(num_cpus=task_cpus, num_gpus=gpus, max_retries=5, scheduling_strategy="SPREAD")

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
                    f"Ray lost a task of the neighbour search ({first_line(error)}); {_ADVICE}", "engine", "ray"
                ) from error
            finally:
                for unfinished in waiting if ray.is_initialized() else ():
                    ray.cancel(unfinished, force=True)

        yield run
