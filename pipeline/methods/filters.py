"""Published scores to filter image-text data, as columns from kept embeddings: `rescore --with negcliploss,csls,…`.

negCLIPLoss and NormSim: Wang et al. 2024 (arXiv 2405.19547). CSLS: Conneau et al. 2018 (arXiv 1710.04087). SemDeDup: Abbas
et al. 2023 (arXiv 2303.09540).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.neighbours import Neighbours
from noisegate.pipeline.pairs.scorer import encode_pairs, model_of_run
from noisegate.pipeline.runs.arrays import MODEL as ARRAYS
from noisegate.pipeline.runs.arrays import open_array
from noisegate.pipeline.runs.rows import MappedRows, Rows, unit_rows
from noisegate.pipeline.runs.table import RunFolder
from noisegate.pipeline.system.array_types import Float32, Floats, Index
from noisegate.pipeline.system.progress import counted

CSLS_NEIGHBOURS = 10
DEDUP_NEIGHBOURS = 20
BLOCK = 1 << 23  # cosines held at a time
PICTURES = (".jpg", ".jpeg", ".png", ".webp")


def negcliploss_columns(images: Rows, texts: Rows, pool: Index, temperature: float) -> dict[str, Float32]:
    """`negcliploss` (N,): s_ii - τ/2 [log Σ_j exp(s_ij / τ) + log Σ_j exp(s_ji / τ)] over pair i and a pool of rows.

    The paper averages it over random batches; one fixed pool has the same expectation and no spread. `pair_quality` is the
    same, but its sums leave out the pair itself and other pairs with its picture or caption.
    """

    def score(own: Float32, others: tuple[Float32, Float32]) -> Float32:
        sums = [np.logaddexp(own / temperature, _log_sum(side / temperature)) for side in others]
        value: Float32 = own - temperature / 2 * (sums[0] + sums[1])
        return value

    return {"negcliploss": _against_pool(images, texts, pool, score)}


def csls_columns(images: Rows, texts: Rows, pool: Index, k: int = CSLS_NEIGHBOURS) -> dict[str, Float32]:
    """`csls` (N,): twice the cosine minus the mean cosines of picture and caption with the k nearest others of a pool."""

    def score(own: Float32, others: tuple[Float32, Float32]) -> Float32:
        nearest = [np.partition(side, -min(k, side.shape[1]), axis=1)[:, -k:] for side in others]
        means = [np.where(np.isfinite(some), some, np.nan) for some in nearest]
        value: Float32 = 2 * own - np.nanmean(means[0], axis=1) - np.nanmean(means[1], axis=1)
        return value

    return {"csls": _against_pool(images, texts, pool, score)}


def normsim_columns(images: Rows, targets: Floats, norm: float) -> dict[str, Float32]:
    """`normsim` (N,): the p-norm of a picture's cosines with the target pictures (M, d); p is 2, or inf for the nearest one.

    >>> from noisegate.pipeline.runs.rows import RowBlocks
    >>> rows, targets = RowBlocks(np.eye(2)), np.array([[0.6, 0.8]])
    >>> normsim_columns(rows, targets, 2)["normsim"].tolist() == np.float32([0.6, 0.8]).tolist()
    True
    """
    if norm not in (2, np.inf):
        raise ConfigError.of("norm", norm, "is none of NormSim's; use 2 or inf")
    if targets.ndim != 2 or not len(targets) or targets.shape[1] != images.width:
        problem = f"is the shape of the targets, and the run's pictures are {images.width} wide; use one model for both"
        raise ConfigError.of("target", targets.shape, problem)
    unit = _unit(np.asarray(targets, np.float32))
    out = np.full(len(images), np.nan, np.float32)
    for start, block in _blocks(images, len(unit)):
        left = _unit(block)
        values = np.linalg.norm(left @ unit.T, ord=norm, axis=1) if norm == 2 else (left @ unit.T).max(axis=1)
        out[start : start + len(block)] = np.where(left.any(axis=1), values, np.nan)
    return {"normsim": out}


def semdedup_columns(neighbours: Neighbours, order: Floats) -> dict[str, Float32]:
    """Compute `semdedup` (N,) and `semdedup_density` (N,).

    `semdedup` is the largest cosine with a neighbour that comes earlier in the order, 0 if none does; `semdedup_density` is the
    mean cosine with all neighbours.

    Pictures are ordered by `order` (N,), the larger first, then by row: "semdedup < 0.95" keeps the best of every group of near
    duplicates, while SemDeDup keeps the one farthest from its cluster's centre.
    """
    found, cosines = neighbours.indices, neighbours.similarities
    value = np.nan_to_num(order, nan=-np.inf)
    rows = np.arange(len(found))[:, None]
    there = found >= 0
    before = there & ((value[found] > value[:, None]) | ((value[found] == value[:, None]) & (found < rows)))
    largest = np.max(np.where(before, cosines, 0), axis=1, initial=0)
    total = np.maximum(there.sum(axis=1), 1)
    density = np.where(there, cosines, 0).sum(axis=1) / total
    alone = ~there.any(axis=1)
    columns = {"semdedup": largest, "semdedup_density": density}
    return {name: np.where(alone, np.nan, values).astype(np.float32) for name, values in columns.items()}


def read_targets(
    path: Path, run: Mapping[str, Any], trust: bool = False, note: Callable[[str], None] = lambda text: None
) -> Float32:
    """Read embeddings (M, d) of the target pictures: a .npy, the pictures of another run, or a folder of pictures.

    A folder of pictures is encoded by the model that the run records, which needs `trust` if it is not open_clip's own.
    Pictures that cannot be read are left out, with a note. Raises ConfigError if no picture is left.
    """
    if not path.exists():
        raise ConfigError.of("target", str(path), "is not there; give a folder of pictures, a run, or a .npy (M, d)")
    if path.suffix == ".npy" and path.is_file():
        return np.asarray(open_array(path, "target", 2), np.float32)
    other = RunFolder(path)
    if other.run_file.exists():
        return _read_run_pictures(other, run)
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in PICTURES) if path.is_dir() else []
    if not files:
        raise ConfigError.of("target", str(path), "holds no pictures; give a folder of some, a run, or a .npy (M, d)")
    note(f"normsim: encoding {counted(len(files), 'target picture')}")
    estimator = model_of_run(run, trust=trust)()
    rows: list[Float32] = []
    errors: list[str | None] = []
    for samples, encoded in encode_pairs(estimator, ((file, "a picture") for file in files)):
        rows.append(encoded.images[encoded.images.any(axis=1)])
        errors += [sample.error for sample in samples if sample.status != "ok"]
    if errors:
        note(f"normsim: {counted(len(errors), 'target picture')} left out, such as: {errors[0]}")
    targets = np.concatenate([some for some in rows if len(some)] or [np.zeros((0, 0), np.float32)])
    if not len(targets):
        raise ConfigError.of("target", str(path), f"has no picture that can be read: {errors[0]}")
    return targets


def _read_run_pictures(other: RunFolder, run: Mapping[str, Any]) -> Float32:
    """Read kept embeddings (M, d) of another run's pictures; raise ConfigError if they are gone, or of another model."""
    stems = sorted(other.stems())
    if not all(other.embeddings(stem).exists() for stem in stems):
        raise ConfigError.of("target", str(other.name), "is a run that dropped its embeddings; give the pictures")
    mine, its = run.get("scorer") or {}, other.recorded()["scorer"]
    if ARRAYS not in (mine.get("model"), its["model"]) and any(mine.get(n) != its[n] for n in ("model", "weights")):
        problem = f"was scored by {its['model']}, and this run by {mine.get('model')}; use runs of one model"
        raise ConfigError.of("target", str(other.name), problem)
    rows = MappedRows.of_run(other, stems, "image")
    pictures = rows.take(np.arange(len(rows)))
    return pictures[pictures.any(axis=1)]


