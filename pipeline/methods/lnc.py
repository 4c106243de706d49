"""LNC's view of the pairs before training: confidence and prediction under a frozen model (METHODS 3, 1.11)."""

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.runs.rows import Embeddings
from noisegate.pipeline.system.array_types import Float32

from .mixtures import gmm_split
from .pairs import PairBatch, Pairs, hinge_means, mean_and_spread

__all__ = ["lnc_columns", "prediction"]


def lnc_columns(
    images: Embeddings,
    texts: Embeddings,
    *,
    batch: int = 128,
    permutations: int = 5,
    seed: int = 0,
    margin: float = 0.2,
) -> dict[str, Float32]:
    """`lnc_confidence` and `lnc_prediction` (N,) with their `_sd`: mean and spread over seeded permutations into batches.

    images, texts: (N, d), pair by pair. NaN where either row has no direction, and where there is no second pair. Each
    permutation has its own Gaussian mixture over all its losses (Eq. 1-3). `margin` α is that of the paper, for networks
    trained with it; cosines of a pretrained CLIP differ by less.

    >>> rows = np.eye(40)
    >>> texts = rows[[1, 2, 3, 0, *range(4, 40)]]  # the first four captions moved on
    >>> lnc_columns(rows, texts)["lnc_confidence"][[0, 3, 4, 39]].round().tolist()
    [0.0, 0.0, 1.0, 1.0]
    """
    pairs = Pairs(images, texts)
    losses = np.full((permutations, len(pairs.valid)), np.nan)
    predictions = losses.copy()
    for number, one in pairs.batches(batch, permutations, seed):
        losses[number, one.rows] = hinge_means(one, margin)
        predictions[number, one.rows] = prediction(one, margin)
    confidence = np.stack([gmm_split(each).clean_probability for each in losses])
    return {
        **mean_and_spread("lnc_confidence", confidence, pairs),
        **mean_and_spread("lnc_prediction", predictions, pairs),
    }


def prediction(batch: PairBatch, margin: float) -> NDArray[np.float64]:
    """P (B,) = clip(s, 0, α) / τ, at most 1, where s is a pair's cosine minus half the mean ones of its row and column (Eq. 9).

    τ: mean of the largest tenth of the clipped s, floor(B / 10) + 1 of them; all are 0 where it is nothing.
    """
    none = batch.same | np.eye(len(batch.same), dtype=bool)
    against = np.where(none, 0.0, batch.similarity)
    count = len(none) - batch.same.sum(axis=1)
    s = batch.similarity.diagonal() - (against.sum(axis=1) + against.sum(axis=0)) / (2 * count)
    clipped = np.clip(s, 0, margin)
    best = np.sort(clipped)[-(len(clipped) // 10 + 1) :].mean()
    result: NDArray[np.float64] = np.minimum(clipped / best, 1.0) if best > 1e-12 else np.zeros_like(clipped)
    return result
