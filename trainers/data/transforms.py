"""Arrays to tensors, and where to crop a picture. What a target does to pictures is in noisegate.trainers.targets.pictures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["ArrayTensor", "crop_box"]

_TRIES = 10  # to fit a crop of the drawn area and aspect ratio


def crop_box(
    width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float], rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Left, top, right, bottom of a crop whose area and log aspect ratio are uniform; the largest that fits after ten tries."""
    for _ in range(_TRIES):
        area = width * height * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            left, top = int(rng.integers(width - wide + 1)), int(rng.integers(height - high + 1))
            return left, top, left + wide, top + high
    aspect = min(max(width / height, ratio[0]), ratio[1])
    wide = max(1, min(width, round(height * aspect)))
    high = max(1, min(height, round(width / aspect)))
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high


@dataclass(frozen=True)
class ArrayTensor:
    """An array of features as a tensor; floats become float32."""

    deterministic: ClassVar[bool] = True

    def __call__(self, array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.float() if tensor.is_floating_point() else tensor
