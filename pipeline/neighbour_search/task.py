"""A task carried out: it reads the plan and the rows it needs by name, and leaves one whole file.

The same function runs in this process, in a pool of processes, and on Ray.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from pipeline.errors import ConfigError
from pipeline.nearest import GPU_LIMIT, gpu_numbers
from pipeline.neighbour_lists import Found
from pipeline.table import write_atomically

from .distinct import open_bank
from .mapped import MappedRows
from .part import GATHERED, ExactPart, InvertedPart, one_thread_each, threads
from .plan import QUERIES, Plan, Task

__all__ = ["forget", "run_task"]

Float32 = NDArray[np.float32]
Index = NDArray[np.int64]


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
    key = (task.folder, plan.made_from, task.part, task.step, task.probes)
    if _Held.key != key:
        forget()
        if task.step == "exact":
            _Held.rows = ExactPart(faiss, rows.unit(first[begin:end]), gpus)
        else:
            index = faiss.read_index(str(folder / f"part-{task.part:05d}.faiss"), 0 if gpus else faiss.IO_FLAG_MMAP)
            refine = _refiner(rows, first[begin:end]) if plan.kind == "ivf-pq" else None
            _Held.rows = InvertedPart(faiss, index, task.probes, refine, gpus)
        _Held.key = key
    part = _Held.rows
    number = np.full((len(asked), plan.wanted), -1, np.int64)
    cosine = np.full((len(asked), plan.wanted), -np.inf, np.float32)

    def search(start: int) -> None:
        near, value = part.nearest(rows.unit(first[asked[start : start + QUERIES]]), plan.wanted)
        width = near.shape[1]
        number[start : start + QUERIES, :width] = np.where(near >= 0, near + begin, -1)
        cosine[start : start + QUERIES, :width] = value

    with one_thread_each(faiss, 1 if gpus else threads()) as pool:
        list(pool.map(search, range(0, len(asked), QUERIES)))
    write_atomically(folder / task.name, save({"numbers": number, "cosines": cosine}))


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
    """Put the rows of a part into the cells that were learnt from a sample."""
    import faiss
    from faiss.contrib.ivf_tools import add_preassigned

    folder = Path(task.folder)
    forget()
    index = faiss.read_index(str(folder / "trained.faiss"))
    begin, end = plan.bounds(task.part)
    first = open_bank(folder).first

    def assign(start: int) -> tuple[Float32, Index]:
        unit = rows.unit(first[start : min(end, start + QUERIES)])
        return unit, index.quantizer.search(unit, 1)[1][:, 0]

    count = threads()
    starts = range(begin, end, QUERIES)
    with one_thread_each(faiss, count) as pool:
        for at in range(0, len(starts), count):  # as many at a time as there are threads, so that none pile up
            for unit, cells in pool.map(assign, starts[at : at + count]):
                add_preassigned(index, unit, cells)
    target = folder / task.name
    part = target.with_name(f".{target.name}.{os.getpid()}")
    faiss.write_index(index, str(part))
    part.replace(target)


def read_found(path: Path, rows: slice) -> Found:
    """Some rows of what a search left."""
    from pipeline.tensor_files import map_tensors

    tensors = map_tensors(path)[0]
    return np.asarray(tensors["numbers"][rows]), np.asarray(tensors["cosines"][rows])
