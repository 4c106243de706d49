"""Embedding files of rows made by hand, and plans that are cut in odd places."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.neighbours.plan import Plan
from noisegate.pipeline.runs.embeddings import write_embeddings
from noisegate.pipeline.runs.rows import MappedRows


def stored(folder: Path, rows: NDArray[np.floating], ends: Sequence[int] = ()) -> MappedRows:
    """The rows as float16 files that end at `ends`."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for i, block in enumerate(np.split(rows, list(ends))):
        write_embeddings(folder / f"{i}.safetensors", block, np.zeros((len(block), 0)), {})
        files.append(str(folder / f"{i}.safetensors"))
    return MappedRows(files, "image")


def cut_at(part: int, span: int) -> Callable[[Plan, int, int, bool], Plan]:
    return lambda plan, memory, threads, remote: replace(plan, part=part, span=span, threads=threads)


def clustered(count: int, width: int, seed: int = 0, spread: float = 0.5) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((30, width))[rng.integers(0, 30, count)] + spread * rng.standard_normal((count, width))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16).astype(np.float32)
