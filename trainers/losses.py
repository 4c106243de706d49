"""Losses sample by sample, and what a weight does to them.

All of them take a batch's similarities (B, B), image i against text j with the given pairs on the diagonal, or its class
logits (B, C), and give (B,): one number per sample, so that a method can weigh, select or mix them before the mean.

A sample of weight 0 sends no gradient through its own loss. It still stands among the negatives of the others, which is
right for most wrong pairs (a caption on the wrong picture is wrong for almost every other picture too) and is how OSA's
published code does it; `negatives` leaves it out there as well.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.pairs.osa import reference_weight

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


def info_nce(
    similarity: Tensor, temperature: Tensor | float, same: Tensor | None = None, negatives: Tensor | None = None
) -> Tensor:
    """(B,) mean of both directions, -½ [log softmax_j(S_ij / τ)_i + log softmax_j(S_ji / τ)_i] (CLIP; OSA Eq. 1).

    same: (B, B) bool, pairs beside the diagonal that show the same picture or caption and are no negatives.
    negatives: (B,) bool, which samples may be negatives for others at all.

    >>> [round(float(loss), 4) for loss in info_nce(torch.eye(2), temperature=1.0)]  # log(1 + e^-1)
    [0.3133, 0.3133]
    """
    logits = similarity / temperature
    for_texts = logits.T
    hidden = _hidden(similarity, same)
    if hidden is not None or negatives is not None:
        logits, for_texts = (m.masked_fill(_no_negative(m, hidden, negatives), -torch.inf) for m in (logits, for_texts))
    own = torch.arange(len(logits), device=logits.device)
    return (F.cross_entropy(logits, own, reduction="none") + F.cross_entropy(for_texts, own, reduction="none")) / 2


def hinges(
    similarity: Tensor, margin: Tensor | float, same: Tensor | None = None, negatives: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The two hinge matrices (B, B) of METHODS 1.7, with zeros on the diagonal and where there is no negative.

    h_s[i, j] = [a_i + S_ij - S_ii]_+ : image i asks the texts, with the margin of row i
    h_im[i, j] = [a_j + S_ij - S_jj]_+ : text j asks the images, with the margin of column j
    """
    own = similarity.diagonal()
    margins = torch.as_tensor(margin, dtype=similarity.dtype, device=similarity.device).expand(len(own))
    hidden = _hidden(similarity, same)
    if hidden is None:
        hidden = torch.zeros_like(similarity, dtype=torch.bool)
    diagonal = _diagonal(similarity)
    rows = (margins[:, None] + similarity - own[:, None]).clamp(min=0)
    columns = (margins[None, :] + similarity - own[None, :]).clamp(min=0)
    no_text = hidden | diagonal if negatives is None else hidden | diagonal | ~negatives[None, :]
    no_image = hidden | diagonal if negatives is None else hidden | diagonal | ~negatives[:, None]
    return rows.masked_fill(no_text, 0), columns.masked_fill(no_image, 0)


def triplet(
    similarity: Tensor,
    margin: Tensor | float = 0.2,
    *,
    hardest: bool = False,
    same: Tensor | None = None,
    negatives: Tensor | None = None,
) -> Tensor:
    """(B,) hinges of both directions added: their means over the batch (divided by B), or the hardest negative of each.

    margin: one for all, or (B,), one for each pair (LNC Eq. 10, GSL Eq. 17).

    >>> similarity = torch.tensor([[0.5, 0.4], [0.1, 0.5]])
    >>> [round(float(loss), 4) for loss in triplet(similarity, 0.2, hardest=True)]
    [0.1, 0.1]
    """
    images, texts = hinges(similarity, margin, same, negatives)
    if hardest:
        return images.amax(dim=1) + texts.amax(dim=0)
    return images.mean(dim=1) + texts.mean(dim=0)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """(B,) of class logits (B, C) with labels (B,) or soft ones (B, C).

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
    """(B,) of images among themselves: the mean over the other images of the class of -log softmax_{j≠i}(S_ij / τ).

    labels: (B,). trust: (B,) >= 0, by which that mean weighs the others, since a wrong label spoils the loss of those that it
    is put together with as well. An image without any (trusted) other of its class in the batch has loss 0 and no gradient.
    negatives: (B,) bool, which images stand in the softmax of others although they are no (trusted) ones of their class.
    """
    itself = _diagonal(similarity)
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
    """One number to call backward() on: the mean of w_i L_i (OSA Eq. 6), scaled by one of `WEIGHT_MODES`.

    loss, weight: (B,); NaN weights count as 0. None when no sample has any weight: skip such a batch. `mean1` needs
    `mean_weight`, the mean of the column over the data trained on. For `reference` give the margins s - β as weight.

    >>> loss, weight = torch.tensor([1.0, 3.0]), torch.tensor([0.02, 0.0])
    >>> float(weighted(loss, weight, mean_weight=0.01))
    1.0
    >>> weighted(loss, torch.zeros(2), mean_weight=0.01) is None
    True
    """
    if mode not in WEIGHT_MODES:
        raise ConfigError(f"mode {mode!r} is unknown; use one of {', '.join(WEIGHT_MODES)}")
    if loss.shape != weight.shape:
        raise ConfigError(
            f"weight of shape {tuple(weight.shape)} for a loss of shape {tuple(loss.shape)}; give one weight for each "
            "sample's loss, which F.cross_entropy(…, reduction='none') keeps apart"
        )
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
            raise ConfigError(
                f"mean_weight={mean_weight}: mode mean1 divides by the mean weight of the data; give it, for example "
                "mean_weight=data.mean('osa_weight') of WeightedShards, or use mode='batch_sum'"
            )
        return total / (len(loss) * mean_weight)
    return total / (len(loss) * (LARGEST_WEIGHT if mode == "max1" else 1.0))


def _diagonal(matrix: Tensor) -> Tensor:
    return torch.eye(len(matrix), dtype=torch.bool, device=matrix.device)


def _hidden(similarity: Tensor, same: Tensor | None) -> Tensor | None:
    """Pairs beside the diagonal that are no negatives; symmetric, because sameness is."""
    return None if same is None else same & ~_diagonal(similarity)


def _no_negative(matrix: Tensor, hidden: Tensor | None, negatives: Tensor | None) -> Tensor:
    """Entries of a row to leave out of its softmax; the pair itself always stays."""
    out = torch.zeros_like(matrix, dtype=torch.bool) if hidden is None else hidden
    return out if negatives is None else out | (~negatives[None, :] & ~_diagonal(matrix))
