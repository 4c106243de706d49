"""All cells of a preset, several at a time, each finished one kept: a bench that was stopped goes on."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system.parent_watch import leave_with
from noisegate.pipeline.system.processors import processors

from .cells import Cell, CellResult, plan_cell, read_result, run_cell
from .preset import ScenePreset
from .scene_data import Prepared, prepare

__all__ = ["BenchResult", "run_bench", "run_cells"]

CELLS_PER_PROCESS = 12
"""After so many all processes are renewed, so that memory is that of a few cells and not of a whole bench. A pool of its
own for each round, because max_tasks_per_child of one pool hangs in Python 3.11 when more was submitted than it allows."""


@dataclass(frozen=True)
class BenchResult:
    """Everything that the tables are made from."""

    preset: ScenePreset
    cells: list[CellResult]
    identification: dict[float, dict[str, float]]


def run_bench(
    preset: ScenePreset,
    out: Path,
    *,
    jobs: int = 0,
    note: Callable[[str], None] = lambda text: None,
    progress: Callable[[CellResult, int, int], None] = lambda result, done, total: None,
) -> BenchResult:
    """Prepare the data, train what is not trained yet, and give all results in the order of the preset."""
    if jobs < 0:
        raise ConfigError(f"jobs {jobs} is no number of processes; use 2, or 0 for one per processor")
    prepared: dict[float, Prepared] = {rate: prepare(preset.data, rate, out, note) for rate in preset.rates}
    place = out / preset.name
    cells = [
        plan_cell(preset, prepared[rate], method, rate, seed, place)
        for seed in preset.seeds  # one seed of everything comes before the second of anything: a slip shows early
        for rate in sorted(preset.rates, reverse=True)
        for method in preset.methods
    ]
    results = run_cells(cells, jobs or processors(), progress=progress)
    return BenchResult(preset, results, {rate: prepared[rate].identification for rate in preset.rates})


def run_cells(
    cells: Sequence[Cell],
    jobs: int,
    *,
    run: Callable[[Cell], CellResult] = run_cell,
    progress: Callable[[CellResult, int, int], None] = lambda result, done, total: None,
) -> list[CellResult]:
    """Results in the order of the cells; those that are there already are not made again."""
    found = {cell: result for cell in range(len(cells)) if (result := read_result(cells[cell])) is not None}
    todo = [cell for cell in range(len(cells)) if cell not in found]
    done = len(found)
    if jobs == 1:
        for cell in todo:
            found[cell] = run(cells[cell])
            done += 1
            progress(found[cell], done, len(cells))
    elif todo:
        for cell, result in _in_processes(cells, todo, jobs, run):
            found[cell] = result
            done += 1
            progress(result, done, len(cells))
    return [found[cell] for cell in range(len(cells))]


def _in_processes(
    cells: Sequence[Cell], todo: Sequence[int], jobs: int, run: Callable[[Cell], CellResult]
) -> Iterator[tuple[int, CellResult]]:
    """Results as they come; a process that is killed, for want of memory say, costs the cells that it had begun."""
    left = list(todo)
    while left:
        before, broken = len(left), False
        context, others = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
        with ProcessPoolExecutor(jobs, context, leave_with, (os.getpid(),)) as pool:
            waiting = {pool.submit(run, cells[cell]): cell for cell in left[: jobs * CELLS_PER_PROCESS]}
            try:
                for future in as_completed(waiting):
                    try:
                        result = future.result()
                    except BrokenProcessPool:
                        broken = True
                        continue
                    left.remove(waiting[future])
                    yield waiting[future], result
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for child in set(multiprocessing.active_children()) - others:
                    child.terminate()  # a training that is asked to stop does so after its next update
                raise
        if broken and len(left) == before:  # not one was finished: it is not chance
            for cell in left:
                one = cells[cell]
                what = "its process was killed, perhaps for want of memory; use fewer --jobs"
                yield cell, CellResult(one.method, one.rate, one.seed, one.digest, {}, error=what)
            return
