"""Resize and crop a decoded picture to the pixels an encoder takes, with Pillow alone, for open_clip and transformers.

Runs in the decode workers, so nothing here imports torch. The result is uint8 (H, W, 3); scaling to [0, 1] and
normalising happen on the device. Equal to open_clip's inference transform (a test compares them).
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from noisegate.pipeline.errors import ConfigError

_FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


@dataclass(frozen=True)
class Preprocess:
    """How an RGB picture becomes (size, size, 3) uint8 pixels, and the normalisation that follows on the device.

    `shortest` fits the short side and crops the centre (CLIP), `squash` ignores the aspect ratio (SigLIP), `longest` fits
    the long side and pads with `fill`.

    >>> Preprocess(size=4)(Image.new("RGB", (9, 5))).shape
    (4, 4, 3)
    """

    size: int = 224
    resize: Literal["shortest", "squash", "longest"] = "shortest"
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    mean: tuple[float, ...] = (0.48145466, 0.4578275, 0.40821073)
    std: tuple[float, ...] = (0.26862954, 0.26130258, 0.27577711)
    fill: int = 0
    draft: bool = field(default=False, repr=False)  # the decoder's part of the identity has it

    @property
    def least_side(self) -> int | None:
        """The shortest side, in pixels, to which a JPEG may shrink while it is decoded; None decodes it at full size."""
        return self.size if self.draft else None

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError.of("size", self.size, "is not a picture size; CLIP models use 224")
        if self.resize not in ("shortest", "squash", "longest"):
            raise ConfigError.of("resize", self.resize, "is unknown; use 'shortest', 'squash' or 'longest'")
        if self.interpolation not in _FILTERS:
            raise ConfigError.of("interpolation", self.interpolation, "is unknown; use 'bicubic' or 'bilinear'")

    def __call__(self, image: Image.Image) -> NDArray[np.uint8]:
        width, height = image.size
        kind = _FILTERS[self.interpolation]
        if self.resize == "squash":
            image = image.resize((self.size, self.size), kind)
        elif self.resize == "shortest":
            short, long = min(width, height), max(width, height)
            long = max(self.size, int(self.size * long / short))
            target = (self.size, long) if width <= height else (long, self.size)
            image = _crop_centre(image.resize(target, kind) if target != image.size else image, self.size, self.fill)
        else:
            ratio = max(width, height) / self.size
            target = (max(1, round(width / ratio)), max(1, round(height / ratio)))
            image = _crop_centre(image.resize(target, kind), self.size, self.fill)
        return np.asarray(image.convert("RGB"), dtype=np.uint8)


def _crop_centre(image: Image.Image, size: int, fill: int) -> Image.Image:
    """Crop the central size x size of a picture, padded where it is smaller."""
    width, height = image.size
    if width < size or height < size:
        left, top = max(0, (size - width) // 2), max(0, (size - height) // 2)
        border = (left, top, max(0, size - width - left), max(0, size - height - top))
        image = ImageOps.expand(image, border, fill=(fill, fill, fill) if image.mode == "RGB" else fill)
        width, height = image.size
    left, top = round((width - size) / 2.0), round((height - size) / 2.0)
    return image.crop((left, top, left + size, top + size))


@dataclass(frozen=True)
class ProcessorPixels:
    """An RGB picture as (crop, crop, 3) uint8 pixels, and the normalisation of pixels / 255 that follows on the device.

    The short side (`shortest`: CLIP) or both sides (`squash`: SigLIP, ALIGN) become `size`, then the centre is cut out.
    Transformers rounds the corner of the cut down; torchvision, and so open_clip, rounds it to even.

    >>> ProcessorPixels(8, 6, "squash", "bilinear", (0.5,) * 3, (0.5,) * 3)(Image.new("RGB", (9, 5))).shape
    (6, 6, 3)
    """

    size: int
    crop: int
    resize: Literal["shortest", "squash"]
    interpolation: Literal["bicubic", "bilinear"]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    draft: bool = field(default=False, repr=False)

    @property
    def least_side(self) -> int | None:
        """As in `Preprocess`."""
        return self.size if self.draft else None

    def __call__(self, image: Image.Image) -> NDArray[np.uint8]:
        width, height = image.size
        target = (self.size, self.size)
        if self.resize == "shortest":
            long = int(self.size * max(width, height) / min(width, height))
            target = (self.size, long) if width <= height else (long, self.size)
        image = image.resize(target, Image.Resampling[self.interpolation.upper()])
        left, top = (target[0] - self.crop) // 2, (target[1] - self.crop) // 2
        return np.asarray(image.crop((left, top, left + self.crop, top + self.crop)).convert("RGB"), dtype=np.uint8)

    @classmethod
    def of(cls, processor: Any, name: str, draft: bool = False) -> "ProcessorPixels":
        """Read the steps off a transformers image processor; `name` is the model's, for messages."""

        def setting(key: str, default: Any = None) -> Any:
            value = getattr(processor, key, None)
            return default if value is None else value

        size, crops = dict(setting("size", {})), setting("do_center_crop", False)
        short, height, width = size.get("shortest_edge"), size.get("height"), size.get("width")
        if not setting("do_resize", False) or size.get("longest_edge") or not (short or (height and height == width)):
            raise ConfigError.of("model", name, f"resizes to {size or 'nothing'}; use one with a square size")
        edge = int(short or height or 0)
        cut = dict(setting("crop_size", {})) if crops else {"height": edge, "width": edge}
        if (short and not crops) or cut.get("height") != cut.get("width") or not 0 < int(cut["height"]) <= edge:
            raise ConfigError.of("model", name, f"crops {cut if crops else 'nothing'} of {size}; use a square crop")
        resample = int(setting("resample", -1))
        if resample not in (2, 3):  # Pillow's numbers
            raise ConfigError.of("model", name, f"resizes with filter {resample}; use 2 (bilinear) or 3 (bicubic)")
        # pixel * factor - offset, then (· - mean) / std, is (pixel / 255 - mean') / std' with the two numbers below.
        factor = 255 * (float(setting("rescale_factor", 1 / 255)) if setting("do_rescale", False) else 1.0)
        offset = 1.0 if setting("do_rescale", False) and setting("rescale_offset", False) else 0.0
        normalised = setting("do_normalize", False)
        mean = tuple(setting("image_mean")) if normalised else (0.0,) * 3
        std = tuple(setting("image_std")) if normalised else (1.0,) * 3
        return cls(
            size=edge,
            crop=int(cut["height"]),
            resize="shortest" if short else "squash",
            interpolation="bilinear" if resample == 2 else "bicubic",
            mean=tuple((m + offset) / factor for m in mean),
            std=tuple(s / factor for s in std),
            draft=draft,
        )
