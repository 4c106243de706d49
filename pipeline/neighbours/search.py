"""The neighbour graph of embeddings on disk: cut into tasks, each kept when it is done, merged exactly.

Stopped at any moment, the same call goes on with the finished tasks, and the graph's file has the same bytes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.runs.mapped_rows import MappedRows
from noisegate.pipeline.runs.table import search_folder
from noisegate.pipeline.runs.tensor_files import map_tensors
from noisegate.pipeline.system.array_types import Float32, Index, Mask
from noisegate.pipeline.system.memory import default_memory

from .distinct import find_distinct, open_bank
from .graph import Neighbours, create_graph
from .index import gpu_numbers
from .lists import Bank, Found, expand_in_order, without_self
from .near_ties import Measure, pair_cosines
from .part import merge, threads
from .plan import QUERIES, Kind, Plan, Task, cut
from .recall import train, tune
from .task import forget, read_found, run_task

__all__ = ["NeighbourSearch", "RunTasks", "neighbour_graph", "one_by_one"]

Usable = Callable[[int], Mask]
RunTasks = Callable[[Iterable[Task]], Iterable[Task]]
"""Carries out tasks by `run_task`, anywhere and in any order, and yields each when it is done."""
MERGED = 1 << 24  # entries merged at a time
LEAST_ROWS_PQ = 256 * 40


def one_by_one(tasks: Iterable[Task]) -> Iterable[Task]:
    """All tasks in this process, each with all of its threads."""
    return map(run_task, tasks)


@dataclass(frozen=True)
class NeighbourSearch:
    """How to search. `memory` (bytes) is shared by the `at_once` tasks that `run` carries out on one machine at a time;
    None is half of what is free. `index` "auto" compares all rows up to `exact_limit` of them and probes an inverted
    file beyond. `cut` chooses parts and spans for a number of bytes and of threads, and knows whether tasks run `afar`, on
    machines that are not this one.
    """

    memory: int | None = None
    index: Literal["auto", "flat", "ivf", "ivf-pq"] = "auto"
    run: RunTasks = one_by_one
    at_once: int = 1
    exact_limit: int = 1_000_000
    cut: Callable[[Plan, int, int, bool], Plan] = cut
    afar: bool = False

    def __post_init__(self) -> None:
        if self.index not in ("auto", "flat", "ivf", "ivf-pq"):
            raise ConfigError(f"neighbour-index {self.index!r} is unknown; use auto, flat, ivf or ivf-pq")

    def kind(self, rows: int, distinct: int) -> Kind:
        """By the number of rows; rows too few for cells, or for codes, are compared with less of both."""
        wanted = self.index if self.index != "auto" else ("flat" if rows <= self.exact_limit else "ivf")
        if wanted == "ivf-pq" and distinct < LEAST_ROWS_PQ:
            wanted = "ivf"
        return "flat" if distinct < 40 else wanted


def neighbour_graph(
    rows: MappedRows,
    usable: Usable,
    k: int,
    target: Path,
    *,
    made_from: str,
    search: NeighbourSearch | None = None,
    device: str = "cpu",
    seed: int = 0,
    note: Callable[[str], None] = lambda text: None,
    progress: Callable[[int, int], None] | None = None,
) -> Neighbours:
    """The k nearest rows of every row by cosine, as `find_neighbours` lists them, written to `target`.

    `usable(i)` (n,) says which rows of file i take part; those, and rows without a direction, get lists of -1.
    `made_from` names the rows: work that a stopped search of the same name and k left is used, any other is removed.
    The lists of an exact search do not depend on how it was cut.  progress: (rows done, rows in all).
    """
    if k < 1:
        raise ConfigError(f"k={k} asks for no neighbours; give k >= 1, such as default_k(n, classes)")
    search = search or NeighbourSearch()
    folder = search_folder(target)
    plan, bank = _prepared(rows, usable, min(k, max(len(rows) - 1, 0)), folder, made_from, search, device, seed)
    tuned = None
    if plan.kind != "flat" and plan.distinct:
        train(plan, rows, folder, _memory(search, device))
        _finish(search.run, [Task(str(folder), "build", part) for part in range(plan.parts)])
        tuned = tune(plan, folder, lambda tasks: _merged(search.run, tasks))
        note(f"neighbours: {plan.kind} with {tuned.probes} probes, recall {tuned.recall:.3f} on a sample")
    note(f"neighbours: {len(plan.spans())} spans of queries, {plan.parts} parts of {plan.part:,} rows")
    others = min(k, max(len(rows) - 1, 0))
    graph = _open_graph(folder, len(rows), others, bank, plan, tuned.recall if tuned else None)
    _search_spans(plan, bank, folder, graph, search.run, tuned.probes if tuned else 0, progress)
    del graph
    (folder / "graph").replace(target)
    shutil.rmtree(folder)
    forget()
    return Neighbours.load(target)


def _memory(search: NeighbourSearch, device: str) -> int:
    return (default_memory(gpu_numbers(device)) if search.memory is None else search.memory) // max(1, search.at_once)


def _prepared(
    rows: MappedRows,
    usable: Usable,
    others: int,
    folder: Path,
    made_from: str,
    search: NeighbourSearch,
    device: str,
    seed: int,
) -> tuple[Plan, Bank]:
    """The plan that a stopped search left, if it is of the same rows and still fits; else a new one."""
    memory = _memory(search, device)
    files = tuple(str(Path(file).resolve()) for file in rows.files)
    before = Plan.load(folder)
    if before is not None and before.made_from == f"{made_from} k={others}" and before.files == files:
        fits = search.memory is None or before.need <= memory
        if fits and before.kind == search.kind(len(rows), before.distinct) and before.device == device:
            for half in folder.glob(".*"):  # of tasks that were killed: they may be as large as a part
                half.unlink(missing_ok=True)
            return before, open_bank(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    bank = find_distinct(rows, usable, folder, memory)
    distinct = len(bank.first)
    plan = Plan(
        made_from=f"{made_from} k={others}",
        tensor=rows.tensor,
        files=files,
        shapes=tuple(rows.shapes),
        width=rows.width,
        distinct=distinct,
        wanted=min(others + 1, distinct),
        kind=search.kind(len(rows), distinct),
        part=1024,
        span=QUERIES,
        need=0,
        device=device,
        seed=seed,
    )
    plan = search.cut(plan, memory, threads(), search.afar)
    plan.save(folder)  # last: what is there before it is not used
    return plan, bank


def _finish(run: RunTasks, tasks: Sequence[Task]) -> None:
    """Carry out those whose files are not there yet."""
    for _ in run(task for task in tasks if not (Path(task.folder) / task.name).exists()):
        pass


def _merged(run: RunTasks, tasks: Sequence[Task]) -> Found:
    """What tasks with the same queries found together."""
    _finish(run, tasks)
    return merge([read_found(Path(task.folder) / task.name, slice(None)) for task in tasks])


def _open_graph(
    folder: Path, rows: int, columns: int, bank: Bank, plan: Plan, recall: float | None
) -> dict[str, NDArray[Any]]:
    """The graph's file, in which rows that belong to no group have their empty lists already."""
    path = folder / "graph"
    if not path.exists():
        part = folder / ".graph"
        kind = np.int32 if rows < 2**31 else np.int64
        name = plan.made_from.rpartition(" k=")[0]
        graph = create_graph(part, (rows, columns), kind, plan.kind, recall, {"made_from": name})
        for start in range(0, rows, QUERIES):
            row = np.flatnonzero(bank.group[start : start + QUERIES] < 0) + start
            graph["indices"][row], graph["similarities"][row] = -1, np.nan
        del graph
        part.replace(path)
    return map_tensors(path, "r+")[0]


