"""Train the cells of a bench, several at a time, and keep finished ones. A cell is one method, noise rate and seed."""

import gc
import hashlib
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from noisegate.pipeline.datasets.noise import TRUTH_FILE
from noisegate.pipeline.errors import ConfigError, StoppedError
from noisegate.pipeline.system import Mask, exit_with_parent, free_unused_memory, spawn_context, write_atomically
from noisegate.trainers.config import resolve_settings

if TYPE_CHECKING:
    from noisegate.pipeline.inspect.metrics import MeanNoiseRank

STOPPED = "stopped; run the same command again, finished cells are kept"
CELLS_PER_PROCESS = 12
"""Cells that a process trains before it is replaced, so that its memory stays small. Each round gets a pool of its own:
max_tasks_per_child of one pool hangs in Python 3.11 when more was submitted than it allows."""
NOISE_FIGURES = ("noise_precision", "noise_recall", "noise_f1")
RANK_FIGURES = ("mean_noise_rank", "mean_noise_rank_best")
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Cell:
    """One training of a bench, as a tree for `TrainConfig`, and the file of its result."""

    method: str
    rate: float
    seed: int
    config: dict[str, Any]
    file: Path
    threads: int | None = 1
    """threads of torch: one, so that cells that run at once do not slow each other down; None keeps the current number"""
    truth: Path | None = None
    """the known noise; None: the file of `noisegate noise` beside the shards, if there is one"""
    folders: tuple[Path, ...] = ()
    """absolute paths of the bench and of its data, which may be moved: digests do not depend on these paths"""

    @property
    def digest(self) -> str:
        """Compute the digest of the settings and of all defaults; a cell whose result has another digest is trained again.

        Null settings, the values that a method chooses for them, and the data itself are not part of it. Raise ConfigError
        for invalid settings.
        """
        text = json.dumps(_without_nulls(resolve_settings(self.config)), sort_keys=True, ensure_ascii=False)
        for number, folder in sorted(enumerate(self.folders), key=lambda item: -len(str(item[1]))):  # inner first
            text = text.replace(json.dumps(f"{folder}{os.sep}", ensure_ascii=False)[1:-1], f"FOLDER {number}/")
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_nulls(settings: Any) -> Any:
    """Leave out null settings, so that a new setting whose default is null makes no cell stale.

    >>> _without_nulls({"data": {"table": None, "batch_size": 8}, "seed": 0})
    {'data': {'batch_size': 8}, 'seed': 0}
    """
    if isinstance(settings, dict):
        return {name: _without_nulls(value) for name, value in settings.items() if value is not None}
    return settings


@dataclass(frozen=True)
class CellResult:
    """Figures of a trained cell, or the `error` if it failed.

    train_seconds: wall-clock time of training alone. seconds: processor time from configuration to figures.
    memory_mb: peak memory of the process, libraries included. nan if unknown.
    """

    method: str
    rate: float
    seed: int
    digest: str
    figures: dict[str, float]
    updates: int = 0
    skipped: int = 0
    train_seconds: float = math.nan
    seconds: float = math.nan
    memory_mb: float = math.nan
    learnt: dict[str, float] = field(default_factory=dict)
    """how much of the noise the method found by itself, by `judge_learnt`"""
    error: str | None = None

    @property
    def title(self) -> str:
        """The cell in words: its method, noise and seed."""
        noise = "with its own noise" if math.isnan(self.rate) else f"at {100 * self.rate:g} % noise"
        return f"{self.method} {noise}, seed {self.seed}"


def run_cells(
    cells: Sequence[Cell],
    jobs: int,
    *,
    run: Callable[[Cell], CellResult] | None = None,
    progress: Callable[[CellResult, int, int], None] = lambda result, done, total: None,
) -> list[CellResult]:
    """Train the cells and return results in their order; finished cells are read from their files."""
    run = run or run_cell
    results = {place: result for place, cell in enumerate(cells) if (result := read_result(cell)) is not None}
    todo = [place for place in range(len(cells)) if place not in results]
    new = ((place, run(cells[place])) for place in todo) if jobs == 1 else _run_in_processes(cells, todo, jobs, run)
    for place, result in new:
        results[place] = result
        progress(result, len(results), len(cells))
    return [results[place] for place in range(len(cells))]


