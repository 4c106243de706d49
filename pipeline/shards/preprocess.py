"""Resize and crop a decoded picture to the pixels an encoder takes, for open_clip and transformers.

Runs in the decode workers. The result is uint8 (H, W, 3); scaling to [0, 1] and normalising happen on the device. With the
decoder `pillow` it equals open_clip's inference transform (a test compares them); the others resize with torch.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from noisegate.pipeline.errors import ConfigError

_FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
SPARE = 3  # a scaled JPEG keeps at least this many pixels per side for each pixel of the model (benchmarks/decode.py)


class _Resizer:
    """Common steps of both kinds of preprocessing: decode at reduced size, resize to `target`, `cut`."""

    size: int
    interpolation: Literal["bicubic", "bilinear"]
    draft: bool
    decoder: str

    def target(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height to which such a picture is resized before cropping."""
        raise TypeError(f"{type(self).__name__} does not say to which size it resizes")

    def cut(self, pixels: Any) -> Any:
        """Cut the centre out of resized pixels (H, W, 3), numpy's or torch's."""
        raise TypeError(f"{type(self).__name__} does not say what it cuts out")

    @property
    def least_side(self) -> int | None:
        """The shortest side, in pixels, to which a JPEG may shrink while it is decoded; None decodes it at full size."""
        if self.draft:
            return self.size
        return SPARE * self.size if self.decoder != "pillow" else None

    def __call__(
        self, image: Image.Image | NDArray[np.uint8], size: tuple[int, int] | None = None
    ) -> NDArray[np.uint8]:
        """Preprocess an RGB picture, Pillow's or (H, W, 3); `size` is its full size if it was decoded at a fraction of it."""
        resized = _resize(image, size or _size(image), self.target, self.interpolation, self.decoder)
        return np.ascontiguousarray(self.cut(resized))


@dataclass(frozen=True)
class Preprocess(_Resizer):
    """How an RGB picture becomes (size, size, 3) uint8 pixels, and the normalisation that follows on the device.

    `shortest` fits the short side and crops the centre (CLIP), `squash` ignores the aspect ratio (SigLIP), `longest` fits
    the long side and pads with `fill`. `decoder` is one of `pixels.py`.

    >>> Preprocess(size=4)(Image.new("RGB", (9, 5))).shape
    (4, 4, 3)
    """

    size: int = 224
    resize: Literal["shortest", "squash", "longest"] = "shortest"
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    mean: tuple[float, ...] = (0.48145466, 0.4578275, 0.40821073)
    std: tuple[float, ...] = (0.26862954, 0.26130258, 0.27577711)
    fill: int = 0
    draft: bool = field(default=False, repr=False)  # part of the decoder's description in the identity
    decoder: str = field(default="pillow", repr=False)

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError.of("size", self.size, "is not a picture size; CLIP models use 224")
        if self.resize not in ("shortest", "squash", "longest"):
            raise ConfigError.of("resize", self.resize, "is unknown; use 'shortest', 'squash' or 'longest'")
        if self.interpolation not in _FILTERS:
            raise ConfigError.of("interpolation", self.interpolation, "is unknown; use 'bicubic' or 'bilinear'")

    def target(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height to which such a picture is resized before cropping."""
        if self.resize == "squash":
            return self.size, self.size
        if self.resize == "shortest":
            long = max(self.size, int(self.size * max(width, height) / min(width, height)))
            return (self.size, long) if width <= height else (long, self.size)
        ratio = max(width, height) / self.size
        return max(1, round(width / ratio)), max(1, round(height / ratio))

    def cut(self, pixels: Any) -> Any:
        """Cut the centre out of resized pixels (H, W, 3), numpy's or torch's; numpy's are padded if they are smaller."""
        height, width = pixels.shape[:2]
        if width < self.size or height < self.size:
            left, top = max(0, (self.size - width) // 2), max(0, (self.size - height) // 2)
            below, right = max(0, self.size - height - top), max(0, self.size - width - left)
            pixels = np.pad(pixels, ((top, below), (left, right), (0, 0)), constant_values=self.fill)
            height, width = pixels.shape[:2]
        top, left = round((height - self.size) / 2), round((width - self.size) / 2)
        return pixels[top : top + self.size, left : left + self.size]


def _size(image: Image.Image | NDArray[np.uint8]) -> tuple[int, int]:
    return image.size if isinstance(image, Image.Image) else (image.shape[1], image.shape[0])


def _rgb(image: Image.Image) -> Image.Image:
    return image if image.mode == "RGB" else image.convert("RGB")  # convert would copy an RGB image too


def _resize(
    image: Image.Image | NDArray[np.uint8],
    size: tuple[int, int],
    target: Callable[[int, int], tuple[int, int]],
    interpolation: Literal["bicubic", "bilinear"],
    decoder: str,
) -> NDArray[np.uint8]:
    width, height = target(*size)
    if decoder == "pillow":
        picture = _rgb(image if isinstance(image, Image.Image) else Image.fromarray(image))
        if picture.size != (width, height):
            picture = picture.resize((width, height), _FILTERS[interpolation])
        return np.asarray(picture)
    from .resize import resize_pixels

    pixels = np.array(_rgb(image)) if isinstance(image, Image.Image) else image
    return resize_pixels(pixels, width, height, interpolation, size)


@dataclass(frozen=True)
class ProcessorPixels(_Resizer):
    """An RGB picture as (crop, crop, 3) uint8 pixels, and the normalisation of pixels / 255 that follows on the device.

    The short side (`shortest`: CLIP) or both sides (`squash`: SigLIP, ALIGN) become `size`, then the centre is cut out.
    Transformers rounds the corner of the crop down; torchvision, and therefore open_clip, rounds it to even.

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
    decoder: str = field(default="pillow", repr=False)

    def target(self, width: int, height: int) -> tuple[int, int]:
        """As in `Preprocess`."""
        if self.resize == "squash":
            return self.size, self.size
        long = int(self.size * max(width, height) / min(width, height))
        return (self.size, long) if width <= height else (long, self.size)

    def cut(self, pixels: Any) -> Any:
        """Cut the centre out of resized pixels (H, W, 3), numpy's or torch's."""
        top, left = (pixels.shape[0] - self.crop) // 2, (pixels.shape[1] - self.crop) // 2
        return pixels[top : top + self.crop, left : left + self.crop]

    @classmethod
    def of(cls, processor: Any, name: str, draft: bool = False, decoder: str = "pillow") -> "ProcessorPixels":
        """Read the steps from a transformers image processor; `name` is the model's name, for messages."""

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
        if resample not in (2, 3):  # Pillow's codes for bilinear and bicubic
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
            decoder=decoder,
        )