def _search_spans(
    plan: Plan,
    bank: Bank,
    folder: Path,
    graph: dict[str, NDArray[Any]],
    run: RunTasks,
    probes: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Search every span in every part; a span whose parts are all searched is merged into the graph at once."""
    step: Literal["exact", "search"] = "exact" if plan.kind == "flat" else "search"
    total = len(bank.group)
    left: dict[int, set[str]] = {}
    merged = total - len(bank.members)
    todo: list[Task] = []

    def finish(start: int, stop: int) -> None:
        nonlocal merged
        tasks = [Task(str(folder), step, part, start, stop, probes) for part in range(plan.parts)]
        if not (folder / f"{start:012d}.merged").exists():
            _write_span(plan, bank, folder, graph, tasks)
            (folder / f"{start:012d}.merged").touch()
        for name in (*(task.name for task in tasks), tasks[0].cells):
            (folder / name).unlink(missing_ok=True)
        merged += int(bank.starts[stop] - bank.starts[start])
        if progress is not None:
            progress(merged, total)

    for start, stop in plan.spans():
        tasks = [Task(str(folder), step, part, start, stop, probes) for part in range(plan.parts)]
        missing = [task for task in tasks if not (folder / task.name).exists()]
        if missing and not (folder / f"{start:012d}.merged").exists():
            left[start] = {task.name for task in missing}
            todo += missing
        else:
            finish(start, stop)
    for task in run(iter(todo)):
        left[task.start].discard(task.name)
        if not left[task.start]:
            finish(task.start, task.stop)


def _measure(plan: Plan, bank: Bank, start: int) -> Measure:
    """Cosines of queries, counted from `start`, with distinct rows; all are read from their files."""
    rows = MappedRows(plan.files, plan.tensor, plan.shapes)

    def measure(query: Index, number: Index) -> Float32:
        unit, place = rows.gather(bank.first[np.concatenate([query + start, number])])
        return pair_cosines(unit[place[: len(query)]], unit[place[len(query) :]])

    return measure


def _write_span(plan: Plan, bank: Bank, folder: Path, graph: dict[str, NDArray[Any]], tasks: Sequence[Task]) -> None:
    """Merge the lists of a span, write copies out, leave each row itself out, and put the rest into the graph."""
    indices, similarities = graph["indices"], graph["similarities"]
    others = indices.shape[1]
    step = max(1, min(QUERIES, MERGED // max(1, plan.wanted * plan.parts)))
    begin, end = tasks[0].start, tasks[0].stop
    for start in range(begin, end, step):
        stop = min(end, start + step)
        parts = [read_found(folder / t.name, slice(start - begin, stop - begin)) for t in tasks]
        group, cosine = merge(parts, _measure(plan, bank, start) if plan.kind == "flat" else None)
        listed, similarity = expand_in_order(bank, group, cosine, min(others + 1, len(bank.members)))
        mine = np.asarray(bank.members[bank.starts[start] : bank.starts[stop]])
        for at in range(0, len(mine), QUERIES):
            row = mine[at : at + QUERIES]
            which = np.asarray(bank.group[row]) - start
            near, value = without_self(row, listed[which], similarity[which])
            full = np.full((len(row), others), -1, indices.dtype)
            beside = np.full((len(row), others), np.nan, np.float32)
            full[:, : near.shape[1]] = near
            beside[:, : near.shape[1]] = np.where(near >= 0, value, np.nan)
            indices[row], similarities[row] = full, beside
    for tensor in (indices, similarities):
        if isinstance(tensor, np.memmap):
            tensor.flush()
