"""Build the neighbour graph of embeddings on disk: by tasks whose results are kept, merged exactly, and saved with the run.

After a stop at any moment, the same call uses the finished tasks, and the graph's file has the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError, TableError
from noisegate.pipeline.runs.embeddings import map_tensors
from noisegate.pipeline.runs.rows import MappedRows, gather, take_unit, unit_rows
from noisegate.pipeline.runs.table import RunFolder, read_metadata, search_folder
from noisegate.pipeline.system.array_types import Float32, Index
from noisegate.pipeline.system.machine import count_threads, default_memory
from noisegate.pipeline.system.output_files import whole_file, whole_path, write_atomically

from .distinct import DistinctRows, NearestLists, find_distinct, open_distinct, write_lists
from .exact import Measure, gpu_numbers, merge_lists, pair_cosines
from .graph import Neighbours, create_graph
from .inverted import Probing, count_cells, most_probes, sample_for_recall, train_inverted, tune_probes, write_index
from .plan import QUERIES, IndexChoice, Plan, Task, check_k, choose_kind, cut
from .task import RunTasks, forget_index, read_lists, run_in_turn

ROWS_AT_ONCE = 16_384  # rows that are hashed at a time
ENTRIES_MERGED = 1 << 24  # entries of lists merged at a time


def find_or_build_graph(
    run: RunFolder,
    stems: Sequence[str],
    rows: MappedRows,
    k: int,
    device: str,
    search: NeighbourSearch | None,
    note: Callable[[str], None],
) -> Neighbours:
    """Load the k-nearest-neighbour graph of the run's rows, or search for it; a stopped search goes on.

    A kept graph of an exact search with a larger k is used too: its lists begin with those of the smaller k.
    """
    search = search or NeighbourSearch()
    k = min(k, max(1, len(rows) - 1))
    path = run.path / ("neighbours.safetensors" if rows.tensor == "image" else "text_neighbours.safetensors")
    shards = {stem: read_metadata(run.table(stem))["shard"] for stem in stems}
    try:
        tensors, header = map_tensors(path)
        kept_k = tensors["indices"].shape[1]
    except (TableError, KeyError):  # there is no complete graph
        header, kept_k = {}, 0
    lengths = [k, kept_k] if header.get("kind") == "flat" and kept_k > k else [k]
    digests = [hashlib.sha256(json.dumps([shards, length], sort_keys=True).encode()) for length in lengths]
    for _, block in rows.chunks(ROWS_AT_ONCE):
        for digest in digests:
            digest.update(block.data)
    if search.index != "auto":
        for digest in digests:
            digest.update(search.index.encode())
    name = "neighbours" if rows.tensor == "image" else "neighbours of texts"
    if header.get("made_from") == digests[-1].hexdigest():
        note(f"{name}: the graph is there already")
        shutil.rmtree(search_folder(path), ignore_errors=True)  # still there if the search was killed at its end
        return Neighbours.load(path).nearest(k)
    note(f"{name}: searching {len(rows):,} rows, k = {k}")
    made_from = digests[0].hexdigest()
    return find_neighbours_on_disk(rows, k, path, made_from=made_from, search=search, device=device, note=note)


@dataclass(frozen=True)
class NeighbourSearch:
    """Settings and executor to search a run's embeddings.

    memory: bytes for the `at_once` tasks that `run` carries out on one machine at a time; None: half of what is free.
    index: "auto" compares with all rows if there are at most `exact_limit`, else probes an inverted file.
    cut: chooses parts and spans for a plan, bytes of memory, threads, and whether tasks are `remote`.
    remote: tasks run on other machines.
    """

    memory: int | None = None
    index: IndexChoice = "auto"
    run: RunTasks = run_in_turn
    at_once: int = 1
    exact_limit: int = 1_000_000
    cut: Callable[[Plan, int, int, bool], Plan] = cut
    remote: bool = False

    def __post_init__(self) -> None:
        if self.index not in ("auto", "flat", "ivf", "ivf-pq"):
            raise ConfigError.of("neighbour-index", self.index, "is unknown; use auto, flat, ivf or ivf-pq")

    def task_memory(self, device: str) -> int:
        """Bytes that each task may use."""
        memory = default_memory(gpu_numbers(device)) if self.memory is None else self.memory
        return memory // max(1, self.at_once)


def find_neighbours_on_disk(
    rows: MappedRows,
    k: int,
    target: Path,
    *,
    made_from: str,
    search: NeighbourSearch | None = None,
    device: str = "cpu",
    note: Callable[[str], None] = lambda text: None,
    progress: Callable[[int, int], None] | None = None,
) -> Neighbours:
    """Find the k nearest rows of every row by cosine, as `find_neighbours` lists them, and write them to `target`.

    Rows that are not ok, or have no direction, get lists of -1. `made_from` identifies the rows: finished tasks of a stopped
    search with the same identifier and k are used, all others are removed. The lists of an exact search do not depend on how
    the search was cut into tasks. progress: called with (rows done, rows in all).
    """
    check_k(k)
    search = search or NeighbourSearch()
    folder = search_folder(target)
    others = min(k, max(len(rows) - 1, 0))
    plan, distinct = _open_search(rows, others, folder, made_from, search, device)
    probing = None
    if plan.kind != "flat":
        _train(plan, rows, folder, search.task_memory(device))
        _finish(search.run, [Task(str(folder), "build", part) for part in range(plan.parts)])
        probing = _tune(plan, folder, search.run)
        note(f"neighbours: {plan.kind} with {probing.probes} probes, recall {probing.recall:.3f} on a sample")
    if plan.parts > 1:
        note(f"neighbours: searching {len(rows):,} rows in {plan.parts} parts of {plan.part:,}, as memory allows")
    graph = _open_graph(folder, len(rows), others, distinct, plan, probing.recall if probing else None)
    _search_spans(plan, distinct, folder, graph, search.run, probing.probes if probing else 0, progress)
    del graph
    (folder / "graph").replace(target)
    shutil.rmtree(folder)
    forget_index()
    return Neighbours.load(target)


def _open_search(
    rows: MappedRows, others: int, folder: Path, made_from: str, search: NeighbourSearch, device: str
) -> tuple[Plan, DistinctRows]:
    """Load the plan of a stopped search if it is for the same rows and still fits; else make a new one."""
    memory = search.task_memory(device)
    files = tuple(str(Path(file).resolve()) for file in rows.files)
    before = Plan.load(folder)
    if before is not None and before.made_from == f"{made_from} k={others}" and before.files == files:
        fits = search.memory is None or before.need <= memory
        kind = choose_kind(search.index, len(rows), before.distinct, search.exact_limit)
        if fits and before.kind == kind and before.device == device:
            for unfinished in folder.glob(".*"):  # files of killed tasks; they may be as large as a part
                unfinished.unlink(missing_ok=True)
            return before, open_distinct(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    distinct = find_distinct(rows, folder, memory)
    count = len(distinct.first)
    plan = Plan(
        made_from=f"{made_from} k={others}",
        tensor=rows.tensor,
        files=files,
        shapes=tuple(rows.shapes),
        width=rows.width,
        distinct=count,
        wanted=min(others + 1, count),
        kind=choose_kind(search.index, len(rows), count, search.exact_limit),
        part=1024,
        span=QUERIES,
        need=0,
        device=device,
        seed=0,
    )
    plan = search.cut(plan, memory, count_threads(), search.remote)
    plan.save(folder)  # last: a folder without a plan is not used
    return plan, distinct


def _train(plan: Plan, rows: MappedRows, folder: Path, memory: int) -> None:
    """Write `trained.faiss`: cells and codes learnt from a sample that takes at most half of the memory."""
    import faiss

    path = folder / "trained.faiss"
    if not path.exists():
        first, most = open_distinct(folder).first, memory // (8 * plan.width)
        read = lambda numbers: take_unit(rows, first[numbers])  # noqa: E731
        index = train_inverted(faiss, plan.kind, plan.distinct, plan.width, read, plan.seed, most)
        write_index(faiss, index, path)


def _tune(plan: Plan, folder: Path, run: RunTasks) -> Probing:
    """Choose how many cells to probe, and keep the choice as `tuned.json`."""
    path = folder / "tuned.json"
    if path.exists():
        return Probing(**json.loads(path.read_text(encoding="utf-8")))
    sample = sample_for_recall(plan.distinct, plan.seed)
    with whole_file(folder / "sample.npy") as file:
        np.save(file, sample)

    def search(step: Literal["exact", "search"], probes: int) -> NearestLists:
        tasks = [Task(str(folder), step, part, probes=probes, sample=True) for part in range(plan.parts)]
        _finish(run, tasks)
        return merge_lists([read_lists(folder / task.name, slice(None)) for task in tasks])

    probing = tune_probes(
        lambda probes: search("search", probes),
        sample,
        search("exact", 0),
        most_probes(count_cells(plan.distinct), gpu_numbers(plan.device)),
        compressed=plan.kind == "ivf-pq",
    )
    write_atomically(path, json.dumps(probing._asdict()).encode())
    return probing


def _finish(run: RunTasks, tasks: Sequence[Task]) -> None:
    """Carry out the tasks whose files are not there yet."""
    for _ in run(task for task in tasks if not (Path(task.folder) / task.name).exists()):
        pass


def _open_graph(
    folder: Path, rows: int, columns: int, distinct: DistinctRows, plan: Plan, recall: float | None
) -> dict[str, NDArray[Any]]:
    """Map the graph's file, created with the empty lists of rows that belong to no group."""
    path = folder / "graph"
    if not path.exists():
        with whole_path(path) as temporary:
            dtype = np.int32 if rows < 2**31 else np.int64
            name = plan.made_from.rpartition(" k=")[0]
            graph = create_graph(temporary, (rows, columns), dtype, plan.kind, recall, {"made_from": name})
            for start in range(0, rows, QUERIES):
                row = np.flatnonzero(distinct.group[start : start + QUERIES] < 0) + start
                graph["indices"][row], graph["similarities"][row] = -1, np.nan
    return map_tensors(path, "r+")[0]


