"""The picture half of a transformers processor, in Pillow alone: it runs in the decode workers, without torch."""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from PIL import Image

from noisegate.pipeline.errors import ConfigError

from .base import Pixels

_FILTERS = {2: "bilinear", 3: "bicubic"}  # the numbers that preprocessor_config.json holds are Pillow's


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

    def __call__(self, image: Image.Image) -> Pixels:
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
            raise ConfigError(
                f"model {name!r}: its processor resizes to {size or 'nothing'}; noisegate knows square pictures, "
                "such as {'shortest_edge': 224} or {'height': 224, 'width': 224}",
                "model",
                name,
            )
        edge = int(short or height or 0)
        cut = dict(setting("crop_size", {})) if crops else {"height": edge, "width": edge}
        if (short and not crops) or cut.get("height") != cut.get("width") or not 0 < int(cut["height"]) <= edge:
            raise ConfigError(
                f"model {name!r}: its processor crops {cut if crops else 'nothing'} after a resize to {size}; "
                "noisegate knows square crops, such as 224 of 224",
                "model",
                name,
            )
        resample = int(setting("resample", -1))
        if resample not in _FILTERS:
            raise ConfigError(
                f"model {name!r}: its processor resizes with filter {resample}; use 2 (bilinear) or 3 (bicubic)",
                "model",
                name,
            )
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
