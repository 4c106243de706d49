"""GSL's view of the pairs before training: clean posterior and label by anchors under a frozen model (METHODS 5, 1.11).

A reconstruction, see `galc.RECONSTRUCTION`.
"""

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.runs.rows import Embeddings
from noisegate.pipeline.system.array_types import Float32

from .galc import anchor_labels
from .mixtures import bmm_split
from .pairs import PairBatch, Pairs, hinge_peaks, mean_and_spread

__all__ = ["gsl_columns", "sct_loss"]


def gsl_columns(
    images: Embeddings,
    texts: Embeddings,
    *,
    batch: int = 128,
    permutations: int = 5,
    seed: int = 0,
    margin: float = 0.2,
    threshold: float = 0.5,
    zeta: float = 1.0,
    eta: float = 0.1,
    inter_sign: int = -1,
    domain: str = "fourier",
    centring: str = "bank",
) -> dict[str, Float32]:
    """`gsl_probability` and `gsl_label` (N,) with their `_sd`: mean and spread over seeded permutations into batches.

    images, texts: (N, d), pair by pair. NaN where either row has no direction, and where there is no second pair.
    probability: posterior of the clean component of a Beta mixture over all L_SCT of a permutation. label: 1 for pairs
    whose posterior is above `threshold`, else y* of `anchor_labels`; NaN where no permutation had two anchors. The label
    is no noise score: two right pairs may lie quite differently between their anchors.
    """
    pairs = Pairs(images, texts)
    losses = np.full((permutations, len(pairs.valid)), np.nan)
    for number, one in pairs.batches(batch, permutations, seed):
        losses[number, one.rows] = sct_loss(one, margin, zeta, eta, inter_sign)
    probability = np.stack([bmm_split(each).clean_probability for each in losses])
    labels = np.where(probability > threshold, 1.0, np.nan)
    for number, one in pairs.batches(batch, permutations, seed):
        clean = probability[number, one.rows] > threshold
        found = anchor_labels(one.images, one.texts, clean, one.same, domain=domain, centring=centring)
        labels[number, one.rows] = np.where(clean, 1.0, found)
    return {
        **mean_and_spread("gsl_probability", probability, pairs),
        **mean_and_spread("gsl_label", labels, pairs),
    }


def sct_loss(batch: PairBatch, margin: float, zeta: float, eta: float, inter_sign: int) -> NDArray[np.float64]:
    """L_SCT (B,) = L_w + ζ L_intra + η L_inter of each row, means over the batch (Eq. 13, 15-17; METHODS 5.3).

    L_intra,i = mean_j (S(I_i, I_j) - S(T_i, T_j))²; L_inter,i = ± mean_j (S(I_i, T_j) - S(I_j, T_i))².
    """
    between_images, between_texts = (side.astype(np.float64) @ side.T for side in (batch.images, batch.texts))
    intra = ((between_images - between_texts) ** 2).mean(axis=1)
    inter = ((batch.similarity - batch.similarity.T) ** 2).mean(axis=1)
    result: NDArray[np.float64] = hinge_peaks(batch, margin) + zeta * intra + inter_sign * eta * inter
    return result
