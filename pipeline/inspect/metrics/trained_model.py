"""Metrics of a trained model: R@K and rSum of image-text retrieval, P@1 and mAP@R of images, accuracy of a classifier.

Ties are always resolved against the model, so that a collapsed one, whose similarities are all equal, does not get 100.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system.array_types import Float32, Float64, Index, Mask

CHUNK = 16_000_000  # entries of one similarity block; 64 MB in float32
TIE = 1e-12  # float64 cosines closer than this are tied; the rounding of a sum of a few thousand products is smaller


@dataclass(frozen=True)
class RecallAtK:
    """Percent of queries answered within the first K, by K: images asking for texts (i2t), texts for images (t2i).

    i2t_median, t2i_median: the median rank (MedR) of the first right answer, counted from 1.
    """

    i2t: Mapping[int, float]
    t2i: Mapping[int, float]
    i2t_median: float = math.nan
    t2i_median: float = math.nan


class BlockRecall:
    """Compute R@K and median ranks of an (I, T) similarity matrix, image i against caption t, from blocks of rows in any order.

    rank = 1 + #(wrong answers that score at least as much as the best right one), NaN counting against the model.

    image_of_caption: (T,) row of each caption's image.  folds: number of equal, consecutive parts of the images, with their
    captions, that are ranked separately and averaged (MS-COCO 1K: 5); 1 ranks all together. Only the highest wrong answers of
    each caption are kept, so median ranks of captions beyond the largest K need a second pass (`count`).

    >>> recall = BlockRecall(2, [0, 1], ks=(1,))
    >>> recall.add(0, np.array([[.9, .1]]))
    >>> recall.add(1, np.array([[.8, .7]]))
    >>> recall.result()
    RecallAtK(i2t={1: 50.0}, t2i={1: 100.0}, i2t_median=1.5, t2i_median=1.0)
    """

    def __init__(
        self, images: int, image_of_caption: ArrayLike, ks: Sequence[int] = (1, 5, 10), folds: int = 1
    ) -> None:
        owner = np.asarray(image_of_caption)
        whole = owner.dtype.kind in "iu" or not owner.size
        if owner.ndim != 1 or not whole or (owner.size and not 0 <= owner.min() <= owner.max() < images):
            given = (str(owner.dtype), owner.shape)
            raise ConfigError.of("image_of_caption", given, f"is wrong; give (T,) row numbers from 0 to {images - 1}")
        if folds < 1 or images % folds:
            raise ConfigError.of("folds", folds, f"does not divide {images} images; use 1")
        self.owner = owner.astype(np.int64)
        self.images, self.ks, self.folds = images, tuple(ks), folds
        self.size = images // folds
        captions = len(self.owner)
        self._fold_of_caption = self.owner // max(1, self.size)
        self._right = np.full(captions, np.nan, np.float32)
        self._wrong = np.full((max(ks), captions), np.nan, np.float32)  # the highest wrong answers; nan if fewer
        self._above: Index | None = None  # by `count`: wrong images that score at least as much as a caption's own
        self._image_rank = np.zeros(images, np.int64)  # 0: not added yet, or an image without captions

    def add(self, start: int, block: ArrayLike) -> None:
        """Add rows `start` to `start + b` of the matrix, (b, T); NaN counts against the model."""
        for low, part, mine in self._parts(start, block):
            self._add(low, part, mine)

    def count(self, start: int, block: ArrayLike) -> None:
        """Pass the same rows once more, after all were given to `add`: this makes every rank exact."""
        if self._above is None:
            self._above = np.zeros(len(self.owner), np.int64)
        for low, part, mine in self._parts(start, block):
            at_least = ~(part < self._right[mine])
            at_least &= self.owner[mine] != np.arange(low, low + len(part))[:, None]
            self._above[mine] += at_least.sum(axis=0)

    def is_exact(self) -> bool:
        """Whether `result` has the median ranks; if not, `count` all rows first."""
        middles = [np.sort(ranks)[len(ranks) // 2] for ranks in self._caption_ranks() if len(ranks)]
        return self._above is not None or max(middles, default=0) <= max(self.ks)

    def _parts(self, start: int, block: ArrayLike) -> Iterator[tuple[int, Float32, Index]]:
        """Split a block by fold: first row, similarities with the fold's captions, and the numbers of these captions."""
        rows = np.asarray(block, dtype=np.float32)
        if rows.ndim != 2 or rows.shape[1] != len(self.owner) or not 0 <= start <= self.images - len(rows):
            problem = f"(first row, shape) does not fit into ({self.images}, {len(self.owner)})"
            raise ConfigError.of("block", (start, rows.shape), problem)
        for fold in range(self.folds):
            low, high = max(start, fold * self.size), min(start + len(rows), (fold + 1) * self.size)
            if low < high:
                mine = np.flatnonzero(self._fold_of_caption == fold) if self.folds > 1 else np.arange(len(self.owner))
                part = rows[low - start : high - start]
                yield low, part[:, mine] if self.folds > 1 else part, mine

    def _add(self, start: int, rows: Float32, captions: Index) -> None:
        inside = np.flatnonzero((self.owner[captions] >= start) & (self.owner[captions] < start + len(rows)))
        own = self.owner[captions[inside]] - start, inside  # positions of the right answers
        right = np.nan_to_num(rows[own], nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        self._right[captions[inside]] = right
        best = np.full(len(rows), -np.inf, np.float32)
        np.maximum.at(best, own[0], right)
        wrong = -np.nan_to_num(rows, nan=np.inf, posinf=np.inf, neginf=-np.inf)
        wrong[own] = np.nan
        has_caption = np.bincount(own[0], minlength=len(rows)) > 0
        self._image_rank[start : start + len(rows)] = np.where(
            has_caption, 1 + (wrong <= -best[:, None]).sum(axis=1), 0
        )
        candidates = np.concatenate([-self._wrong[:, captions], wrong])
        keep = len(self._wrong)
        candidates.partition(keep - 1, axis=0)  # nan comes last
        self._wrong[:, captions] = -candidates[:keep]

    def result(self) -> RecallAtK:
        """Return the percent of queries answered within the first K, and median ranks, NaN if these are not known (`is_exact`).

        Images without captions are no queries.
        """
        images = [self._image_rank[fold * self.size : (fold + 1) * self.size] for fold in range(self.folds)]
        images, texts = [part[part > 0] for part in images], self._caption_ranks()
        return RecallAtK(
            _mean_within(images, self.ks),
            _mean_within(texts, self.ks),
            _mean_median(images),
            _mean_median(texts) if self.is_exact() else math.nan,
        )

    def _caption_ranks(self) -> list[Index]:
        """Return the ranks of each fold's captions; before `count`, ranks beyond the largest K are only known to be beyond."""
        if np.isnan(self._right).any():
            missing = int(np.isnan(self._right).sum())
            raise ConfigError.of("rows", missing, "captions have not met their image; add all rows")
        above = (self._wrong >= self._right).sum(axis=0) if self._above is None else self._above
        return [1 + above[self._fold_of_caption == fold] for fold in range(self.folds)]


def _mean_within(parts: Sequence[Index], ks: Sequence[int]) -> dict[int, float]:
    """Return, by K, the percent of ranks (from 1) that are at most K, averaged over parts; NaN if a part is empty."""
    shares = {k: [float((ranks <= k).mean()) if len(ranks) else math.nan for ranks in parts] for k in ks}
    return {k: float(np.mean([100.0 * share for share in shares[k]])) for k in ks}


def _mean_median(parts: Sequence[Index]) -> float:
    """Return the median rank of each part, averaged over parts; NaN if a part is empty."""
    return float(np.mean([np.median(ranks) if len(ranks) else math.nan for ranks in parts]))


def rsum(recall: RecallAtK) -> float:
    """Add all recalls of both directions: at most 600 for K = 1, 5, 10.

    >>> rsum(RecallAtK({1: 70.0, 5: 90.0, 10: 95.0}, {1: 50.0, 5: 80.0, 10: 88.0}))
    473.0
    """
    return sum(recall.i2t.values()) + sum(recall.t2i.values())


def precision_at_1(embeddings: ArrayLike, labels: ArrayLike) -> float:
    """Compute the percent of items whose nearest other item (cosine) has the same class.

    embeddings: (N, d), a row with NaN or of length 0 is a miss and is never found; labels: (N,), rows with -1 take no part. The
    item itself is left out by its index; the only item of a class is no query but can be found.

    >>> precision_at_1([[1, 0], [1, .1], [0, 1], [.1, 1]], [0, 0, 1, 1])
    100.0
    """
    hits = [(right[:, 0] > wrong[:, -1]) for right, wrong in _class_blocks(embeddings, labels)]
    return 100.0 * float(np.concatenate(hits).mean()) if hits else math.nan


def map_at_r(embeddings: ArrayLike, labels: ArrayLike) -> float:
    """mAP@R in percent: (1/R) sum_{k<=R} Prec(k) rel(k), R = number of other items of the class, mean over items.

    Arguments and edges as in `precision_at_1`.

    >>> map_at_r([[1, 0], [1, .1], [0, 1], [.1, 1]], [0, 0, 1, 1])
    100.0
    """
    scores = []
    for right, wrong in _class_blocks(embeddings, labels):
        relevant = right.shape[1]  # R
        order = np.arange(1, relevant + 1)
        for hits, misses in zip(right, wrong, strict=True):
            rank = order + (len(misses) - np.searchsorted(misses, hits, side="left"))
            scores.append(float(((order / rank) * ((rank <= relevant) & (hits > -np.inf))).sum() / relevant))
    return 100.0 * float(np.mean(scores)) if scores else math.nan


def _class_blocks(embeddings: ArrayLike, labels: ArrayLike) -> Iterator[tuple[Float64, Float64]]:
    """Yield for blocks of queries of one class: (q, R) similarities to the others of the class, descending, and (q, W + 1) to
    all other classes, ascending, after a -inf so that the row is not empty.

    `TIE` is subtracted from the former: equal cosines must tie even if blocks of other sizes sum them differently.
    """
    rows, label = np.asarray(embeddings, dtype=np.float64), np.asarray(labels)
    if rows.ndim != 2 or label.shape != rows.shape[:1]:
        raise ConfigError.of("labels", label.shape, f"and embeddings {rows.shape} must have shapes (N,) and (N, d)")
    rows, label = rows[label >= 0], label[label >= 0]
    unit, valid = _unit(rows)
    for members in (np.flatnonzero(label == c) for c in np.unique(label)):
        if len(members) < 2:
            continue
        others = np.flatnonzero(label != label[members[0]])
        step = max(1, CHUNK // (2 * len(label)))
        for start in range(0, len(members), step):
            queries = members[start : start + step]
            product = unit[queries] @ unit.T
            product[~valid[queries]] = -np.inf
            product[:, ~valid] = -np.inf
            right = product[:, members] - TIE
            right[np.arange(len(queries)), start + np.arange(len(queries))] = np.inf
            right = -np.sort(-right, axis=1)[:, 1:]  # drop the item itself, whose +inf comes first
            wrong = np.full((len(queries), len(others) + 1), -np.inf)
            wrong[:, 1:] = np.sort(product[:, others], axis=1)
            yield right, wrong


def _unit(rows: Float64) -> tuple[Float64, Mask]:
    """Like `unit_rows`, but in float64, and without overflow for very large numbers."""
    largest = np.abs(rows).max(axis=1, initial=0)
    scaled = rows / np.where(np.isfinite(largest) & (largest > 0), largest, 1)[:, None]
    length = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))
    with np.errstate(invalid="ignore", over="ignore"):
        valid = np.isfinite(length) & (largest * length >= 1e-12)
    return np.where(valid[:, None], scaled, 0.0) / np.where(valid, length, 1)[:, None], valid


