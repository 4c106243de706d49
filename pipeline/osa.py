"""OSA's weight: how much to trust a pair, from its cosine and the cone shift β."""

from typing import Any, TypeVar

import numpy as np

__all__ = ["osa_weight", "reference_weight"]

T = TypeVar("T")


def osa_weight(similarity: T, beta: float, monotone: bool = False) -> T:
    """w = x² (1 - x) with x = s - β where x > 0, else 0 (OSA Eq. 5); never negative, 0 for NaN.

    `similarity` is a number, a numpy array or a torch tensor of any shape, and the result is of the same kind. The weight
    rises to 4/27 at x = 2/3 and falls beyond; `monotone` holds it there, for image-image pairs, whose cosines reach so far.

    >>> round(osa_weight(0.30, beta=0.215), 9)
    0.006610875
    >>> osa_weight(np.array([0.1, 0.215, 1.215]), beta=0.215).tolist()
    [0.0, 0.0, 0.0]
    """
    if isinstance(similarity, float | int):
        return float(osa_weight(np.array([similarity], np.float64), beta, monotone)[0])  # type: ignore[return-value]
    x: Any = similarity - beta  # type: ignore[operator]
    if isinstance(x, np.ndarray | np.generic):
        x = np.clip(x, 0, 2 / 3 if monotone else 1)
        return np.where(np.isnan(x), x.dtype.type(0), x * x * (1 - x))  # type: ignore[no-any-return]
    x = x.clamp(0, 2 / 3 if monotone else 1).nan_to_num(0.0)
    return x * x * (1 - x)  # type: ignore[no-any-return]


def reference_weight(x: T) -> T:
    """x² (1 - x²), the quartic of OSA's published code for margins divided by the batch's largest; 0 outside (0, 1).

    >>> reference_weight(np.array([0.5, 1.0])).tolist()
    [0.1875, 0.0]
    """
    y: Any = np.clip(x, 0, 1) if isinstance(x, np.ndarray | np.generic) else x.clamp(0, 1)  # type: ignore[attr-defined]
    return y * y * (1 - y * y)  # type: ignore[no-any-return]
