"""Carry out the tasks of a search on disk: in this process, in a pool of processes, or on Ray.

A task reads the plan and the rows by name, and writes one whole file.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from noisegate.pipeline.errors import ConfigError, NoisegateError
from noisegate.pipeline.runs.embeddings import create_tensors, map_tensors
from noisegate.pipeline.runs.lock import folder_lock
from noisegate.pipeline.runs.rows import MappedRows, gather, take_unit, unit_rows
from noisegate.pipeline.system.array_types import Float32, Index
from noisegate.pipeline.system.machine import count_threads, exit_with_parent, free_unused_memory
from noisegate.pipeline.system.output_files import whole_path
from noisegate.pipeline.system.processes import spawn_context
from noisegate.pipeline.system.ray_connection import connect_to_ray, first_line, import_ray

from .distinct import NearestLists, open_distinct
from .exact import ExactIndex, check_gpu_lists, gpu_numbers, nearest_in_blocks, read_blocks
from .inverted import InvertedIndex, add_rows, one_thread_each, write_index
from .plan import QUERIES, Plan, Task

RunTasks = Callable[[Iterable[Task]], Iterable[Task]]
"""Carries out tasks by `run_task`, anywhere and in any order, and yields each when it is done."""
GATHERED = 1 << 24  # most numbers of candidates' rows in memory
_ADVICE = "run the same command again, it goes on, or use less memory with --neighbour-memory"


class _Held:
    """The index that was searched last, kept because the next span often searches the same part."""

    key: tuple[Any, ...] = ()
    index: Any = None


def forget_index() -> None:
    """Free the index that this process holds."""
    _Held.key, _Held.index = (), None


def run_task(task: Task) -> Task:
    """Carry out the task unless its file exists already; return the task."""
    folder = Path(task.folder)
    if not (folder / task.name).exists():
        plan = Plan.load(folder)
        if plan is None:
            raise ConfigError.of("engine", "ray", f"needs {folder} under one name on all machines; use a shared folder")
        rows = MappedRows(plan.files, plan.tensor, plan.shapes)
        if task.step == "build":
            _build(task, plan, rows)
            free_unused_memory()  # the index's cells were many small blocks
        else:
            _search(task, plan, rows)
    return task


def _build(task: Task, plan: Plan, rows: MappedRows) -> None:
    """Put the rows of a part into the cells that were learnt from a sample."""
    import faiss

    folder = Path(task.folder)
    forget_index()
    index: Any = faiss.read_index(str(folder / "trained.faiss"))
    begin, end = plan.bounds(task.part)
    first = open_distinct(folder).first[begin:end]
    threads = min(count_threads(), plan.threads)
    add_rows(faiss, index, lambda some: take_unit(rows, first[some]), end - begin, threads)
    write_index(faiss, index, folder / task.name)


def _search(task: Task, plan: Plan, rows: MappedRows) -> None:
    import faiss

    folder = Path(task.folder)
    first = open_distinct(folder).first
    begin, end = plan.bounds(task.part)
    asked = np.load(folder / "sample.npy") if task.sample else np.arange(task.start, task.stop)
    gpus = gpu_numbers(plan.device)
    check_gpu_lists(gpus, plan.wanted - 1)
    shares_cells = task.step == "search" and not task.sample and not gpus and plan.parts > 1
    cells = folder / task.cells

    def queries(start: int) -> Float32:
        return take_unit(rows, first[asked[start : start + QUERIES]])

    def search(start: int) -> NearestLists:
        if task.step == "exact" and task.sample:  # a few queries, compared with every row in little memory
            blocks = read_blocks(lambda some: take_unit(rows, first[begin:end][some]), end - begin)
            near, cosine = nearest_in_blocks(faiss, blocks, queries(start), plan.wanted, gpus=gpus)
        elif shares_cells:
            known = read_lists(cells, slice(start, start + QUERIES))
            near, cosine = index.nearest(queries(start), plan.wanted, known)
        else:
            near, cosine = index.nearest(queries(start), plan.wanted)
        return np.where(near >= 0, near + begin, -1), cosine

    index: Any = None if task.step == "exact" and task.sample else _hold_index(faiss, task, plan, rows, first, gpus)
    with one_thread_each(faiss, 1 if gpus else min(count_threads(), plan.threads)) as pool:
        if shares_cells and not cells.exists():
            _write_lists(cells, len(asked), index.probes, lambda start: index.find_cells(queries(start)), pool)
        _write_lists(folder / task.name, len(asked), plan.wanted, search, pool)


def _hold_index(faiss: Any, task: Task, plan: Plan, rows: MappedRows, first: Index, gpus: list[int]) -> Any:
    """Return the index of the task's part: the one held by this process, or a new one, which is held from now on."""
    key = (task.folder, plan, task.part, task.step, task.probes)  # with the plan: a restarted search may have a new one
    if _Held.key != key:
        forget_index()
        begin, end = plan.bounds(task.part)
        if task.step == "exact":
            _Held.index = ExactIndex(faiss, take_unit(rows, first[begin:end]), gpus)
        else:
            path = Path(task.folder) / f"part-{task.part:05d}.faiss"
            index = faiss.read_index(str(path), 0 if gpus else faiss.IO_FLAG_MMAP)
            refine = _exact_cosines(rows, first[begin:end]) if plan.kind == "ivf-pq" else None
            _Held.index = InvertedIndex(faiss, index, task.probes, refine, gpus)
        _Held.key = key
    return _Held.index


