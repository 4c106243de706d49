"""Embeddings made by hand, with classes and captions that are known, and runs made of them."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisegate import Summary
from noisegate.pipeline.rescore import score_embeddings
from noisegate.pipeline.system.array_types import Float32, Index
from tests.jobs import files_of

Rows = Float32


def clusters(
    seed: int = 0, count: int = 120, classes: int = 4, width: int = 12, spread: float = 0.25
) -> tuple[Rows, Index]:
    """Unit rows (N, d) around one direction for each class, in turn, and the classes (N,)."""
    rng = np.random.default_rng(seed)
    label = np.arange(count) % classes
    rows = np.eye(classes, width)[label] + spread * rng.standard_normal((count, width))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), label


def captions(images: Rows, seed: int = 0, wrong: int = 0, spread: float = 0.1) -> Rows:
    """Texts close to their images, the first `wrong` of them shifted by one row."""
    rng = np.random.default_rng(seed)
    texts = images + spread * rng.standard_normal(images.shape)
    texts[:wrong] = np.roll(texts[:wrong], 1, axis=0)
    return texts.astype(np.float32)


def saved(folder: Path, **arrays: NDArray[Any]) -> dict[str, Path]:
    """Each array as an `.npy` file of its name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return {name: folder / f"{name}.npy" for name in arrays}


def scored(folder: Path, images: Rows, texts: Rows | None = None, **settings: Any) -> Summary:
    """A run below `folder/out` from arrays in memory; settings are those of `score_embeddings`."""
    files = saved(folder / "arrays", images=images) | ({} if texts is None else saved(folder / "arrays", texts=texts))
    return score_embeddings(folder / "out", **files, **settings)


def tables_of(folder: Path) -> dict[str, bytes]:
    """Every file below a run's folder but the neighbour graph, whose header comes in any order."""
    return {name: data for name, data in files_of(folder).items() if name != "neighbours.safetensors"}


def split(folder: Path, name: str, array: NDArray[Any], parts: int, number: str = "{}") -> Path:
    """An array as the files of a folder, `name_0.npy` and so on, as clip-retrieval writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, rows in enumerate(np.array_split(array, parts)):
        np.save(folder / f"{name}_{number.format(i)}.npy", rows)
    return folder
