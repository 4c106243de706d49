"""OSA's weight: how much to trust a pair, from its cosine and the cone shift β."""

from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


def osa_weight(similarity: T, beta: float, monotone: bool = False) -> T:
    """w = x² (1 - x) with x = s - β where x > 0, else 0 (OSA Eq. 5); never negative, 0 for NaN.

    `similarity` is a number, a numpy array or a torch tensor of any shape, and the result is of the same kind; half precision
    becomes float32, because its steps are too coarse for cosines near β. The weight rises to 4/27 at x = 2/3 and falls beyond;
    `monotone` keeps it at 4/27, for image-image pairs, whose cosines are that large.

    >>> round(osa_weight(0.30, beta=0.215), 9)
    0.006610875
    >>> osa_weight(np.array([0.1, 0.215, 1.215]), beta=0.215).tolist()
    [0.0, 0.0, 0.0]
    """
    x = _clamped(similarity, beta, 2 / 3 if monotone else 1.0)
    return x * x * (1 - x)  # type: ignore[no-any-return]


def reference_weight(x: T) -> T:
    """Compute x² (1 - x²), as OSA's published code does for margins divided by the batch's largest; 0 outside (0, 1).

    >>> reference_weight(np.array([0.5, 1.0])).tolist()
    [0.1875, 0.0]
    """
    y = _clamped(x, 0.0, 1.0)
    return y * y * (1 - y * y)  # type: ignore[no-any-return]


def _clamped(values: Any, shift: float, most: float) -> Any:
    """Clamp values - shift to [0, most], NaN to 0; tensors stay tensors, numbers stay numbers, all else becomes an array."""
    if hasattr(values, "clamp"):  # a torch tensor, without importing torch
        wide = values.float() if values.is_floating_point() and values.element_size() < 4 else values
        return (wide - shift).clamp(0, most).nan_to_num(0.0)
    array = np.asarray(values)
    wide = array if array.dtype.kind == "f" and array.itemsize >= 4 else array.astype(np.result_type(array, np.float32))
    x = np.nan_to_num(np.clip(wide - shift, 0, most), nan=0.0)
    return float(x) if isinstance(values, float | int) else x[()]
