"""Clean and noisy halves by per-sample losses, and what is done with them before and after the mixture."""

import numpy as np
from torch import Tensor

from noisegate.pipeline.methods.mixtures import all_clean_rule
from noisegate.pipeline.system.array_types import Float32, Mask

__all__ = ["abandoned", "clean_rows", "levelled"]


def levelled(losses: Tensor) -> Tensor:
    """(B,) losses of one batch with mean 0 and deviation 1; zeros where they do not differ.

    Losses that are noted while a network learns come from ever better networks: within a batch they compare, across the
    batches of an epoch they do not. Every batch is a random draw of all samples, so that it has the same mixture.

    >>> import torch
    >>> levelled(torch.tensor([1.0, 3.0])).tolist()
    [-1.0, 1.0]
    """
    centred = losses - losses.mean()
    deviation = centred.square().mean().sqrt()
    return centred / deviation if float(deviation) > 1e-12 else centred * 0


def clean_rows(
    confidence: Float32, threshold: float = 0.5, *, inclusive: bool = True, one_percent: bool = False
) -> Mask:
    """(N,) whether w_i >= threshold (LNC), or > threshold (NCR, GSL); rows without a confidence keep their given label.

    one_percent: where all are clean, the least sure hundredth is not (NCR's published code).
    """
    known = np.where(np.isnan(confidence), np.inf, confidence)
    if one_percent:
        raised = all_clean_rule(confidence, threshold)
        if raised > threshold:
            clean: Mask = known > raised
            return clean
    return known >= threshold if inclusive else known > threshold


def abandoned(confidence: Float32, threshold: float, share: float, rng: np.random.Generator) -> Mask:
    """(N,) a random `share` of the samples that both networks' confidences (2, N) call noisy (LNC Eq. 7): floor(share n).

    Two of all known samples stay whatever the share: enough for a batch.
    """
    with np.errstate(invalid="ignore"):
        noisy = np.flatnonzero((confidence < threshold).all(axis=0))
    known = int((~np.isnan(confidence)).any(axis=0).sum())
    count = max(0, min(int(share * len(noisy)), known - 2))
    dropped = np.zeros(confidence.shape[1], bool)
    dropped[rng.choice(noisy, count, replace=False)] = True
    return dropped
