"""Agreement of new pairs with their neighbours' partners in a finished run: the table's `neighbourhood`."""

from dataclasses import dataclass

import numpy as np

from noisegate.pipeline.runs.rows import unit_rows
from noisegate.pipeline.system.array_types import Float32, Float64, Index, Mask

from .search import RunSearch

__all__ = ["Side", "pair_agreement"]


@dataclass(frozen=True)
class Side:
    """Images or texts of a run: their centre (d,), and mean (d,) and covariance (d, d) of the rows around it."""

    search: RunSearch
    centre: Float64
    mean: Float64
    spread: Float64

    @classmethod
    def of(cls, search: RunSearch) -> "Side":
        """Two passes over the rows, a chunk at a time."""
        width = search.width
        count, total = 0, np.zeros(width)
        for _, rows in search.chunks():
            count, total = count + len(rows), total + rows.sum(axis=0, dtype=np.float64)
        centre = total / max(count, 1)
        count, total, squares = 0, np.zeros(width), np.zeros((width, width))
        for _, rows in search.chunks():
            unit, valid = unit_rows(rows - centre.astype(np.float32))
            count, total = count + int(valid.sum()), total + unit.sum(axis=0, dtype=np.float64)
            squares += unit.T @ unit
        mean = total / max(count, 1)
        return cls(search, centre, mean, squares / max(count, 1) - np.outer(mean, mean))

    def agreement(self, rows: Float32, lists: Index) -> Float64:
        """(N,) z of `pairs.neighbourhood`: mean cosine with the listed rows (N, k), in deviations of a random one's.

        NaN for rows without a direction, and where no listed row has one on this side.
        """
        mine, usable = self._around(rows)
        near, known = self._around(self.search.take(np.maximum(lists, 0).ravel()))
        near, known = near.reshape(*lists.shape, -1), known.reshape(lists.shape) & (lists >= 0)
        cosine = np.einsum("nkd,nd->nk", near, mine, dtype=np.float64)
        average = np.sum(cosine * known, axis=1) / np.maximum(known.sum(axis=1), 1)
        deviation = np.sqrt(np.maximum(np.sum((mine @ self.spread) * mine, axis=1), 1e-12))
        return np.where(usable & known.any(axis=1), (average - mine @ self.mean) / deviation, np.nan)

    def _around(self, rows: Float32) -> tuple[Float32, Mask]:
        unit, valid = unit_rows(rows)
        centred, apart = unit_rows(unit - self.centre.astype(np.float32))
        centred[~valid] = 0
        return centred, valid & apart


def pair_agreement(
    images: Side, texts: Side, image_rows: Float32, text_rows: Float32, near_images: Index, near_texts: Index
) -> Float64:
    """(N,) how far new pairs agree with the partners of their neighbours (N, k) on either side; NaN without both parts.

    a = ½ [ z_text(N_image) + z_image(N_text) ], one side alone where the other has no neighbour. A table counts the
    pairs that it mismatched to learn from among "all rows": its values differ a little where the run has many copies.
    """
    of_text, of_image = texts.agreement(text_rows, near_images), images.agreement(image_rows, near_texts)
    both = (of_text + of_image) / 2
    found: Float64 = np.where(np.isnan(of_text), of_image, np.where(np.isnan(of_image), of_text, both))
    found[~(image_rows.any(axis=1) & text_rows.any(axis=1))] = np.nan
    return found
