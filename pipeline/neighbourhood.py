"""Pairs without a joint model: do the neighbours of a photo have captions like mine, and the other way round?"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigError
from pipeline.rows import unit_rows

__all__ = ["neighbourhood_agreement"]

Float32 = NDArray[np.float32]
GATHERED = 1 << 24  # floats of neighbours held at a time


def neighbourhood_agreement(
    image_neighbours: NDArray[np.integer[Any]],
    text_neighbours: NDArray[np.integer[Any]],
    image_embeddings: NDArray[np.floating[Any]],
    text_embeddings: NDArray[np.floating[Any]],
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
    rows = {len(image_neighbours), len(text_neighbours), len(image_embeddings), len(text_embeddings)}
    if len(rows) != 1:
        raise ConfigError(
            f"neighbourhood: {len(image_neighbours)} image and {len(text_neighbours)} text lists for "
            f"{len(image_embeddings)} images and {len(text_embeddings)} texts; all four need one row per pair"
        )
    of_text = _agreement(image_neighbours, text_embeddings)
    of_image = _agreement(text_neighbours, image_embeddings)
    both = (of_text + of_image) / 2
    return np.where(np.isnan(of_text), of_image, np.where(np.isnan(of_image), of_text, both))


def _agreement(neighbours: NDArray[np.integer[Any]], embeddings: NDArray[np.floating[Any]]) -> Float32:
    """z_s of every row; nan for rows without a direction and rows whose neighbours all are such."""
    unit, valid = _centred(embeddings)
    result = np.full(len(unit), np.nan, dtype=np.float32)
    if not valid.any():
        return result
    mean = unit.sum(axis=0) / valid.sum()  # rows that are not valid are 0
    spread = unit.T @ unit / np.float32(valid.sum()) - np.outer(mean, mean)
    rows = max(1, GATHERED // max(1, neighbours.shape[1] * unit.shape[1]))
    for start in range(0, len(unit), rows):
        mine, listed = unit[start : start + rows], neighbours[start : start + rows]
        cosine = np.matmul(unit[np.maximum(listed, 0)], mine[:, :, None])[:, :, 0]
        counts = (listed >= 0) & valid[np.maximum(listed, 0)]
        near = np.sum(cosine * counts, axis=1) / np.maximum(counts.sum(axis=1), 1)
        # cos(e_i, e_j) over all j is a linear form of e_j, so its mean and variance need no pass over the pairs
        deviation = np.sqrt(np.maximum(np.sum((mine @ spread) * mine, axis=1), 1e-12))
        usable = counts.any(axis=1) & valid[start : start + rows]
        result[start : start + rows] = np.where(usable, (near - mine @ mean) / deviation, np.nan)
    return result


def _centred(embeddings: NDArray[np.floating[Any]]) -> tuple[Float32, NDArray[np.bool_]]:
    """Rows at unit length around their common mean; invalid rows become 0. A row at the mean itself is invalid."""
    unit, valid = unit_rows(embeddings)
    if valid.any():
        unit = unit - unit[valid].mean(axis=0)
    centred, apart = unit_rows(unit)
    valid = valid & apart
    centred[~valid] = 0
    return centred, valid