def _run_in_processes(
    cells: Sequence[Cell], todo: Sequence[int], jobs: int, run: Callable[[Cell], CellResult]
) -> Iterator[tuple[int, CellResult]]:
    """Yield results as they come. A killed process loses only the cells that it had begun, which are tried again."""
    left = list(todo)
    while left:
        before, broken = len(left), False
        context, others = spawn_context(run), set(multiprocessing.active_children())
        with ProcessPoolExecutor(jobs, context, exit_with_parent) as pool:
            waiting = {pool.submit(run, cells[place]): place for place in left[: jobs * CELLS_PER_PROCESS]}
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
                    child.terminate()  # a training stops after its next update
                raise
        if broken and len(left) == before:  # no cell was finished, so another try will not help
            for place in left:
                cell = cells[place]
                error = "its process was killed, perhaps for want of memory; use fewer --jobs"
                yield place, CellResult(cell.method, cell.rate, cell.seed, cell.digest, {}, error=error)
            return


def run_cell(cell: Cell) -> CellResult:
    """Train and measure one cell; an exception becomes the `error` of its result."""
    import torch  # torch, and modules that import it: processes that wait for cells stay small

    from noisegate.trainers.data.shard_cache import ScratchFolder
    from noisegate.trainers.train import train

    if cell.threads is not None:
        torch.set_num_threads(cell.threads)
    _reset_peak_memory()
    began = time.process_time()
    names: dict[str, Any] = {"method": cell.method, "rate": cell.rate, "seed": cell.seed, "digest": cell.digest}
    truth = cell.truth or Path(cell.config["data"]["shards"][0]).parent / TRUTH_FILE
    scratch = ScratchFolder("bench")  # checkpoints are not needed after the run is measured
    try:
        trained = train({**cell.config, "out": str(scratch.path)}, quiet=True)
        if trained.stopped:
            raise StoppedError(STOPPED)
        result = CellResult(
            **names,
            figures=trained.last,
            updates=trained.steps,
            skipped=trained.skipped,
            train_seconds=trained.seconds,
            seconds=time.process_time() - began,
            memory_mb=_peak_megabytes(),
            learnt=judge_learnt(trained.sample_columns, truth) if truth.exists() else {},
        )
    except StoppedError:
        raise
    except Exception as error:  # a method that diverges becomes a row of the table
        result = CellResult(**names, figures={}, error=f"{type(error).__name__}: {error}")
    finally:
        scratch.remove()
    write_result(cell, result)
    return result


def read_result(cell: Cell) -> CellResult | None:
    """Read the stored result, if it was made with the same settings and did not fail.

    Raise ConfigError for invalid settings, also if there is no result, so that they are found before any cell is trained.
    """
    digest = cell.digest
    try:
        stored = json.loads(cell.file.read_text(encoding="utf-8"))
        values: dict[str, Any] = {k: math.nan if v is None and k != "error" else v for k, v in stored.items()}
        values["figures"] = {name: math.nan if v is None else v for name, v in values["figures"].items()}
        result = CellResult(**values)
    except (FileNotFoundError, ValueError, TypeError, AttributeError, KeyError):
        return None  # no file, or a file of another version
    return result if result.digest == digest and result.error is None else None


def finished_cells(cells: Sequence[Cell], out: Path) -> list[Cell]:
    """List the cells that need no training; raise ConfigError if there are none."""
    if found := [cell for cell in cells if read_result(cell) is not None]:
        return found
    raise nothing_finished(out)


def noises_with_results(folder: Path, noises: Iterable[str]) -> list[str]:
    """List the names of noises of which `folder` has any result, METHOD-NOISE-SEED.json; raise ConfigError if there is none."""
    if found := [name for name in noises if any(folder.glob(f"*-{name}-*.json"))]:
        return found
    raise nothing_finished(folder)


