"""Mixup (Zhang et al., 2018): mix a batch with itself, pictures and soft labels."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def mixup(images: Tensor, labels: Tensor, rng: np.random.Generator, alpha: float = 4.0) -> tuple[Tensor, Tensor]:
    """λ x + (1 - λ) x', λ y + (1 - λ) y' with another sample of the batch each; λ ~ Beta(α, α), never below one half.

    images: (B, …) float, labels: (B, C). One λ for the batch, so that a sample's own part is always the larger one
    (DivideMix, SSR). `rng` draws λ, then the permutation.
    """
    share = float(rng.beta(alpha, alpha))
    share = max(share, 1 - share)
    order = torch.from_numpy(rng.permutation(len(images))).to(images.device)
    return share * images + (1 - share) * images[order], share * labels + (1 - share) * labels[order]


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """(B, C) float32 of class numbers (B,); a row of zeros for -1.

    >>> one_hot(torch.tensor([1, -1]), 2).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    return F.one_hot(labels + 1, classes + 1)[:, 1:].float()
