"""Transform pictures and precomputed features to inputs of a target, in the data workers."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.settings import Limits
from noisegate.pipeline.shards import (
    Preprocess,
    ProcessorPixels,
    decode_array,
    decode_image,
    decode_pixels,
    resize_pixels,
)

_RATIO = (3 / 4, 4 / 3)  # width over height of a random crop
_TRIES = 10  # tries to fit a crop of random area and aspect ratio


class Augment(BaseModel):
    """Augmentation of training pictures: a random crop by share of the area, and mirroring with probability `flip`.

    Captions with "left" and "right" are wrong for mirrored pictures, so flip is 0 by default.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    crop: tuple[float, float] | None = (0.9, 1.0)
    flip: float = Field(default=0.0, ge=0, le=1)

    @field_validator("crop")
    @classmethod
    def _a_share(cls, crop: tuple[float, float] | None) -> tuple[float, float] | None:
        if crop is not None and not 0 < crop[0] <= crop[1] <= 1:
            raise ValueError("give two shares of the area, for example [0.9, 1.0], or null")
        return crop


@dataclass(frozen=True)
class PictureTransform:
    """Convert a picture, Pillow's or (H, W, 3), to uint8 (3, size, size).

    Random parts draw from `rng`, or without one from torch's generator.
    """

    preprocess: Preprocess
    augment: Augment | None = None

    @property
    def deterministic(self) -> bool:
        """Whether the transform uses no random numbers."""
        return self.augment is None or (self.augment.crop is None and not self.augment.flip)

    @property
    def least_side(self) -> int | None:
        """Like `Preprocess.least_side`, for the smallest random crop."""
        least = self.preprocess.least_side
        if least is None or self.augment is None or self.augment.crop is None:
            return least
        return math.ceil(least / math.sqrt(self.augment.crop[0] * _RATIO[0]))

    def decode(self, data: bytes, limits: Limits, rng: np.random.Generator | None = None) -> Tensor:
        """Decode a file as `annotate` does, and transform it; raise BadSample for a bad one."""
        if self.deterministic:
            return channels_first(decode_pixels(data, self.preprocess, limits))
        if self.preprocess.decoder == "pillow":
            return self(decode_image(data, limits), rng)
        return self(decode_array(data, limits, self.least_side), rng)

    def __call__(self, image: Image.Image | NDArray[np.uint8], rng: np.random.Generator | None = None) -> Tensor:
        if isinstance(image, Image.Image):
            image = image.convert("RGB")
        if self.augment is None or self.deterministic:
            return channels_first(self.preprocess(image))
        rng = np.random.default_rng(int(torch.randint(2**62, ()))) if rng is None else rng
        if self.augment.crop is not None:
            size, interpolation = self.preprocess.size, self.preprocess.interpolation
            if self.preprocess.decoder == "pillow":
                picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
                box = crop_box(*picture.size, self.augment.crop, _RATIO, rng)
                kind = Image.Resampling[interpolation.upper()]
                pixels: NDArray[np.uint8] = np.asarray(picture.resize((size, size), kind, box=box), dtype=np.uint8)
            else:
                whole = np.array(image) if isinstance(image, Image.Image) else image
                left, top, right, bottom = crop_box(whole.shape[1], whole.shape[0], self.augment.crop, _RATIO, rng)
                pixels = resize_pixels(whole[top:bottom, left:right], size, size, interpolation)
        else:
            pixels = self.preprocess(image)
        if self.augment.flip and rng.random() < self.augment.flip:
            pixels = pixels[:, ::-1]
        return channels_first(pixels)


def crop_box(
    width: int, height: int, scale: tuple[float, float], ratio: tuple[float, float], rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Draw left, top, right, bottom of a crop, uniform in area and log aspect ratio; after ten tries the largest crop."""
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


def channels_first(pixels: NDArray[np.uint8]) -> Tensor:
    """Convert (H, W, 3) to a tensor (3, H, W)."""
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


@dataclass(frozen=True)
class FeatureTransform:
    """Convert an array (K, width) or (width,) to float32 (parts, width): extra rows are cut off, missing rows are zeros.

    >>> FeatureTransform(parts=3, width=2)(np.ones((2, 2))).tolist()
    [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]
    """

    parts: int
    width: int
    deterministic: ClassVar[bool] = True

    def __call__(self, features: NDArray[np.floating] | Tensor) -> Tensor:
        rows = torch.as_tensor(np.asarray(features, dtype=np.float32))
        rows = rows.unsqueeze(0) if rows.ndim == 1 else rows
        if rows.ndim != 2 or rows.shape[1] != self.width:
            shape = tuple(np.shape(features))
            problem = f"does not fit features of shape {shape}; they must be (K, {self.width}) or ({self.width},)"
            raise ConfigError.of("target.features", self.width, problem)
        padded = rows.new_zeros(self.parts, self.width)
        padded[: len(rows)] = rows[: self.parts]
        return padded


def pixel_scaling(preprocess: Preprocess | ProcessorPixels) -> tuple[Tensor, Tensor]:
    """Return offset and divisor for pixels in 0..255, (1, 3, 1, 1) each."""
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) * 255 for values in (preprocess.mean, preprocess.std))
    return mean, std
