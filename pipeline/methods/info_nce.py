"""How well a pair stands out among the pairs of its batch: the loss of contrastive models, sample by sample."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

__all__ = ["batches", "info_nce", "numbered", "pair_losses", "same_pairs"]


def info_nce(
    images: torch.Tensor, texts: torch.Tensor, scale: torch.Tensor | float, same: torch.Tensor | None = None
) -> torch.Tensor:
    """(B,) the mean of both directions, -½ [log softmax_j(c S_ij)_i + log softmax_j(c S_ji)_i] (CLIP; OSA Eq. 1).

    images, texts: (B, d) unit rows, S their cosines, c = scale. same: (B, B) bool; what is true there beside the diagonal
    shows the same picture or caption as i, and is no negative for it.

    >>> rows = torch.eye(2)
    >>> [round(float(loss), 4) for loss in info_nce(rows, rows, 1.0)]  # log(1 + e^-1)
    [0.3133, 0.3133]
    """
    logits = scale * images @ texts.T
    if same is not None:
        others = same & ~torch.eye(len(logits), dtype=torch.bool, device=logits.device)
        logits = logits.masked_fill(others, -torch.inf)
    own = torch.arange(len(logits), device=logits.device)
    return (F.cross_entropy(logits, own, reduction="none") + F.cross_entropy(logits.T, own, reduction="none")) / 2


def pair_losses(
    images: NDArray[np.float32],
    texts: NDArray[np.float32],
    scale: float,
    rng: np.random.Generator,
    pictures: NDArray[np.int64] | None = None,
    captions: NDArray[np.int64] | None = None,
    batch_size: int = 128,
    permutations: int = 5,
) -> NDArray[np.float64]:
    """(N,) `info_nce` of each pair, averaged over as many seeded ways to fill the batches as there are permutations.

    images, texts: (N, d) unit rows. pictures, captions: (N,) ids, equal where two samples show the same.
    """
    v, t = torch.from_numpy(images).double(), torch.from_numpy(texts).double()
    total = np.zeros(len(images))
    for _ in range(permutations):
        for rows in batches(rng.permutation(len(images)), batch_size):
            same = same_pairs(rows, pictures, captions)
            total[rows] += info_nce(v[rows], t[rows], scale, same).numpy()
    return total / permutations


def batches(order: NDArray[np.int64], size: int) -> Iterator[NDArray[np.int64]]:
    """Cut an order into batches of `size`; a short rest joins the last one, for its losses would be too small.

    >>> [len(rows) for rows in batches(np.arange(10), 4)]
    [4, 6]
    """
    count = max(1, len(order) // size)
    for i in range(count):
        yield order[i * size : (i + 1) * size if i + 1 < count else len(order)]


def same_pairs(rows: NDArray[np.int64], *ids: NDArray[np.int64] | None) -> torch.Tensor:
    """(B, B) bool: whether two of the rows agree in one of the ids (N,).

    >>> same_pairs(np.array([0, 2]), np.array([5, 6, 5])).tolist()
    [[True, True], [True, True]]
    """
    same = np.eye(len(rows), dtype=bool)
    for known in ids:
        if known is not None:
            same |= known[rows][:, None] == known[rows][None]
    return torch.from_numpy(same)


def numbered(values: Sequence[object]) -> NDArray[np.int64]:
    """(N,) ids 0, 1, … of values in the order of their first appearance.

    >>> numbered(["b", "a", "b"]).tolist()
    [0, 1, 0]
    """
    seen: dict[object, int] = {}
    return np.array([seen.setdefault(value, len(seen)) for value in values], dtype=np.int64)
