"""Pictures to tensors: for evaluation always the same, for training with a crop, a flip and colours drawn per sample.

Pillow and torch alone. Training transforms take `rng`, the sample's own generator, so that what is drawn follows from
(seed, epoch, row); others' transforms can be used instead, see WeightedShards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance
from torch import Tensor

from pipeline.errors import ConfigError
from pipeline.preprocess import Preprocess

__all__ = ["ArrayTensor", "EvalImage", "TrainImage"]

_FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
_TRIES = 10  # to fit a crop of the drawn area and aspect ratio


def to_tensor(pixels: NDArray[np.uint8], mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """(H, W, 3) uint8 to (3, H, W) float32, normalised."""
    scaled = torch.from_numpy(pixels.copy()).permute(2, 0, 1).float().div_(255)
    return scaled.sub_(torch.tensor(mean).view(-1, 1, 1)).div_(torch.tensor(std).view(-1, 1, 1)).contiguous()


@dataclass(frozen=True)
class EvalImage:
    """Resize, crop the centre, normalise: what the estimators do (pipeline.preprocess).

    >>> EvalImage(Preprocess(size=8))(Image.new("RGB", (20, 10))).shape
    torch.Size([3, 8, 8])
    """

    preprocess: Preprocess = field(default_factory=Preprocess)
    deterministic: ClassVar[bool] = True

    def __call__(self, image: Image.Image) -> Tensor:
        return to_tensor(self.preprocess(image), self.preprocess.mean, self.preprocess.std)


@dataclass(frozen=True)
class TrainImage:
    """A random part of the picture, resized; mirrored half the time; brightness, contrast, saturation and hue changed.

    `scale`: share of the area, `ratio`: width over height, drawn as torchvision's RandomResizedCrop does. `jitter`: how far
    brightness, contrast and saturation may go from 1, and hue from 0 (of a turn, at most 0.5), in that order.
    `scale=(1, 1), ratio=None` takes the whole picture as EvalImage does.
    """

    preprocess: Preprocess = field(default_factory=Preprocess)
    scale: tuple[float, float] = (0.9, 1.0)
    ratio: tuple[float, float] | None = (3 / 4, 4 / 3)
    flip: float = 0.5
    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ConfigError(f"crop scale {self.scale} is not a range of areas; use (0.9, 1.0)")
        if self.ratio is not None and not 0 < self.ratio[0] <= self.ratio[1]:
            raise ConfigError(f"crop ratio {self.ratio} is not a range of width over height; use (0.75, 1.333)")
        if not 0 <= self.flip <= 1:
            raise ConfigError(f"flip {self.flip} is not a probability; use 0.5, or 0 where left and right matter")
        if min(self.jitter) < 0 or max(self.jitter[:3]) > 1 or self.jitter[3] > 0.5:
            raise ConfigError(f"jitter {self.jitter} is out of range; use (0.4, 0.4, 0.4, 0.1)")

    def __call__(self, image: Image.Image, rng: np.random.Generator) -> Tensor:
        if self.ratio is None:
            image = Image.fromarray(self.preprocess(image))
        else:
            size = self.preprocess.size
            box = crop_box(image.width, image.height, self.scale, self.ratio, rng)
            image = image.resize((size, size), _FILTERS[self.preprocess.interpolation], box=box)
        if rng.random() < self.flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        image = _jittered(image, self.jitter, rng)
        return to_tensor(np.asarray(image), self.preprocess.mean, self.preprocess.std)


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


def _jittered(image: Image.Image, jitter: tuple[float, float, float, float], rng: np.random.Generator) -> Image.Image:
    kinds = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    for kind, width in zip(kinds, jitter, strict=False):
        if width:
            image = kind(image).enhance(rng.uniform(1 - width, 1 + width))
    if jitter[3]:
        turn = round(256 * rng.uniform(-jitter[3], jitter[3]))
        hue, saturation, value = image.convert("HSV").split()
        hue = hue.point([(level + turn) % 256 for level in range(256)])
        image = Image.merge("HSV", (hue, saturation, value)).convert("RGB")
    return image


@dataclass(frozen=True)
class ArrayTensor:
    """An array of features as a tensor; floats become float32."""

    deterministic: ClassVar[bool] = True

    def __call__(self, array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.float() if tensor.is_floating_point() else tensor
