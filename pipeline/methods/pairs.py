"""Batches of pairs with their similarities, for columns that depend on who shares a batch."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.runs.rows import Embeddings, Rows, as_rows, gather, identical_rows, unit_rows
from noisegate.pipeline.system.array_types import Float32, Float64, Floats, Index, Mask

from .batches import permuted_batches

__all__ = ["PairBatch", "Pairs", "hinge_means", "hinge_peaks", "mean_and_spread"]

READ = 16_384  # rows looked at in one go


@dataclass(frozen=True)
class PairBatch:
    """rows: (B,) of the valid pairs, see `Pairs.valid`. similarity, same: (B, B); images, texts: (B, d) unit rows."""

    rows: Index
    images: Float32
    texts: Float32
    similarity: Float64
    same: Mask
    """pairs beside the diagonal with an identical image or text, which are no negatives for one another"""


class Pairs:
    """(N, d) images and texts, pair by pair; those where either has no direction are left out of everything.

    Rows are read for one batch at a time.
    """

    def __init__(self, images: Embeddings, texts: Embeddings) -> None:
        self._sides = as_rows(images, "images"), as_rows(texts, "texts")
        shapes = [(len(side), side.width) for side in self._sides]
        if shapes[0] != shapes[1]:
            raise ConfigError(f"images {shapes[0]} and texts {shapes[1]} do not fit; give (N, d) for both")
        self.count = shapes[0][0]
        (left, left_valid), (right, right_valid) = (_kinds(side) for side in self._sides)
        self.valid = np.flatnonzero(left_valid & right_valid)
        self._kinds = left[self.valid], right[self.valid]

    def batches(self, batch: int, permutations: int, seed: int) -> Iterator[tuple[int, PairBatch]]:
        """(number of the permutation, batch), every valid pair once in each; nothing where there are fewer than two."""
        if len(self.valid) < 2:
            return
        for number, rows in permuted_batches(len(self.valid), batch, permutations, seed):
            same = ~np.eye(len(rows), dtype=bool)
            same &= np.logical_or(*(kinds[rows, None] == kinds[rows] for kinds in self._kinds))
            read = (gather(side, self.valid[rows]) for side in self._sides)
            images, texts = (unit_rows(found)[0][place] for found, place in read)
            cosines = np.clip(images @ texts.T, -1, 1).astype(np.float64)
            yield number, PairBatch(rows, images, texts, cosines, same)

    def spread(self, values: Floats) -> Float32:
        """(N,) from one value for each valid pair, NaN for the others."""
        found = np.full(self.count, np.nan, np.float32)
        found[self.valid] = values
        return found


def mean_and_spread(name: str, values: Floats, pairs: Pairs) -> dict[str, Float32]:
    """Columns `name` and `name_sd` of (permutations, valid pairs): NaN where a permutation had none is left out."""
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    with np.errstate(invalid="ignore"):
        mean = np.where(known, values, 0).sum(axis=0) / np.where(count, count, np.nan)
        spread = np.sqrt(np.where(known, (values - mean) ** 2, 0).sum(axis=0) / np.where(count, count, np.nan))
    return {name: pairs.spread(mean), f"{name}_sd": pairs.spread(spread)}


def hinge_means(batch: PairBatch, margin: float) -> Float64:
    """(B,) triplet loss of METHODS 1.7: mean hinges of the row and of the column, divided by B."""
    rows, columns = _hinges(batch, margin)
    result: Float64 = rows.mean(axis=1) + columns.mean(axis=0)
    return result


def hinge_peaks(batch: PairBatch, margin: float) -> Float64:
    """(B,) the same with the hardest negative of each direction."""
    rows, columns = _hinges(batch, margin)
    result: Float64 = rows.max(axis=1) + columns.max(axis=0)
    return result


def _hinges(batch: PairBatch, margin: float) -> tuple[Float64, Float64]:
    own = batch.similarity.diagonal()
    none = batch.same | np.eye(len(own), dtype=bool)
    rows = np.where(none, 0.0, np.maximum(0.0, margin + batch.similarity - own[:, None]))
    columns = np.where(none, 0.0, np.maximum(0.0, margin + batch.similarity - own[None, :]))
    return rows, columns


def _kinds(rows: Rows) -> tuple[Index, Mask]:
    """(N,) numbers, equal for rows of one direction, and whether a row has one."""
    digests, valid = np.empty((len(rows), 2), np.uint64), np.empty(len(rows), np.bool_)
    for start, block in rows.chunks(READ):
        unit, valid[start : start + len(block)] = unit_rows(block)
        digests[start : start + len(block)] = np.frombuffer(b"".join(identical_rows(unit)), np.uint64).reshape(-1, 2)
    order = np.lexsort((digests[:, 1], digests[:, 0]))
    digests = digests[order]
    kinds = np.empty(len(rows), np.int64)
    kinds[order] = np.cumsum(np.concatenate([[False], (digests[1:] != digests[:-1]).any(axis=1)])[: len(rows)])
    return kinds, valid
