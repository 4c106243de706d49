"""Data of a bench: scenes drawn, spoilt and scored once, kept below the bench's folder and used again."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.classes import load_classes
from pipeline.evaluation import evaluate, evaluate_labels
from pipeline.job import annotate
from pipeline.noise.label_shards import noise_labels
from pipeline.noise.shards import noise_captions
from pipeline.scenes import write_scenes
from pipeline.table import RunFolder, read_metadata, read_table
from pipeline.truth import read_truth
from pipeline.weigh import with_columns
from pipeline.workers import DecodeOptions

from .preset import SceneData, rate_name

__all__ = ["Prepared", "prepare"]

SHARDS = 4


@dataclass(frozen=True)
class Prepared:
    """Folders of one noise rate, and what the table's `clean` is worth by the truth."""

    shards: Path
    table: Path
    truth: Path
    """the same table, with the truth as its column `clean`"""
    held_out: Path
    classes: Path
    rows: int
    kept: int
    clean: int
    identification: dict[str, float]

    def selected(self, method: str) -> int:
        """Rows that a method which keeps the clean ones trains on."""
        return {"select": self.kept, "oracle": self.clean}.get(method, self.rows)


def prepare(data: SceneData, rate: float, out: Path, note: Callable[[str], None]) -> Prepared:
    """Draw, spoil and score the scenes of one rate, unless that is done."""
    folder = out / "data" / f"{data.protocol}-{data.train}-{data.size}px-{data.seed}"
    clean, held = folder / "clean", folder / f"held-out-{data.held_out}"
    if not (clean / "classes.txt").exists():
        note(f"drawing {data.train:,} scenes")
        write_scenes(clean, data.train, SHARDS, data.seed, data.size)
    if not (held / "classes.txt").exists():
        write_scenes(held, data.held_out, 1, data.seed + 1, data.size)
    shards, table, truth = (folder / f"{kind}-{rate_name(rate)}" for kind in ("noisy", "tables", "truth"))
    if not (shards / "noise.parquet").exists():
        shutil.rmtree(shards, ignore_errors=True)
        sources = sorted(clean.glob("*.tar"))
        if data.protocol == "shuffle-captions":
            noise_captions(sources, shards, rate=rate, seed=data.seed)
        else:
            noise_labels(
                sources, shards, protocol=data.protocol, rate=rate, seed=data.seed, classes=clean / "classes.txt"
            )
    labels = data.protocol != "shuffle-captions"
    note(f"scoring {data.train:,} samples with {100 * rate:g} % noise")
    annotate(
        sorted(shards.glob("*.tar")),
        table,
        options=DecodeOptions(tasks=("labels",) if labels else ("pairs",)),
        classes=load_classes(str(clean / "classes.txt")) if labels else None,
        workers=0,
    )
    rows = _write_truth(table, truth)
    return Prepared(shards, table, truth, held, clean / "classes.txt", *rows, _identification(table, labels))


def _write_truth(table: Path, truth: Path) -> tuple[int, int, int]:
    """A copy of the run in which `clean` is the truth; rows, rows kept by the table, rows that are right."""
    run, copy = RunFolder(table), RunFolder(truth)
    whole = read_table(table, ["shard", "key", "index", "status", "clean"])
    right = ~read_truth(run, whole, None).noisy
    shutil.rmtree(truth, ignore_errors=True)
    shutil.copytree(table, truth, ignore=shutil.ignore_patterns("_lock"))
    start = 0
    for stem in run.stems():
        one = run.read(stem)
        part = pa.array(right[start : start + len(one)])
        copy.write_table(stem, with_columns(one, {"clean": part}, read_metadata(run.table(stem))))
        start += len(one)
    kept = np.asarray(whole["clean"].fill_null(False)).astype(bool)
    return len(right), int(kept.sum()), int(right.sum())


def _identification(table: Path, labels: bool) -> dict[str, float]:
    """What the table's `clean` is worth by the truth, in percent: noisy as positive (LNC table 7), and repaired labels."""
    if labels:
        judged = evaluate_labels(table)
        found, accuracy = judged.fused, judged.refined_accuracy
    else:
        found, accuracy = evaluate(table).selection, None
    names = ("noise_precision", "noise_recall", "noise_f1", "clean_auroc")
    figures = {name: 100 * float(getattr(found, name)) for name in names}
    return figures if accuracy is None else {**figures, "relabel_accuracy": 100 * accuracy}