def _against_pool(images: Rows, texts: Rows, pool: Index, score: Any) -> Float32:
    """Compute `score(own, others)` of every pair, (N,): its own cosine, and the cosines of picture and caption with the pool.

    `pool` has row numbers in order; a pair is not compared with itself. NaN where a row has no direction.
    """
    pool_images, pool_texts = _unit(images.take(pool)), _unit(texts.take(pool))
    valid = pool_images.any(axis=1) & pool_texts.any(axis=1)
    pool, pool_images, pool_texts = pool[valid], pool_images[valid], pool_texts[valid]
    out = np.full(len(images), np.nan, np.float32)
    if len(pool) < 2:
        return out
    for start, block in _blocks(images, len(pool)):
        numbers = np.arange(start, start + len(block))
        left, right = _unit(block), _unit(texts.take(numbers))
        own = np.einsum("nd,nd->n", left, right)
        others = left @ pool_texts.T, right @ pool_images.T
        place = np.minimum(np.searchsorted(pool, numbers), len(pool) - 1)
        same = np.flatnonzero(pool[place] == numbers)
        for side in others:
            side[same, place[same]] = -np.inf
        known = left.any(axis=1) & right.any(axis=1)
        out[numbers] = np.where(known, score(own, others), np.nan)
    return out


def _unit(rows: Floats) -> Float32:
    return unit_rows(rows)[0]


def _log_sum(values: Float32) -> Float32:
    top = values.max(axis=1)
    total: Float32 = top + np.log(np.exp(values - top[:, None]).sum(axis=1))
    return total


def _blocks(rows: Rows, width: int) -> Any:
    return rows.chunks(max(1, BLOCK // max(1, width)))
