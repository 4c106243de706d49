"""How far two sets of scores, or two judgements, agree: rank correlations and Cohen's kappa."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["average_ranks", "cohen_kappa", "kendall_tau_b", "spearman"]

BLOCK = 512


def average_ranks(values: ArrayLike) -> NDArray[np.float64]:
    """(N,) ranks from 1, the mean rank where values tie.

    >>> average_ranks([0.3, 0.1, 0.3]).tolist()
    [2.5, 1.0, 2.5]
    """
    _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    middle: NDArray[np.float64] = (ends - (counts - 1) / 2)[place]
    return middle


def spearman(first: ArrayLike, second: ArrayLike) -> float:
    """Spearman's ρ of (N,) and (N,): Pearson's correlation of the average ranks; nan where one side is constant.

    >>> round(spearman([1, 2, 3, 4], [1, 3, 2, 4]), 6)
    0.8
    """
    a, b = average_ranks(first), average_ranks(second)
    if len(a) < 2:
        return float("nan")
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale > 0 else float("nan")


def kendall_tau_b(first: ArrayLike, second: ArrayLike) -> float:
    """Kendall's τ-b of (N,) and (N,), over all N² comparisons in blocks; nan where one side is constant.

    τ_b = (P - Q) / √((P + Q + T₁)(P + Q + T₂)): P and Q count comparisons that agree and disagree, T₁ and T₂ those that
    only one side ties.

    >>> round(kendall_tau_b([1, 2, 3, 4], [1, 3, 2, 4]), 6)
    0.666667
    """
    # ranks, because two scores that differ must never have the difference 0
    a, b = (np.unique(np.asarray(side), return_inverse=True)[1].astype(np.int32) for side in (first, second))
    both = untied_a = untied_b = 0
    for start in range(0, len(a), BLOCK):
        rows = slice(start, start + BLOCK)
        of_a = np.sign(a[rows, None] - a[None, :]).astype(np.int8)
        of_b = np.sign(b[rows, None] - b[None, :]).astype(np.int8)
        both += int((of_a * of_b).sum(dtype=np.int64))
        untied_a += int(np.count_nonzero(of_a))
        untied_b += int(np.count_nonzero(of_b))
    scale = float(np.sqrt(float(untied_a) * float(untied_b)))
    return both / scale if scale > 0 else float("nan")


def cohen_kappa(table: ArrayLike) -> float:
    """κ = (p_o - p_e) / (1 - p_e) of a (C, C) table of counts; nan where both sides say one and the same thing only.

    >>> round(cohen_kappa([[20, 5], [10, 15]]), 6)
    0.4
    """
    counts = np.asarray(table, np.float64)
    total = counts.sum()
    if total == 0:
        return float("nan")
    observed = np.trace(counts) / total
    by_chance = float(counts.sum(axis=0) @ counts.sum(axis=1)) / total**2
    return float((observed - by_chance) / (1 - by_chance)) if by_chance < 1 else float("nan")
