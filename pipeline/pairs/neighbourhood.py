"""Pairs without a joint model: do the neighbours of a photo have captions like mine, and the other way round?"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.runs.rows import Embeddings, Rows, as_rows, gather, unit_rows
from noisegate.pipeline.system.array_types import Float32, Floats, Index, Integers, Mask

__all__ = ["Side", "either_side", "neighbourhood_agreement"]

GATHERED = 1 << 24  # floats of neighbours held at a time


def neighbourhood_agreement(
    image_neighbours: Integers,
    text_neighbours: Integers,
    image_embeddings: Embeddings,
    text_embeddings: Embeddings,
) -> Float32:
    """How far a pair agrees with its neighbours' partners, (N,) float32 in deviations of a random pair (random: 0).

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
            f"{len(images)} images and {len(texts)} texts; all four need one row per pair"
        )
    rows = np.arange(len(images))
    return either_side(
        Side.of(texts).agreement(rows, image_neighbours), Side.of(images).agreement(rows, text_neighbours)
    )


def either_side(of_text: Float32, of_image: Float32) -> Float32:
    """Their mean, or the one that is not nan."""
    both = (of_text + of_image) / 2
    return np.where(np.isnan(of_text), of_image, np.where(np.isnan(of_image), of_text, both))


@dataclass(frozen=True)
class Side:
    """The embeddings of one side, e: unit rows around their common mean, at unit length again, and what all are like.

    Rows are read some at a time, from wherever they are.
    """

    rows: Rows
    centre: Float32  # (d,) mean of the unit rows
    mean: Float32  # (d,) of e
    spread: Float32  # (d, d) covariance of e

    @classmethod
    def of(cls, rows: Rows) -> Side:
        """Two passes over all rows."""
        step, width = max(1, GATHERED // max(1, rows.width)), rows.width
        centre, count = np.zeros(width), 0
        for _, block in rows.chunks(step):
            unit, valid = unit_rows(block)
            centre, count = centre + unit.sum(axis=0, dtype=np.float64), count + int(valid.sum())
        nothing = np.zeros(width, np.float32)
        side = cls(rows, (centre / max(1, count)).astype(np.float32), nothing, np.outer(nothing, nothing))
        total, squares, count = np.zeros(width), np.zeros((width, width)), 0
        for _, block in rows.chunks(step):
            unit, valid = side.directions(block)  # rows that are not valid are 0
            total, count = total + unit.sum(axis=0, dtype=np.float64), count + int(valid.sum())
            squares += unit.T @ unit
        mean = total / max(1, count)
        spread = squares / max(1, count) - np.outer(mean, mean)
        return replace(side, mean=mean.astype(np.float32), spread=spread.astype(np.float32))

    def directions(self, block: Floats) -> tuple[Float32, Mask]:
        """e of some rows, 0 for invalid ones, and which are valid: a row at the centre itself is not."""
        unit, valid = unit_rows(block)
        centred, apart = unit_rows(unit - self.centre)
        valid &= apart
        centred[~valid] = 0
        return centred, valid

    def agreement(self, own: Index, neighbours: Integers) -> Float32:
        """(R,) z_s of the rows `own` with their lists (R, k); nan for rows and for lists in which none is valid."""
        result = np.full(len(own), np.nan, dtype=np.float32)
        step = max(1, GATHERED // max(1, neighbours.shape[1] * self.rows.width))
        for start in range(0, len(own), step):
            found, place = gather(self.rows, own[start : start + step])
            unit, valid = self.directions(found)
            at = np.flatnonzero(valid[place])
            mine, listed = unit[place[at]], np.asarray(neighbours[start : start + step])[at]
            found, place = gather(self.rows, np.maximum(listed, 0))
            unit, valid = self.directions(found)
            cosine = np.matmul(unit[place], mine[:, :, None])[:, :, 0]
            counts = (listed >= 0) & valid[place]
            near = np.sum(cosine * counts, axis=1) / np.maximum(counts.sum(axis=1), 1)
            # cos(e_i, e_j) over all j is a linear form of e_j, so its mean and variance need no pass over the pairs
            deviation = np.sqrt(np.maximum(np.sum((mine @ self.spread) * mine, axis=1), 1e-12))
            result[start + at] = np.where(counts.any(axis=1), (near - mine @ self.mean) / deviation, np.nan)
        return result