def _search_spans(
    plan: Plan,
    distinct: DistinctRows,
    folder: Path,
    graph: dict[str, NDArray[Any]],
    run: RunTasks,
    probes: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Search every span in every part; a span whose parts are all searched is merged into the graph at once."""
    step: Literal["exact", "search"] = "exact" if plan.kind == "flat" else "search"
    total = len(distinct.group)
    missing: dict[int, set[str]] = {}  # names of the tasks to wait for, by the start of their span
    merged = total - len(distinct.members)
    todo: list[Task] = []

    def finish(start: int, stop: int) -> None:
        nonlocal merged
        tasks = [Task(str(folder), step, part, start, stop, probes) for part in range(plan.parts)]
        if not (folder / f"{start:012d}.merged").exists():
            _write_span(plan, distinct, folder, graph, tasks)
            (folder / f"{start:012d}.merged").touch()
        for name in (*(task.name for task in tasks), tasks[0].cells):
            (folder / name).unlink(missing_ok=True)
        merged += int(distinct.starts[stop] - distinct.starts[start])
        if progress is not None:
            progress(merged, total)

    for start, stop in plan.spans():
        tasks = [Task(str(folder), step, part, start, stop, probes) for part in range(plan.parts)]
        left = [task for task in tasks if not (folder / task.name).exists()]
        if left and not (folder / f"{start:012d}.merged").exists():
            missing[start] = {task.name for task in left}
            todo += left
        else:
            finish(start, stop)
    for task in run(iter(todo)):
        missing[task.start].discard(task.name)
        if not missing[task.start]:
            finish(task.start, task.stop)


def _write_span(
    plan: Plan, distinct: DistinctRows, folder: Path, graph: dict[str, NDArray[Any]], tasks: Sequence[Task]
) -> None:
    """Merge the lists that the tasks of one span found in their parts, and write them into the graph."""
    step = max(1, min(QUERIES, ENTRIES_MERGED // max(1, plan.wanted * plan.parts)))
    begin, end = tasks[0].start, tasks[0].stop
    for start in range(begin, end, step):
        queries = slice(start - begin, min(end, start + step) - begin)
        lists = [read_lists(folder / task.name, queries) for task in tasks]
        nearest = merge_lists(lists, _measure_from(plan, distinct, start) if plan.kind == "flat" else None)
        write_lists(distinct, start, nearest, graph["indices"], graph["similarities"])
    for tensor in graph.values():
        if isinstance(tensor, np.memmap):
            tensor.flush()


def _measure_from(plan: Plan, distinct: DistinctRows, start: int) -> Measure:
    """Return a function that measures cosines of queries, counted from `start`, with distinct rows read from their files."""
    rows = MappedRows(plan.files, plan.tensor, plan.shapes)

    def measure(query: Index, number: Index) -> Float32:
        taken, place = gather(rows, distinct.first[np.concatenate([query + start, number])])
        unit, _ = unit_rows(taken)
        return pair_cosines(unit[place[: len(query)]], unit[place[len(query) :]])

    return measure
