"""An inverted file: its cells are learnt from a sample, and its recall is measured, before all of it is searched."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from noisegate.pipeline.runs.mapped_rows import MappedRows
from noisegate.pipeline.system.output_files import write_atomically

from .distinct import open_bank
from .index import GPU_LIMIT, RECALL, RECALL_SAMPLE, gpu_numbers, share_found
from .lists import Found
from .part import write_index
from .plan import Plan, Task

__all__ = ["Tuned", "cells_of", "train", "tune"]

FIRST_PROBES = 8
GAIN = 0.002  # where more probes give less, what is lost is lost to compression


@dataclass(frozen=True)
class Tuned:
    """How many cells are looked into, and the share of true neighbours that this finds."""

    probes: int
    recall: float


def cells_of(rows: int) -> int:
    """4 sqrt(N) cells, as far as there are 40 rows for each."""
    return max(1, min(int(4 * rows**0.5), rows // 40))


def train(plan: Plan, rows: MappedRows, folder: Path, memory: int) -> None:
    """Learn the cells, and the codes of a compressed index, from 40 rows per cell or as many as the memory holds."""
    if (folder / "trained.faiss").exists():
        return
    import faiss

    cells = cells_of(plan.distinct)
    size = max(40 * cells, 40 * 256 if plan.kind == "ivf-pq" else 0)
    size = min(plan.distinct, size, max(cells, memory // (8 * plan.width)))
    picked = np.sort(np.random.default_rng(plan.seed).choice(plan.distinct, size=size, replace=False))
    quantiser = faiss.IndexFlatIP(plan.width)
    kind = (quantiser, plan.width, cells)
    index: Any
    if plan.kind == "ivf-pq":
        index = faiss.IndexIVFPQ(*kind, code_bytes(plan.width), 8, faiss.METRIC_INNER_PRODUCT)
    else:
        index = faiss.IndexIVFFlat(*kind, faiss.METRIC_INNER_PRODUCT)
    index.cp.seed = plan.seed
    index.train(rows.unit(open_bank(folder).first[picked]))
    write_index(faiss, index, folder / "trained.faiss")


def code_bytes(width: int) -> int:
    """Bytes of a compressed row: one for 4 numbers, for 8 beyond 128; fewer where the width cannot be cut so.

    >>> [code_bytes(width) for width in (64, 512, 1280, 90, 7)]
    [16, 64, 160, 18, 1]
    """
    most = max(1, width // (4 if width <= 128 else 8))
    return next(count for count in range(most, 0, -1) if width % count == 0)


def tune(plan: Plan, folder: Path, search: Callable[[list[Task]], Found]) -> Tuned:
    """Probe more and more cells until a sample's recall reaches 0.95, all are probed, or (compressed) nothing is gained.

    Recall: the share of a sample's true neighbours, found by comparing with every row, that the search lists; a listed row
    counts when it is as near as the last true one, so ties do not matter.  The row itself, which is easy to find, does not
    count.
    """
    path = folder / "tuned.json"
    if path.exists():
        return Tuned(**json.loads(path.read_text(encoding="utf-8")))
    size = min(RECALL_SAMPLE, plan.distinct)
    sample = np.sort(np.random.default_rng(plan.seed + 1).choice(plan.distinct, size=size, replace=False))
    part = folder / ".sample.npy"
    np.save(part, sample)
    part.replace(folder / "sample.npy")

    def found(step: Any, probes: int) -> Found:
        return search([Task(str(folder), step, p, probes=probes, sample=True) for p in range(plan.parts)])

    least = found("exact", 0)[1][:, -1] - 1e-6
    cells = cells_of(plan.distinct)
    most = min(cells, GPU_LIMIT) if gpu_numbers(plan.device) else cells
    probes, before = min(FIRST_PROBES, most), 0.0
    while True:
        recall = share_found(sample, *found("search", probes), least)
        enough = recall >= RECALL or (plan.kind == "ivf-pq" and recall - before < GAIN)
        if enough or probes == most:
            tuned = Tuned(probes, recall)
            write_atomically(path, json.dumps({"probes": probes, "recall": recall}).encode())
            return tuned
        probes, before = min(2 * probes, most), recall
