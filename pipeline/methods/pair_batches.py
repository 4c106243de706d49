"""Seeded batches of image-text pairs with their cosines, for values that depend on which pairs share a batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.runs.rows import Embeddings, Rows, as_rows, gather, identical_rows, unit_rows
from noisegate.pipeline.system.array_types import Float32, Float64, Floats, Index, Mask

READ_ROWS = 16_384
"""rows per read to find identical rows: 32 MB at width 512"""


@dataclass(frozen=True)
class PairBatch:
    """rows: (B,) numbers into `EmbeddedPairs.valid`; images, texts: (B, d) unit rows; similarity: (B, B) their cosines."""

    rows: Index
    images: Float32
    texts: Float32
    similarity: Float64
    same: Mask
    """(B, B): pairs with an identical image or text, which are no negatives of each other; True on the diagonal"""


class EmbeddedPairs:
    """Embedded images and texts (N, d), pair by pair, read one batch at a time.

    valid: numbers of the pairs whose two rows have a direction; other pairs are in no batch.
    """

    def __init__(self, images: Embeddings, texts: Embeddings) -> None:
        self._sides = as_rows(images, "images"), as_rows(texts, "texts")
        shapes = [(len(side), side.width) for side in self._sides]
        if shapes[0] != shapes[1]:
            raise ConfigError.of("texts", shapes[1], f"do not fit images {shapes[0]}; give (N, d) for both")
        self.count = shapes[0][0]
        (left, left_valid), (right, right_valid) = (_number_directions(side) for side in self._sides)
        self.valid = np.flatnonzero(left_valid & right_valid)
        self._ids = left[self.valid], right[self.valid]

    def batches(self, batch: int, permutations: int, seed: int) -> Iterator[tuple[int, PairBatch]]:
        """Yield (number of the permutation, batch), every valid pair once per permutation; nothing for fewer than two pairs."""
        if len(self.valid) < 2:
            return
        for number, rows in permuted_batches(len(self.valid), batch, permutations, seed):
            read = (gather(side, self.valid[rows]) for side in self._sides)
            images, texts = (unit_rows(distinct)[0][place] for distinct, place in read)
            cosines = np.clip(images @ texts.T, -1, 1).astype(np.float64)
            yield number, PairBatch(rows, images, texts, cosines, same_pairs(rows, *self._ids))

    def scatter(self, values: Floats) -> Float32:
        """Expand one value per valid pair to (N,), NaN for the other pairs."""
        result = np.full(self.count, np.nan, np.float32)
        result[self.valid] = values
        return result


def mean_and_spread(name: str, values: Floats, pairs: EmbeddedPairs) -> dict[str, Float32]:
    """Make columns `name` and `name_sd` from (permutations, valid pairs): mean and deviation of the values that are not NaN."""
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    with np.errstate(invalid="ignore"):
        mean = np.where(known, values, 0).sum(axis=0) / np.where(count, count, np.nan)
        spread = np.sqrt(np.where(known, (values - mean) ** 2, 0).sum(axis=0) / np.where(count, count, np.nan))
    return {name: pairs.scatter(mean), f"{name}_sd": pairs.scatter(spread)}


def permuted_batches(
    rows: int, batch: int, permutations: int, seed: int | Sequence[int]
) -> Iterator[tuple[int, Index]]:
    """Yield (number of the permutation, row numbers), every row once per permutation; a short last batch joins the one before.

    >>> [(number, len(batch)) for number, batch in permuted_batches(7, 3, permutations=2, seed=0)]
    [(0, 3), (0, 4), (1, 3), (1, 4)]
    """
    check_batches(batch, permutations)
    rng = np.random.default_rng(seed)
    for number in range(permutations):
        order = rng.permutation(rows)
        last = max(1, rows // batch) - 1
        for i in range(last + 1):
            yield number, order[i * batch : (i + 1) * batch if i < last else rows]


def check_batches(batch: int, permutations: int) -> None:
    """Raise ConfigError if batches are so small that a pair has nothing to be compared with."""
    if batch < 2:
        raise ConfigError.of("batch", batch, "leaves a pair without negatives; use 2 or more, such as 128")
    if permutations < 1:
        raise ConfigError.of("permutations", permutations, "fills no batch; use 1 or more, such as 5")


def same_pairs(rows: Index, *ids: Index) -> Mask:
    """Return (B, B) whether two of the rows agree in one of the ids (N,).

    >>> same_pairs(np.array([0, 2]), np.array([5, 6, 5])).tolist()
    [[True, True], [True, True]]
    """
    result: Mask = np.logical_or.reduce([known[rows][:, None] == known[rows] for known in ids])
    return result


def _number_directions(rows: Rows) -> tuple[Index, Mask]:
    """Return (N,) ids, equal for rows of the same direction, and whether a row has a direction."""
    digests, valid = np.empty((len(rows), 2), np.uint64), np.empty(len(rows), np.bool_)
    for start, block in rows.chunks(READ_ROWS):
        unit, valid[start : start + len(block)] = unit_rows(block)
        digests[start : start + len(block)] = np.frombuffer(b"".join(identical_rows(unit)), np.uint64).reshape(-1, 2)
    order = np.lexsort((digests[:, 1], digests[:, 0]))
    digests = digests[order]
    ids = np.empty(len(rows), np.int64)
    ids[order] = np.cumsum(np.concatenate([[False], (digests[1:] != digests[:-1]).any(axis=1)])[: len(rows)])
    return ids, valid
