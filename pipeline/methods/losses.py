"""Contrastive and triplet loss of each pair of a batch (torch): the only implementation, used by the trainers too.

S is a batch's similarity matrix (B, B), image i against text j, with the given pairs on the diagonal. Results are (B,), one
number per pair. `same` (B, B) bool marks pairs with the same picture or caption, which are no negatives of each other; its
diagonal is ignored. `negatives` (B,) bool says which samples may be negatives of others.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from noisegate.pipeline.system.array_types import Float32, Float64, Index

from .pair_batches import permuted_batches, same_pairs


def info_nce(
    similarity: Tensor, temperature: Tensor | float, same: Tensor | None = None, negatives: Tensor | None = None
) -> Tensor:
    """(B,) mean of both directions, -½ [log softmax_j(S_ij / τ)_i + log softmax_j(S_ji / τ)_i] (CLIP; OSA Eq. 1).

    >>> [round(float(loss), 4) for loss in info_nce(torch.eye(2), temperature=1.0)]  # log(1 + e^-1)
    [0.3133, 0.3133]
    """
    logits = similarity / temperature
    for_texts = logits.T
    if same is not None or negatives is not None:
        logits, for_texts = (m.masked_fill(_left_out(m, same, negatives), -torch.inf) for m in (logits, for_texts))
    own = torch.arange(len(logits), device=logits.device)
    return (F.cross_entropy(logits, own, reduction="none") + F.cross_entropy(for_texts, own, reduction="none")) / 2


def hinges(
    similarity: Tensor, margin: Tensor | float, same: Tensor | None = None, negatives: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the two hinge matrices (B, B), both directions, with zeros on the diagonal and for pairs that are no negatives.

    h_s[i, j] = [a_i + S_ij - S_ii]_+ : image i asks the texts, with the margin of row i
    h_im[i, j] = [a_j + S_ij - S_jj]_+ : text j asks the images, with the margin of column j
    """
    own = similarity.diagonal()
    margins = torch.as_tensor(margin, dtype=similarity.dtype, device=similarity.device).expand(len(own))
    rows = (margins[:, None] + similarity - own[:, None]).clamp(min=0)
    columns = (margins[None, :] + similarity - own[None, :]).clamp(min=0)
    no_text = no_image = diagonal_mask(similarity) if same is None else same | diagonal_mask(similarity)
    if negatives is not None:
        no_text, no_image = no_text | ~negatives[None, :], no_image | ~negatives[:, None]
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

    The means are LNC Eq. 1-2. margin: one for all, or (B,), one for each pair (LNC Eq. 10, GSL Eq. 17).

    >>> similarity = torch.tensor([[0.5, 0.4], [0.1, 0.5]])
    >>> [round(float(loss), 4) for loss in triplet(similarity, 0.2, hardest=True)]
    [0.1, 0.1]
    """
    images, texts = hinges(similarity, margin, same, negatives)
    if hardest:
        return images.amax(dim=1) + texts.amax(dim=0)
    return images.mean(dim=1) + texts.mean(dim=0)


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch on one thread: for batches of 128 pairs, waking other threads costs up to ten times the work itself."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def pair_losses(
    images: Float32,
    texts: Float32,
    scale: float,
    seed: int | Sequence[int],
    pictures: Index,
    captions: Index,
    batch_size: int = 128,
    permutations: int = 5,
) -> Float64:
    """(N,) `info_nce` of each pair in float64, the mean over seeded permutations into batches.

    images, texts: (N, d) unit rows. scale: 1 / τ. pictures, captions: (N,) ids, equal where two samples show the same.
    """
    v, t = torch.from_numpy(images).double(), torch.from_numpy(texts).double()
    total = np.zeros(len(images))
    for _, rows in permuted_batches(len(images), batch_size, permutations, seed):
        same = torch.from_numpy(same_pairs(rows, pictures, captions))
        total[rows] += info_nce(scale * v[rows] @ t[rows].T, 1.0, same).numpy()
    return total / permutations


def diagonal_mask(matrix: Tensor) -> Tensor:
    """Make (B, B) bool on the matrix's device, True on the diagonal."""
    return torch.eye(len(matrix), dtype=torch.bool, device=matrix.device)


def _left_out(matrix: Tensor, same: Tensor | None, negatives: Tensor | None) -> Tensor:
    """Return the entries to leave out of the softmax of their row, never the diagonal; `same` is symmetric."""
    out = torch.zeros_like(matrix, dtype=torch.bool) if same is None else same
    out = out if negatives is None else out | ~negatives[None, :]
    return out & ~diagonal_mask(matrix)
