"""Agreement of a pair with its neighbours' partners: do similar pictures have captions like this one, and vice versa?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.runs.rows import Embeddings, Rows, as_rows, gather, unit_rows
from noisegate.pipeline.system.array_types import Float32, Float64, Floats, Index, Integers, Mask

GATHERED = 1 << 24  # floats of neighbours held at a time


def neighbourhood_agreement(
    image_neighbours: Integers,
    text_neighbours: Integers,
    image_embeddings: Embeddings,
    text_embeddings: Embeddings,
) -> Float32:
    """(N,) how far a pair agrees with its neighbours' partners, in standard deviations of a random pair (random: 0).

        a_i = ½ [ z_text(i, N_image(i)) + z_image(i, N_text(i)) ],
        z_s(i, J) = ( mean_{j in J} cos(e_i, e_j) - mean_j cos(e_i, e_j) ) / sd_j cos(e_i, e_j),

    with e the embeddings of side s, centred; mean and sd over all valid j. The two sides may come from unrelated
    models of different dimensions: cosines are only ever taken within one side. Neighbour lists (N, k), -1 for none;
    k of 10 to 30 is a good size. One side alone counts where the other has no neighbour; nan where neither has.

    >>> image = np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1], [1, 0.2]])  # two kinds of photos
    >>> text = np.array([[1, 0, 0], [1, 0, 0.1], [0, 1, 0], [0, 1, 0.1], [0, 1, 0.2]])  # the last caption is wrong
    >>> near_image, near_text = np.array([[1], [0], [3], [2], [1]]), np.array([[1], [0], [3], [2], [3]])
    >>> [round(float(agreement), 1) for agreement in neighbourhood_agreement(near_image, near_text, image, text)]
    [1.0, 1.0, 1.0, 1.0, -1.2]
    """
    images, texts = as_rows(image_embeddings), as_rows(text_embeddings)
    if len({len(image_neighbours), len(text_neighbours), len(images), len(texts)}) != 1:
        raise ConfigError(
            f"neighbourhood: {len(image_neighbours)} image and {len(text_neighbours)} text lists for "
            f"{len(images)} images and {len(texts)} texts; all four need one row per pair",
            "neighbourhood",
        )
    rows = np.arange(len(images))
    return either_side(
        Side.of(texts).agreement(rows, image_neighbours), Side.of(images).agreement(rows, text_neighbours)
    )


def agreement_of_new_pairs(
    images: Side,
    texts: Side,
    new_images: Float32,
    new_texts: Float32,
    image_neighbours: Integers,
    text_neighbours: Integers,
) -> Float64:
    """(N,) `neighbourhood_agreement` of pairs that are not in the data, with lists (N, k) of its rows; nan without both parts.

    A table's values differ a little where the data have many copies: they also count the pairs mismatched on purpose.
    """
    agreement = either_side(
        texts.agreement_of(new_texts, image_neighbours, np.float64),
        images.agreement_of(new_images, text_neighbours, np.float64),
    )
    agreement[~(new_images.any(axis=1) & new_texts.any(axis=1))] = np.nan
    return agreement


def either_side(by_text: NDArray[Any], by_image: NDArray[Any]) -> NDArray[Any]:
    """Return the mean of both, or the one that is not nan."""
    both = (by_text + by_image) / 2
    return np.where(np.isnan(by_text), by_image, np.where(np.isnan(by_image), by_text, both))


@dataclass(frozen=True)
class Side:
    """The embeddings e of one side (unit rows, centred, at unit length again), read a few at a time, and their moments."""

    rows: Rows
    centre: Float32  # (d,) mean of the unit rows
    mean: Float64  # (d,) of e
    spread: Float64  # (d, d) covariance of e

    @classmethod
    def of(cls, rows: Rows) -> Side:
        """Compute the moments, in two passes over all rows."""
        step, width = max(1, GATHERED // max(1, rows.width)), rows.width
        centre, count = np.zeros(width), 0
        for _, block in rows.chunks(step):
            unit, valid = unit_rows(block)
            centre, count = centre + unit.sum(axis=0, dtype=np.float64), count + int(valid.sum())
        nothing = np.zeros(width)
        side = cls(rows, (centre / max(1, count)).astype(np.float32), nothing, np.outer(nothing, nothing))
        total, squares, count = np.zeros(width), np.zeros((width, width)), 0
        for _, block in rows.chunks(step):
            unit, valid = side._directions(block)  # rows that are not valid are 0
            total, count = total + unit.sum(axis=0, dtype=np.float64), count + int(valid.sum())
            squares += unit.T @ unit
        mean = total / max(1, count)
        spread = squares / max(1, count) - np.outer(mean, mean)
        return replace(side, mean=mean, spread=spread)

    def agreement(self, own: Index, neighbours: Integers) -> Float32:
        """(R,) z_s of the rows `own` with their lists (R, k); nan for invalid rows and for lists without a valid row."""
        result = np.full(len(own), np.nan, dtype=np.float32)
        step = max(1, GATHERED // max(1, neighbours.shape[1] * self.rows.width))
        for start in range(0, len(own), step):
            some = slice(start, start + step)
            taken, place = gather(self.rows, own[some])
            result[some] = self.agreement_of(taken[place], np.asarray(neighbours[some]), np.float32)
        return result

    def agreement_of(self, embeddings: Float32, neighbours: Integers, dtype: type[np.floating[Any]]) -> NDArray[Any]:
        """As `agreement`, of embeddings (R, d) that need not be among the rows.

        dtype: float32 is fast, for whole tables; float64 is precise, for single answers.
        """
        result = np.full(len(neighbours), np.nan, dtype)
        unit, valid = self._directions(embeddings)
        asked = np.flatnonzero(valid)
        own, listed = unit[asked], neighbours[asked]
        taken, place = gather(self.rows, np.maximum(listed, 0))
        unit, valid = self._directions(taken)
        if dtype is np.float32:
            cosine = np.matmul(unit[place], own[:, :, None])[:, :, 0]
        else:
            cosine = np.einsum("nkd,nd->nk", unit[place], own, dtype=dtype)
        counts = (listed >= 0) & valid[place]
        near = np.sum(cosine * counts, axis=1) / np.maximum(counts.sum(axis=1), 1)
        # cos(e_i, e_j) over all j is a linear form of e_j, so its mean and variance need no pass over the pairs
        mean, spread = self.mean.astype(dtype), self.spread.astype(dtype)
        deviation = np.sqrt(np.maximum(np.sum((own @ spread) * own, axis=1), 1e-12))
        result[asked] = np.where(counts.any(axis=1), (near - own @ mean) / deviation, np.nan)
        return result

    def _directions(self, block: Floats) -> tuple[Float32, Mask]:
        """Return e of some rows, 0 for invalid ones, and which are valid: a row at the centre itself is not."""
        unit, valid = unit_rows(block)
        centred, apart = unit_rows(unit - self.centre)
        valid &= apart
        centred[~valid] = 0
        return centred, valid
