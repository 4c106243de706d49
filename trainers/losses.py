"""Per-sample losses, and how weights enter them.

All losses take a batch's similarities (B, B), image i against text j with the given pairs on the diagonal, or its class logits
(B, C), and return (B,): one number per sample, so that a method can weigh, select or mix them before the mean. `info_nce`,
`hinges` and `triplet` come from noisegate.pipeline.methods.losses.

A sample of weight 0 sends no gradient through its own loss. It is still a negative of the other samples, which is right for
most wrong pairs (a caption on the wrong picture is wrong for almost every other picture too) and is how OSA's published code
does it; `negatives` excludes it there as well.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.methods import diagonal_mask, hinges, info_nce, triplet
from noisegate.pipeline.pairs import reference_weight

__all__ = ["WEIGHT_MODES", "contrastive", "cross_entropy", "hinges", "info_nce", "triplet", "weighted"]

LARGEST_WEIGHT = 4 / 27
"""of OSA's Eq. 5, at x = 2/3"""

WEIGHT_MODES = {
    "mean1": "divided by the data set's mean weight: the learning rate keeps its meaning",
    "raw": "as the table has them, about .01: OSA Eq. 6 to the letter; plain SGD hardly moves",
    "batch_sum": "divided by the sum of the batch: a batch of doubtful samples counts as much as any other",
    "max1": "divided by 4/27, the largest that Eq. 5 can give",
    "reference": "what OSA's published code does: margins over the batch's largest, through x² (1 - x²)",
}


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute cross-entropy (B,) of class logits (B, C) with labels (B,) or soft labels (B, C).

    >>> cross_entropy(torch.zeros(1, 4), torch.tensor([2])).exp().round().tolist()
    [4.0]
    """
    return F.cross_entropy(logits, labels, reduction="none")


def contrastive(
    similarity: Tensor,
    labels: Tensor,
    temperature: Tensor | float,
    negatives: Tensor | None = None,
    trust: Tensor | None = None,
) -> Tensor:
    """Compute (B,) for images: the mean of -log softmax_{j≠i}(S_ij / τ) over the other images of the class.

    labels: (B,). trust: (B,) >= 0, weights of the other images in that mean, because a wrong label also spoils the losses of
    the other images of its class. An image without any (trusted) other image of its class in the batch has loss 0 and no
    gradient. negatives: (B,) bool, which images are in the softmax of others although they are no (trusted) images of their
    class.
    """
    itself = diagonal_mask(similarity)
    positive = (labels[:, None] == labels[None, :]) & ~itself
    if trust is not None:
        trust = trust.to(similarity.device, similarity.dtype)
        positive = positive & (trust > 0)[None, :]
    hidden = itself if negatives is None else itself | (~negatives[None, :] & ~positive)
    logs = (similarity / temperature).masked_fill(hidden, -torch.inf).log_softmax(dim=1)
    logs = logs.masked_fill(~positive, 0)
    if trust is None:
        return -logs.sum(dim=1) / positive.sum(dim=1).clamp(min=1)
    share = positive * trust[None, :]
    return -(logs * share).sum(dim=1) / share.sum(dim=1).clamp(min=torch.finfo(logs.dtype).tiny)


def weighted(loss: Tensor, weight: Tensor, *, mode: str = "mean1", mean_weight: float | None = None) -> Tensor | None:
    """Reduce to one number for backward(): the mean of w_i L_i (OSA Eq. 6), scaled by one of `WEIGHT_MODES`.

    loss, weight: (B,); NaN weights count as 0. Returns None if no sample has any weight: skip such a batch. `mean1` needs
    `mean_weight`, the mean of the column over the data trained on. For `reference` give the margins s - β as weight.

    >>> loss, weight = torch.tensor([1.0, 3.0]), torch.tensor([0.02, 0.0])
    >>> float(weighted(loss, weight, mean_weight=0.01))
    1.0
    >>> weighted(loss, torch.zeros(2), mean_weight=0.01) is None
    True
    """
    if mode not in WEIGHT_MODES:
        raise ConfigError.of("mode", mode, f"is unknown; use one of {', '.join(WEIGHT_MODES)}")
    if loss.shape != weight.shape:
        problem = (
            f"is no shape for losses of {tuple(loss.shape)}; give one weight for each sample's loss (reduction='none')"
        )
        raise ConfigError.of("weight", tuple(weight.shape), problem)
    w = weight.to(loss.device, loss.dtype).nan_to_num(0.0).clamp(min=0).detach()
    if mode == "reference":
        w = reference_weight(w / w.max().clamp(min=torch.finfo(w.dtype).tiny))
    if not bool(w.any()):
        return None
    total = (w * loss).sum()
    if mode == "batch_sum":
        return total / w.sum()
    if mode == "mean1":
        if mean_weight is None or not mean_weight > 0:
            problem = (
                "is no divisor for mode mean1; give data.mean('osa_weight') of WeightedShards, or use mode='batch_sum'"
            )
            raise ConfigError.of("mean_weight", mean_weight, problem)
        return total / (len(loss) * mean_weight)
    return total / (len(loss) * (LARGEST_WEIGHT if mode == "max1" else 1.0))
