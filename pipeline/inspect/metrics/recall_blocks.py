"""R@K over similarities that come in blocks of images, so that 5,000 x 25,000 of them are never held at once.

The rank is that of `recall_at_k`: 1 + #(wrong answers that score at least as much as the best right one).  A caption's
right image may come in a later block than a wrong one, so the K highest wrong scores of each caption are kept: enough to
say whether its rank is within K.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system.array_types import Float32, Index

from .ranking import RecallAtK, percent_within

__all__ = ["BlockRecall"]


class BlockRecall:
    """Collects blocks of rows of the (I, T) similarity matrix, in any order, each row once.

    image_of_caption: (T,) row of each caption's image.  folds: images and their captions are cut into so many equal,
    consecutive parts that are ranked apart and averaged (MS-COCO 1K: 5); 1 ranks all together.

    >>> recall = BlockRecall(2, [0, 1], ks=(1,))
    >>> recall.add(0, np.array([[.9, .1]]))
    >>> recall.add(1, np.array([[.8, .7]]))
    >>> recall.result()
    RecallAtK(i2t={1: 50.0}, t2i={1: 100.0})
    """

    def __init__(
        self, images: int, image_of_caption: ArrayLike, ks: Sequence[int] = (1, 5, 10), folds: int = 1
    ) -> None:
        self.owner = np.asarray(image_of_caption, dtype=np.int64)
        if self.owner.ndim != 1 or (len(self.owner) and not 0 <= self.owner.min() <= self.owner.max() < images):
            raise ConfigError(f"image_of_caption of shape {self.owner.shape}: give row numbers from 0 to {images - 1}")
        if folds < 1 or images % folds:
            raise ConfigError(
                f"folds={folds} does not divide {images} images; 5 divides the 5,000 of MS-COCO's test set"
            )
        self.images, self.ks, self.folds = images, tuple(ks), folds
        self.size = images // folds
        captions = len(self.owner)
        self._fold_of_caption = self.owner // max(1, self.size)
        self._right = np.full(captions, np.nan, np.float32)
        self._wrong = np.full((max(ks), captions), np.nan, np.float32)  # the highest; nan where there are fewer
        self._image_rank = np.zeros(images, np.int64)  # 0: not seen, or nothing to ask

    def add(self, start: int, block: ArrayLike) -> None:
        """Rows `start` to `start + b` of the matrix, (b, T); NaN counts against the model."""
        rows = np.asarray(block, dtype=np.float32)
        if rows.ndim != 2 or rows.shape[1] != len(self.owner) or not 0 <= start <= self.images - len(rows):
            raise ConfigError(f"a block {rows.shape} from row {start} does not fit ({self.images}, {len(self.owner)})")
        for fold in range(self.folds):
            low, high = max(start, fold * self.size), min(start + len(rows), (fold + 1) * self.size)
            if low < high:
                mine = np.flatnonzero(self._fold_of_caption == fold) if self.folds > 1 else np.arange(len(self.owner))
                part = rows[low - start : high - start]
                self._add(low, part[:, mine] if self.folds > 1 else part, mine)

    def _add(self, start: int, rows: Float32, captions: Index) -> None:
        inside = np.flatnonzero((self.owner[captions] >= start) & (self.owner[captions] < start + len(rows)))
        own = self.owner[captions[inside]] - start, inside  # where the right answers are
        right = np.nan_to_num(rows[own], nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        self._right[captions[inside]] = right
        best = np.full(len(rows), -np.inf, np.float32)
        np.maximum.at(best, own[0], right)
        wrong = -np.nan_to_num(rows, nan=np.inf, posinf=np.inf, neginf=-np.inf)
        wrong[own] = np.nan
        asked = np.bincount(own[0], minlength=len(rows)) > 0
        self._image_rank[start : start + len(rows)] = np.where(asked, 1 + (wrong <= -best[:, None]).sum(axis=1), 0)
        candidates = np.concatenate([-self._wrong[:, captions], wrong])
        keep = len(self._wrong)
        candidates.partition(keep - 1, axis=0)  # nan comes last
        self._wrong[:, captions] = -candidates[:keep]

    def result(self) -> RecallAtK:
        """Percent of queries answered within the first K; images without captions ask nothing."""
        if np.isnan(self._right).any():
            raise ConfigError(
                f"rows: {int(np.isnan(self._right).sum())} captions have not met their image; add all rows"
            )
        caption_rank = 1 + (self._wrong >= self._right).sum(axis=0)  # exact up to the largest K, more beyond it
        folds = range(self.folds)
        images = [self._image_rank[fold * self.size : (fold + 1) * self.size] for fold in folds]
        texts = [caption_rank[self._fold_of_caption == fold] for fold in folds]
        return RecallAtK(
            i2t=_mean_within([part[part > 0] for part in images], self.ks), t2i=_mean_within(texts, self.ks)
        )


def _mean_within(parts: Sequence[Index], ks: Sequence[int]) -> dict[int, float]:
    each = [percent_within(ranks, ks) for ranks in parts]
    return {k: float(np.mean([found[k] for found in each])) for k in ks}