def _exact_cosines(rows: MappedRows, first: Index) -> Callable[[Float32, Index], Float32]:
    """Return a function that computes cosines of queries (Q, d) with rows (Q, c) of a part, reading the rows from files."""

    def refine(queries: Float32, number: Index) -> Float32:
        cosine = np.empty(number.shape, np.float32)
        step = max(1, GATHERED // max(1, number.shape[1] * rows.width))
        for start in range(0, len(number), step):
            taken, place = gather(rows, first[np.maximum(number[start : start + step], 0)])
            unit, _ = unit_rows(taken)
            cosine[start : start + step] = np.matmul(unit[place], queries[start : start + step, :, None])[:, :, 0]
        return np.clip(cosine, -1, 1, out=cosine)

    return refine


def _write_lists(
    path: Path, rows: int, width: int, find: Callable[[int], NearestLists], pool: ThreadPoolExecutor
) -> None:
    """Write the lists that `find(start)` returns into a mapped file, which takes no memory."""
    shapes = {"numbers": ((rows, width), np.int64), "cosines": ((rows, width), np.float32)}
    with whole_path(path) as temporary:
        tensors = create_tensors(temporary, shapes, {})

        def fill(start: int) -> None:
            number, cosine = find(start)
            listed = number.shape[1]
            for name, values, none in (("numbers", number, -1), ("cosines", cosine, -np.inf)):
                tensors[name][start : start + QUERIES, :listed] = values
                tensors[name][start : start + QUERIES, listed:] = none

        list(pool.map(fill, range(0, rows, QUERIES)))
        for tensor in tensors.values():
            if isinstance(tensor, np.memmap):
                tensor.flush()


def read_lists(path: Path, queries: slice) -> NearestLists:
    """Read the lists of some queries from a task's file."""
    tensors = map_tensors(path)[0]
    return np.asarray(tensors["numbers"][queries]), np.asarray(tensors["cosines"][queries])


def run_in_turn(tasks: Iterable[Task]) -> Iterable[Task]:
    """Carry out the tasks one by one in this process, each with all of its threads."""
    return map(run_task, tasks)


@contextmanager
def process_executor(count: int) -> Iterator[RunTasks]:
    """Start `count` processes, which share the threads of this machine, and yield a function that runs tasks on them."""
    if count < 1:
        raise ConfigError.of("neighbour-workers", count, "is too few; use 2, or leave it out")
    threads = max(1, count_threads() // count)
    context = spawn_context()
    with ProcessPoolExecutor(count, context, initializer=_start_worker, initargs=(threads,)) as pool:

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
                raise NoisegateError(f"a process of the search died; {_ADVICE}", "neighbour-memory") from error
            finally:
                for future in waiting:
                    future.cancel()

        yield run


def _start_worker(threads: int) -> None:
    os.environ["OMP_NUM_THREADS"] = str(threads)  # read by `count_threads`
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the process at once; the parent prints the message
    exit_with_parent()  # otherwise it could write while another search starts in the same folder


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
    """Run a task alone on its machine: several at a time would need too much memory together.

    The task's index is freed at the end, because the next task may run in another process.
    """
    with folder_lock(Path(tempfile.gettempdir()) / f"noisegate-search-{getattr(os, 'getuid', int)()}", wait=True):
        try:
            return run(task)
        finally:
            forget_index()


@contextmanager
def ray_executor(address: str | None = None, cpus: int | None = None) -> Iterator[RunTasks]:
    """Connect to a Ray cluster (None: RAY_ADDRESS, or a local Ray) and yield a function that runs tasks on it.

    All machines must see the run's folder under the same name: tasks read the embeddings and write their files there, and
    nothing large goes through Ray's store. A task takes `cpus`, by default all of the smallest machine; then each machine
    runs one at a time, with all of its memory. Ray repeats the tasks of a machine that is lost.
    """
    import faiss

    ray = import_ray(address)
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
                raise error.cause from error  # the task's own exception, without Ray's text around it
            except ray.exceptions.RayError as error:
                raise NoisegateError.of("engine", "ray", f"lost a task ({first_line(error)}); {_ADVICE}") from error
            finally:
                for unfinished in waiting if ray.is_initialized() else ():
                    ray.cancel(unfinished, force=True)

        yield run
