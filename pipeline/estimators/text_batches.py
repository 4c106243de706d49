"""Texts of like length in one batch: a batch is as long as its longest text, and time goes with the tokens."""

from collections.abc import Sequence

__all__ = ["length_batches"]

STEP = 8  # tokens; finer saves little and makes many small batches


def length_batches(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Positions (0 … N-1) in batches of at most `batch_size`; in each, all lengths round up to the same multiple of STEP.

    >>> length_batches([5, 70, 8, 9, 6], batch_size=2)
    [[0, 2], [4], [3], [1]]
    """
    groups: dict[int, list[int]] = {}
    for position, length in enumerate(lengths):
        groups.setdefault(-(-length // STEP), []).append(position)
    return [
        group[start : start + batch_size]
        for _, group in sorted(groups.items())
        for start in range(0, len(group), batch_size)
    ]
