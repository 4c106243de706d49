"""A task carried out: it reads the plan and the rows it needs by name, and leaves one whole file.

The same function runs in this process, in a pool of processes, and on Ray.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.runs.mapped_rows import MappedRows
from noisegate.pipeline.runs.tensor_files import create_tensors, map_tensors
from noisegate.pipeline.system.array_types import Float32, Index
from noisegate.pipeline.system.malloc import give_back

from .distinct import open_bank
from .index import GPU_LIMIT, gpu_numbers
from .lists import Found
from .part import GATHERED, ExactPart, InvertedPart, StreamedPart, one_thread_each, threads, write_index
from .plan import QUERIES, Plan, Task

__all__ = ["forget", "read_found", "run_task"]


class _Held:
    """The part that was searched last: the next span asks for it again where all of the base is one part."""

    key: tuple[Any, ...] = ()
    rows: Any = None


def forget() -> None:
    """Free the part that this process holds."""
    _Held.key, _Held.rows = (), None


def run_task(task: Task) -> Task:
    """Do it, unless its file is there already."""
    folder = Path(task.folder)
    if not (folder / task.name).exists():
        plan = Plan.load(folder)
        if plan is None:
            raise ConfigError(
                f"{folder} holds no search here; all machines of --engine ray need the run's folder under one name"
            )
        rows = MappedRows(plan.files, plan.tensor, plan.shapes)
        if task.step == "build":
            _build(task, plan, rows)
            give_back()  # its cells, which are many small blocks
        else:
            _search(task, plan, rows)
    return task


def _search(task: Task, plan: Plan, rows: MappedRows) -> None:
    import faiss

    folder = Path(task.folder)
    first = open_bank(folder).first
    begin, end = plan.bounds(task.part)
    asked = np.load(folder / "sample.npy") if task.sample else np.arange(task.start, task.stop)
    gpus = gpu_numbers(plan.device)
    if gpus and plan.wanted + 8 > GPU_LIMIT:
        raise ConfigError(
            f"k={plan.wanted - 1} is more than faiss finds on a GPU; give k <= {GPU_LIMIT - 9}, or no GPU"
        )
    key = (task.folder, plan, task.part, task.step, task.probes)  # a search begun anew may be cut elsewhere
    if _Held.key != key:
        forget()
        if task.step == "exact" and task.sample:
            _Held.rows = StreamedPart(faiss, lambda a, b: rows.unit(first[begin + a : begin + b]), end - begin, gpus)
        elif task.step == "exact":
            _Held.rows = ExactPart(faiss, rows.unit(first[begin:end]), gpus)
        else:
            index = faiss.read_index(str(folder / f"part-{task.part:05d}.faiss"), 0 if gpus else faiss.IO_FLAG_MMAP)
            refine = _refiner(rows, first[begin:end]) if plan.kind == "ivf-pq" else None
            _Held.rows = InvertedPart(faiss, index, task.probes, refine, gpus)
        _Held.key = key
    part = _Held.rows
    reused = task.step == "search" and not task.sample and not gpus and plan.parts > 1

    def queries(start: int) -> Float32:
        return rows.unit(first[asked[start : start + QUERIES]])

    def find_cells(start: int) -> Found:
        found: Found = part.cells(queries(start))
        return found

    def search(start: int) -> Found:
        known = {"cells": read_found(cells, slice(start, start + QUERIES))} if reused else {}
        near, value = part.nearest(queries(start), plan.wanted, **known)
        return np.where(near >= 0, near + begin, -1), value

    cells = folder / task.cells
    with one_thread_each(faiss, 1 if gpus else min(threads(), plan.threads)) as pool:
        if reused and not cells.exists():
            _leave(cells, len(asked), part.probes, find_cells, pool)
        _leave(folder / task.name, len(asked), plan.wanted, search, pool)


def _leave(path: Path, rows: int, width: int, find: Callable[[int], Found], pool: ThreadPoolExecutor) -> None:
    """What `find` gives for the queries from each start on, in a file that appears whole.

    It is filled through a map, so its lists take no memory; two tasks may write the same file at one time.
    """
    hidden = path.with_name(f".{path.name}.{uuid4().hex}")
    shapes = {"numbers": ((rows, width), np.int64), "cosines": ((rows, width), np.float32)}
    tensors = create_tensors(hidden, shapes, {})

    def fill(start: int) -> None:
        number, cosine = find(start)
        found = number.shape[1]
        for name, values, none in (("numbers", number, -1), ("cosines", cosine, -np.inf)):
            tensors[name][start : start + QUERIES, :found] = values
            tensors[name][start : start + QUERIES, found:] = none

    list(pool.map(fill, range(0, rows, QUERIES)))
    for tensor in tensors.values():
        if isinstance(tensor, np.memmap):
            tensor.flush()
    hidden.replace(path)


def _refiner(rows: MappedRows, first: Index) -> Any:
    """Exact cosines (Q, c) of queries with numbered rows of the part, which are read from their files."""

    def refine(queries: Float32, number: Index) -> Float32:
        cosine = np.empty(number.shape, np.float32)
        step = max(1, GATHERED // max(1, number.shape[1] * rows.width))
        for start in range(0, len(number), step):
            unit, place = rows.gather(first[np.maximum(number[start : start + step], 0)])
            cosine[start : start + step] = np.matmul(unit[place], queries[start : start + step, :, None])[:, :, 0]
        return np.clip(cosine, -1, 1, out=cosine)

    return refine


def _build(task: Task, plan: Plan, rows: MappedRows) -> None:
    """Put the rows of a part into the cells that were learnt from a sample.

    Rows are read twice: once to see how many each cell gets, so that its memory is taken at once. A cell that grows row by
    row takes up to twice as much.
    """
    import faiss
    from faiss.contrib.ivf_tools import add_preassigned

    folder = Path(task.folder)
    forget()
    index: Any = faiss.read_index(str(folder / "trained.faiss"))
    begin, end = plan.bounds(task.part)
    first = open_bank(folder).first

    cells = np.empty(end - begin, np.int32)

    def read(start: int) -> Float32:
        return rows.unit(first[start : min(end, start + QUERIES)])

    def assign(start: int) -> None:
        cells[start - begin : start - begin + QUERIES] = index.quantizer.search(read(start), 1)[1][:, 0]

    count = min(threads(), plan.threads)
    starts = range(begin, end, QUERIES)
    with one_thread_each(faiss, count) as pool:
        list(pool.map(assign, starts))
        for cell, size in enumerate(np.bincount(cells, minlength=index.nlist).tolist()):
            index.invlists.resize(cell, size)
            index.invlists.resize(cell, 0)  # the memory stays
        for at in range(0, len(starts), count):  # as many at a time as there are threads, so that none pile up
            some = starts[at : at + count]
            for start, unit in zip(some, pool.map(read, some), strict=True):
                add_preassigned(index, unit, cells[start - begin : start - begin + len(unit)].astype(np.int64))
    write_index(faiss, index, folder / task.name)


def read_found(path: Path, rows: slice) -> Found:
    """Some rows of what a search left."""
    tensors = map_tensors(path)[0]
    return np.asarray(tensors["numbers"][rows]), np.asarray(tensors["cosines"][rows])