def top_k_accuracy(scores: ArrayLike, labels: ArrayLike, k: int = 1) -> float:
    """Compute the percent of samples whose class ranks within K; rank = 1 + #(other classes with at least its score).

    scores: (N, C), NaN counts against the model; labels: (N,), -1 takes no part.

    >>> top_k_accuracy([[.1, .9], [.5, .5]], [1, 0])  # a tie is not an answer
    50.0
    """
    ranks = _ranks(scores, labels)[0]
    return 100.0 * float((ranks <= k).mean()) if len(ranks) else math.nan


def mean_class_accuracy(scores: ArrayLike, labels: ArrayLike) -> float:
    """Compute the percent right in each class, averaged over the classes that occur; arguments as in `top_k_accuracy`.

    >>> mean_class_accuracy([[1, 0], [1, 0], [1, 0], [0, 1]], [0, 0, 0, 1])
    100.0
    """
    ranks, label = _ranks(scores, labels)
    shares = [float((ranks[label == c] <= 1).mean()) for c in np.unique(label)]
    return 100.0 * float(np.mean(shares)) if shares else math.nan


def _ranks(scores: ArrayLike, labels: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    rows, label = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=np.int64)
    if rows.ndim != 2 or label.shape != rows.shape[:1] or (label >= rows.shape[1]).any():
        raise ConfigError.of("labels", label.shape, f"and scores {rows.shape} must be (N,), below C, and (N, C)")
    rows, label = rows[label >= 0], label[label >= 0]
    own = rows[np.arange(len(rows)), label][:, None]
    beaten: NDArray[np.int64] = (rows < own).sum(axis=1)  # false for NaN on either side
    return rows.shape[1] - beaten, label