def nothing_finished(out: Path) -> ConfigError:
    """The error for --finished where no cell is finished, below the folder `out`."""
    return ConfigError(
        f"finished: no cell of this bench is finished in {out}; leave it out to train them", "finished", True
    )


def json_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace nan and infinities by None, because JSON does not have them, also one level deeper.

    >>> json_values({"figures": {"rsum": math.nan}, "seed": 0})
    {'figures': {'rsum': None}, 'seed': 0}
    """
    return {
        name: json_values(v) if isinstance(v, Mapping) else None if isinstance(v, float) and not math.isfinite(v) else v
        for name, v in values.items()
    }


def write_result(cell: Cell, result: CellResult) -> None:
    """Store a result for `read_result`."""
    write_atomically(cell.file, (json.dumps(json_values(asdict(result)), indent=1) + "\n").encode())


# --- how well a method found the noise (LNC table 7, GSL table 3, TANGO table 9) -----------------------------------------


def judge_learnt(columns: Mapping[str, NDArray[Any]], truth: Path) -> dict[str, float]:
    """Compare a method's sample columns with `truth` (noise.parquet of the shards): figures in percent, noise as positive.

    For weights also the mean rank of the noisy samples, and its optimum (OSA table 9).

    Figures that cannot be computed are left out: if there is no noise, or the method judges no samples.
    """
    from noisegate.pipeline.inspect.metrics import mean_noise_rank, relabel_accuracy, selection_metrics  # imports scipy

    known = pq.read_table(truth)
    figures: dict[str, float] = {}
    kept = kept_rows(columns)
    if kept is not None:
        metrics = selection_metrics(None, kept, known["noisy"].to_numpy())
        figures = {name: 100 * float(getattr(metrics, name)) for name in NOISE_FIGURES}
    weight = columns.get("osa_weight", columns.get("npc_weight"))
    if weight is not None:
        seen = np.isfinite(weight)
        rank = mean_noise_rank(weight[seen], known["noisy"].to_numpy()[seen])
        figures |= rank_figures(rank)
    if "refined_label" in columns and "clean_label" in known.column_names:
        clean_labels = known["clean_label"].fill_null(-1).to_numpy()
        figures["relabel_accuracy"] = 100 * relabel_accuracy(np.asarray(columns["refined_label"]), clean_labels)
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def rank_figures(rank: "MeanNoiseRank") -> dict[str, float]:
    """Return the mean rank of the noise and its optimum, by `RANK_FIGURES`."""
    return dict(zip(RANK_FIGURES, (rank.value, rank.optimum), strict=True))


def kept_rows(columns: Mapping[str, NDArray[Any]]) -> Mask | None:
    """Return the rows (N,) that a method finds clean: `clean`, weight > 0, or probability or confidence > 0.5; else None."""
    for name in ("clean", "osa_weight"):
        if name in columns:
            return np.asarray(columns[name]) > 0
    probability = next((n for n in columns if n.endswith(("_probability", "lnc_confidence", "ncr_confidence"))), None)
    return None if probability is None else np.nan_to_num(np.asarray(columns[probability]), nan=1.0) > 0.5


# --- peak memory of this process ---------------------------------------------------------------------------------------


def _reset_peak_memory() -> None:
    """Free memory of earlier cells and reset the kernel's peak, so that a cell reports its own memory.

    If the system allows no reset, a process reports the largest of its cells so far for each cell.
    """
    gc.collect()
    free_unused_memory()
    with suppress(OSError):
        CLEAR.write_text("5", encoding="ascii")


def _peak_megabytes() -> float:
    """Return peak resident memory, libraries included; nan if the system does not say."""
    if STATUS.exists():
        for line in STATUS.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    if sys.platform == "win32":
        return math.nan
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024**2 if sys.platform == "darwin" else 1024)
