"""Embeddings of right and wrong pairs, for tests of the columns."""

import numpy as np

from noisegate.pipeline.system.array_types import Float64

CENTRES = np.random.default_rng(3).standard_normal((60, 16))


def noisy_pairs(count: int = 60, wrong: int = 15, noise: float = 0.3) -> tuple[Float64, Float64]:
    """Images, and texts near them but for the first `wrong`, which are near another's."""
    rng = np.random.default_rng(1)
    place = np.arange(count)
    place[:wrong] = np.roll(place[:wrong], 1)
    images = CENTRES[:count] + noise * rng.standard_normal((count, 16))
    return images, CENTRES[place] + noise * rng.standard_normal((count, 16))


def unit(rows: Float64) -> Float64:
    """Rows of length 1."""
    result: Float64 = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return result
