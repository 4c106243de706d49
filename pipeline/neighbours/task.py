"""Carry out one task of a search on disk: read the plan and the rows by name, and write one whole file.

The same function runs in this process, in a pool of processes, and on Ray.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.runs.mapped_rows import MappedRows
from noisegate.pipeline.runs.rows import gather, take_unit, unit_rows
from noisegate.pipeline.runs.tensor_files import create_tensors, map_tensors
from noisegate.pipeline.system.array_types import Float32, Index
from noisegate.pipeline.system.memory import free_unused_memory
from noisegate.pipeline.system.output_files import whole_path
from noisegate.pipeline.system.processes import count_threads

from .distinct import open_distinct
from .exact import ExactIndex, nearest_in_blocks, read_blocks
from .gpu import check_gpu_lists, gpu_numbers
from .inverted import InvertedIndex, add_rows, one_thread_each, write_index
from .lists import NearestLists
from .plan import QUERIES, Plan, Task

GATHERED = 1 << 24  # numbers of candidates held at a time


class _Held:
    """The index that was searched last: the next span searches it again where all rows are one part."""

    key: tuple[Any, ...] = ()
    index: Any = None


def forget_index() -> None:
    """Free the index that this process holds."""
    _Held.key, _Held.index = (), None


def run_task(task: Task) -> Task:
    """Carry out the task, unless its file is there already; return it."""
    folder = Path(task.folder)
    if not (folder / task.name).exists():
        plan = Plan.load(folder)
        if plan is None:
            raise ConfigError(
                f"{folder} holds no search here; all machines of --engine ray need the run's folder under one name",
                "engine",
                "ray",
            )
        rows = MappedRows(plan.files, plan.tensor, plan.shapes)
        if task.step == "build":
            _build(task, plan, rows)
            free_unused_memory()  # the index's cells, which are many small blocks
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
    """Return the index of the task's part: the one this process holds, or a new one that it holds from now on."""
    key = (task.folder, plan, task.part, task.step, task.probes)  # a search that began anew may be cut elsewhere
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
    """Return a function of queries (Q, d) and numbers (Q, c) of a part's rows: their cosines, with rows read from files."""

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
    """Write what `find` lists for the queries from each start on to a file, through a map, so that it takes no memory."""
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
