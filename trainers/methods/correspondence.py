"""Does a pair belong together? Answered from its similarity among those of its batch (LNC Eq. 9).

S_ij is the similarity of image i and text j, α the margin, b the size of the batch.
"""

import torch
from torch import Tensor

from noisegate.trainers.losses import hinges

__all__ = ["hinge_prediction", "similarity_prediction"]

NOTHING = 1e-12


def similarity_prediction(similarity: Tensor, margin: float = 0.2, same: Tensor | None = None) -> Tensor:
    """(B,) LNC's P_i = clip(s_i, 0, α) / τ, at most 1, of similarities (B, B).

    s_i = S_ii - ½ (1/b Σ_{j≠i} S_ij + 1/b Σ_{j≠i} S_ji): how far a pair stands above its negatives; τ is the mean of the
    largest tenth of the clipped s, a constant for gradients: at least one pair in ten is taken to be right. All are 0 where
    no pair beats its negatives, τ <= 1e-12. `same` (B, B) bool: pairs that are no negatives.

    >>> similarity_prediction(torch.tensor([[0.9, 0.5], [0.7, 0.65]])).round(decimals=4).tolist()  # s = (.6, .35), α = .2
    [1.0, 1.0]
    """
    none = _no_negatives(similarity, same)
    count = len(similarity) - none.sum(dim=1) + 1  # b without the masked ones, as the paper's b counts the pair itself
    against = similarity.masked_fill(none, 0.0)
    s = similarity.diagonal() - (against.sum(dim=1) / count + against.sum(dim=0) / count) / 2
    return _over_best(s.clamp(0.0, margin))


def hinge_prediction(similarity: Tensor, margin: float = 0.2, same: Tensor | None = None) -> Tensor:
    """(B,) as NCR's published code has it: α - ½ (mean hinge of the row + mean hinge of the column) in place of s.

    Equal to Eq. 9 up to O(α/b) where no hinge is cut off, a little larger elsewhere.
    """
    rows, columns = hinges(similarity, margin, same)
    s = margin - (rows.mean(dim=1) + columns.mean(dim=0)) / 2
    return _over_best(s.clamp(0.0, margin))


def _over_best(clipped: Tensor) -> Tensor:
    best = clipped.detach().topk(min(len(clipped), len(clipped) // 10 + 1)).values.mean()
    if float(best) <= NOTHING:
        return torch.zeros_like(clipped)
    return (clipped / best).clamp(max=1.0)


def _no_negatives(similarity: Tensor, same: Tensor | None) -> Tensor:
    itself = torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)
    return itself if same is None else itself | same
