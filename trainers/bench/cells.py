"""One cell of a bench: a method at a noise rate with a seed, trained, measured, and written down."""

import hashlib
import json
import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from noisegate.pipeline.datasets.noise.shards import TRUTH_FILE
from noisegate.pipeline.errors import StoppedError
from noisegate.pipeline.runs.table import RunFolder
from noisegate.pipeline.score_run import anchors_file
from noisegate.pipeline.system.output_files import write_atomically
from noisegate.trainers.data.scratch import ScratchFolder

from .learnt import judge_learnt
from .peak_memory import forget_peak, peak_megabytes
from .preset import ORACLE, PASSES, ScenePreset, merged, rate_name
from .scene_data import Prepared

__all__ = ["Cell", "CellResult", "plan_cell", "read_result", "run_cell"]


@dataclass(frozen=True)
class Cell:
    """What to train, as a tree for `TrainConfig`, and where its result goes."""

    method: str
    rate: float
    seed: int
    config: dict[str, Any]
    file: Path
    threads: int | None = 1
    """of torch, one so that several cells do not get in each other's way; None leaves them as they are"""

    @property
    def digest(self) -> str:
        """Of the settings: a result made with others is not taken for this cell's."""
        text = json.dumps(self.config, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class CellResult:
    """Figures of a trained cell; `error` in their place where it failed.

    train_seconds: in training alone, by the clock; seconds: of processor time, from configuration to figures.
    memory_mb: the process's largest, libraries included. nan where it is not known.
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
    """what the method found of the noise by itself, in percent"""
    error: str | None = None


def plan_cell(preset: ScenePreset, prepared: Prepared, method: str, rate: float, seed: int, out: Path) -> Cell:
    """The settings of a cell: so many epochs of what the method trains on that it makes `preset.updates` updates.

    With `@passes` behind its name it makes as many passes over its own samples as plain training does over all.
    """
    plain, _, variant = method.partition("@")
    name = "select" if plain == ORACLE else plain
    base: dict[str, Any] = {
        "data": {
            "shards": [str(path) for path in sorted(prepared.shards.glob("*.tar"))],
            "table": str(prepared.truth if plain == ORACLE else prepared.table),
            "eval_shards": [str(path) for path in sorted(prepared.held_out.glob("*.tar"))],
        },
        "method": {"name": name},
        "task": {"name": preset.task},
        "logging": {"every": 1_000_000, "tensorboard": False},
        "seed": seed,
    }
    if preset.task == "classification":
        base["target"] = {"classes": str(prepared.classes)}
    config = merged(merged(base, preset.config), preset.settings.get(plain, {}))
    config = merged(config, preset.settings.get(method, {}) if variant else {})
    if config["target"].get("anchors") == "table":
        config = merged(config, {"target": {"anchors": str(anchors_file(RunFolder(prepared.table)))}})
    if config["target"].get("vocabulary") == {"kind": "captions"}:
        config = merged(config, {"target": {"vocabulary": {"ids": list(prepared.tokens)}}})
    rule = config["method"].get("rule") or config["data"].get("where")
    rows = prepared.selected(plain) if rule is None else prepared.selected_by(rule)
    own, every = (max(1, n // int(config["data"]["batch_size"])) for n in (rows, prepared.rows))
    if variant == PASSES:
        budget: dict[str, Any] = {"epochs": math.ceil(preset.updates / every)}
    else:
        budget = {"epochs": math.ceil(preset.updates / own), "max_steps": preset.updates}
    config = merged({"loop": {**budget, "evaluate_every": 10_000}}, config)
    file = out / "cells" / f"{method}-{rate_name(rate)}-{seed}.json"
    return Cell(method, rate, seed, config, file)


def read_result(cell: Cell) -> CellResult | None:
    """The result of an earlier bench, where it was made with the same settings and did not fail."""
    try:
        stored = json.loads(cell.file.read_text(encoding="utf-8"))
        values: dict[str, Any] = {k: math.nan if v is None and k != "error" else v for k, v in stored.items()}
        found = CellResult(**values)
    except (FileNotFoundError, ValueError, TypeError, AttributeError):  # none, or of another version
        return None
    return found if found.digest == cell.digest and found.error is None else None


def write_result(cell: Cell, result: CellResult) -> None:
    """For `read_result`."""
    values = {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in asdict(result).items()}
    write_atomically(cell.file, (json.dumps(values, indent=1) + "\n").encode())


def run_cell(cell: Cell) -> CellResult:
    """Train and measure; what goes wrong is the cell's result, not the bench's end."""
    import torch

    from noisegate.trainers.train import train

    if cell.threads is not None:
        torch.set_num_threads(cell.threads)
    forget_peak()
    began = time.process_time()
    what: dict[str, Any] = {"method": cell.method, "rate": cell.rate, "seed": cell.seed, "digest": cell.digest}
    truth = Path(cell.config["data"]["shards"][0]).parent / TRUTH_FILE
    scratch = ScratchFolder("bench")  # a run's checkpoints are worth nothing once it is measured
    try:
        done = train({**cell.config, "out": str(scratch.path)}, quiet=True)
        if done.stopped:
            raise StoppedError("stopped; run the same command again, finished cells are kept")
        found = CellResult(
            **what,
            figures=done.last,
            updates=done.steps,
            skipped=done.skipped,
            train_seconds=done.seconds,
            seconds=time.process_time() - began,
            memory_mb=peak_megabytes(),
            learnt=judge_learnt(done.sample_columns, truth) if truth.exists() else {},
        )
    except StoppedError:
        raise
    except Exception as error:  # a method that diverges is a row of the table
        found = CellResult(**what, figures={}, error=f"{type(error).__name__}: {error}")
    finally:
        scratch.remove()
    write_result(cell, found)
    return found
