"""Mixup (Zhang et al., 2018): mix a batch with itself, pictures and soft labels."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Run

MIXED, HARDLY_MIXED = 4.0, 0.1
"""α of Beta(α, α): as published for 300 epochs, and for short runs"""
FEW_EPOCHS = 50
"""below: a short run, in which mixed pictures cost more than they bring. In 6 epochs (`bench --preset scenes-pretrained-labels
--seeds 1`): DivideMix 36.8 by α = 4, 47.4 by .05, plain training 37.7 (40 % noise); TANGO 45.3, 54.8 by .1, plain training 56.8
(no noise). In 12 from scratch (`scenes-classification --seeds 9`): TANGO 88.2, 96.3 by .1 (40 %)"""


def mixup_alpha(given: float | None, epochs: int) -> float:
    """Return α of a run: the `given` one, else the published one, or for a short run one that hardly mixes.

    >>> mixup_alpha(None, 300), mixup_alpha(None, 10), mixup_alpha(0.5, 10)
    (4.0, 0.1, 0.5)
    """
    return given or (HARDLY_MIXED if epochs < FEW_EPOCHS else MIXED)


def note_mixing(run: Run, method: str, given: float | None, alpha: float) -> None:
    """Log that a short run hardly mixes, unless α was given."""
    if given is None and alpha == HARDLY_MIXED:
        run.note(
            f"{method}: pictures are hardly mixed in fewer than {FEW_EPOCHS} epochs; as in long runs: method.mixup={MIXED:g}"
        )


def mixup(images: Tensor, labels: Tensor, rng: np.random.Generator, alpha: float = MIXED) -> tuple[Tensor, Tensor]:
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
