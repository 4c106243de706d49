"""LNC on a frozen model: the equations that need no training, and the columns made of them.

    ℓ_i  mean hinges of the pair's row and column                 Eq. 1-2   `losses.triplet`
    w_i  posterior of the small-mean Gaussian over all ℓ          Eq. 3     `mixtures.gmm_split`
    P_i  clip(s_i / τ, 0, 1)                                      Eq. 9     `predict_match`

All other equations are in trainers/methods/lnc.py.
"""

import numpy as np
import torch
from torch import Tensor

from noisegate.pipeline.runs.rows import Embeddings
from noisegate.pipeline.system.array_types import Float32

from .losses import diagonal_mask, hinges, one_thread, triplet
from .mixtures import gmm_split
from .pair_batches import EmbeddedPairs, mean_and_spread

LEAST_TAU = 1e-12
"""τ below which no pair beats its negatives, and all predictions are 0"""


@one_thread()
def lnc_columns(
    images: Embeddings,
    texts: Embeddings,
    *,
    batch: int = 128,
    permutations: int = 5,
    seed: int = 0,
    margin: float = 0.2,
) -> dict[str, Float32]:
    """`lnc_confidence` w and `lnc_prediction` P (N,) with their `_sd`: mean and spread over seeded permutations into batches.

    images, texts: (N, d), pair by pair. NaN where either row has no direction, and where there is no second pair. Each
    permutation has its own Gaussian mixture over all its losses. `margin` α is the paper's, for networks trained with it; the
    cosines of a pretrained CLIP differ by less than α.

    >>> rows = np.eye(40)
    >>> texts = rows[[1, 2, 3, 0, *range(4, 40)]]  # the first four captions moved on
    >>> lnc_columns(rows, texts)["lnc_confidence"][[0, 3, 4, 39]].round().tolist()
    [0.0, 0.0, 1.0, 1.0]
    """
    pairs = EmbeddedPairs(images, texts)
    losses = np.full((permutations, len(pairs.valid)), np.nan)
    predictions = losses.copy()
    for number, pair_batch in pairs.batches(batch, permutations, seed):
        similarity, same = torch.from_numpy(pair_batch.similarity), torch.from_numpy(pair_batch.same)
        losses[number, pair_batch.rows] = triplet(similarity, margin, same=same).numpy()
        predictions[number, pair_batch.rows] = predict_match(similarity, same).numpy()
    confidence = np.stack([gmm_split(each).clean_probability for each in losses])
    return {
        **mean_and_spread("lnc_confidence", confidence, pairs),
        **mean_and_spread("lnc_prediction", predictions, pairs),
    }


def predict_match(similarity: Tensor, same: Tensor | None = None, *, clamp: float | None = None) -> Tensor:
    """LNC Eq. 9: P_i (B,) = clip(s_i / τ, 0, 1), of similarities (B, B).

    s_i = S_ii - ½ (1/b Σ_{j≠i} S_ij + 1/b Σ_{j≠i} S_ji): how far a pair stands above its negatives, b the size of the batch.
    τ: the mean of the largest tenth of the s, floor(b / 10) + 1 of them, a constant for gradients: at least one pair in ten
    is taken to be right, and a pair counts as right where s is larger than τ. same (B, B) bool: pairs that are no negatives,
    which b does not count either. clamp: α, to clip s to [0, α] before τ is taken, as NCR's code does with its hinges: every
    pair that stands α above its negatives then counts as right.

    >>> similarity = torch.tensor([[0.9, 0.5], [0.7, 0.65]])  # s = (.6, .35), τ = .6
    >>> predict_match(similarity)
    tensor([1.0000, 0.5833])
    >>> predict_match(similarity, clamp=0.2).tolist()
    [1.0, 1.0]
    """
    no_negative = diagonal_mask(similarity) if same is None else diagonal_mask(similarity) | same
    count = len(similarity) - no_negative.sum(dim=1) + 1  # the paper's b counts the pair itself
    against = similarity.masked_fill(no_negative, 0.0)
    s = similarity.diagonal() - (against.sum(dim=1) / count + against.sum(dim=0) / count) / 2
    return _divide_by_best(s if clamp is None else s.clamp(0.0, clamp))


def predict_match_by_hinges(similarity: Tensor, margin: float = 0.2, same: Tensor | None = None) -> Tensor:
    """P_i (B,) as in NCR's published code: α - ½ (mean hinge of the row + mean hinge of the column) in place of s_i.

    Equal to the clamped Eq. 9 up to O(α/b) where no hinge is cut off, a little larger elsewhere.
    """
    rows, columns = hinges(similarity, margin, same)
    s = margin - (rows.mean(dim=1) + columns.mean(dim=0)) / 2
    return _divide_by_best(s.clamp(0.0, margin))


def _divide_by_best(s: Tensor) -> Tensor:
    tau = s.detach().topk(min(len(s), len(s) // 10 + 1)).values.mean()
    if float(tau) <= LEAST_TAU:
        return torch.zeros_like(s)
    return (s / tau).clamp(0.0, 1.0)
