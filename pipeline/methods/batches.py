"""Batches for scores that depend on who shares a batch: a few seeded permutations, of which the mean is taken."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError

__all__ = ["permuted_batches"]


def permuted_batches(rows: int, batch: int, permutations: int, seed: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """(number of the permutation, row numbers): every row once in each; a short last batch joins the one before it.

    >>> [(number, len(batch)) for number, batch in permuted_batches(7, 3, permutations=2, seed=0)]
    [(0, 3), (0, 4), (1, 3), (1, 4)]
    """
    if batch < 2 or permutations < 1:
        raise ConfigError(
            f"batch={batch}, permutations={permutations}; give at least 2 and 1, such as 128 and 5: a sample alone in its "
            "batch has nothing to be compared with"
        )
    rng = np.random.default_rng(seed)
    for number in range(permutations):
        order = rng.permutation(rows)
        starts = list(range(0, rows, batch))
        if len(starts) > 1 and rows - starts[-1] < batch:
            starts.pop()
        for start, end in zip(starts, [*starts[1:], rows], strict=True):
            yield number, order[start:end]
