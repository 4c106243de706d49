"""Decode and resize JPEGs on an NVIDIA GPU, for `--decoder gpu`.

Uses torchvision's decoder (nvJPEG). The tests replace it by a decoder on the CPU: this module was never run on a GPU.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.settings import Limits
from noisegate.pipeline.shards.decode import BadSample, orientation
from noisegate.pipeline.shards.pixels import decode_pixels
from noisegate.pipeline.shards.preprocess import Preprocess, ProcessorPixels

from .base import Pixels, describe_error
from .loading import allow_torchvision

P = TypeVar("P", Preprocess, ProcessorPixels)
DecodeJpegs = Callable[[list[torch.Tensor]], list[torch.Tensor]]
PIXELS_AT_ONCE = 50_000_000  # decoded together: 150 MB of the GPU's memory, and four times as much while resizing
_CHECKED = Limits(max_pixels=2**40, max_image_bytes=2**40, max_aspect=2**40)  # the workers check the run's limits


def load_torchvision(device: str) -> DecodeJpegs:
    """Return torchvision's decoder on `device` after one trial; raise ConfigError if it does not work."""
    if not device.startswith("cuda"):
        raise ConfigError.of("decoder", "gpu", f"needs an NVIDIA GPU, and the device is {device}; use fast")
    probe = io.BytesIO()
    Image.new("RGB", (16, 16)).save(probe, "JPEG")
    try:
        allow_torchvision()
        from torchvision.io import ImageReadMode, decode_jpeg

        def decode(files: list[torch.Tensor]) -> list[torch.Tensor]:
            pictures: list[torch.Tensor] = decode_jpeg(files, mode=ImageReadMode.RGB, device=device)
            return pictures

        decode([torch.frombuffer(bytearray(probe.getvalue()), dtype=torch.uint8)])
    except Exception as error:  # a build without CUDA, nvJPEG or a matching torch fails in many ways
        reason = describe_error(error, 160)
        raise ConfigError.of("decoder", "gpu", f"needs torchvision built for CUDA ({reason}); use fast") from error
    return decode


class GpuJpegs(Generic[P]):
    """Make one batch from the workers' results: decoded pictures (size, size, 3), and files of JPEGs as (N,) bytes.

    `decode` takes files and returns pictures (3, H, W) on `device`; a file that it refuses is decoded on the processor.
    """

    def __init__(self, preprocess: P, device: str, decode: DecodeJpegs) -> None:
        if preprocess.resize == "longest":
            raise ConfigError.of("decoder", "gpu", "does not pad pictures, as this model needs it; use fast")
        self._preprocess: P = preprocess
        self._device, self._decode = device, decode
        self._by_processor: P = replace(preprocess, decoder="fast")

    def __call__(self, pixels: Sequence[Pixels]) -> tuple[torch.Tensor, list[int]]:
        """Return the batch as (B, size, size, 3) uint8 on the device, and the rows of broken files, which are black."""
        rows: list[torch.Tensor | None] = [None if p.ndim == 1 else torch.from_numpy(p) for p in pixels]
        group: list[int] = []
        room = PIXELS_AT_ONCE
        for row, file in enumerate(pixels):
            if file.ndim == 1:
                width, height = _open(file).size
                if group and width * height > room:
                    self._decode_group(pixels, group, rows)
                    group, room = [], PIXELS_AT_ONCE
                group.append(row)
                room -= width * height
        self._decode_group(pixels, group, rows)
        broken = [row for row, picture in enumerate(rows) if picture is None]
        black = torch.zeros_like(next((r for r in rows if r is not None), self._black()))
        return torch.stack([(black if r is None else r).to(self._device, non_blocking=True) for r in rows]), broken

    def _black(self) -> torch.Tensor:
        return torch.from_numpy(self._by_processor(Image.new("RGB", (8, 8))))

    def _decode_group(self, pixels: Sequence[Pixels], group: list[int], rows: list[torch.Tensor | None]) -> None:
        """Decode some files together; if that fails, each alone, then on the processor."""
        if not group:
            return
        files = [torch.from_numpy(np.array(pixels[row])) for row in group]
        try:
            pictures = self._decode(files)
        except RuntimeError as error:
            if "CUDA" in str(error) or "out of memory" in str(error):  # the GPU's fault, not the file's
                raise
            if len(group) == 1:
                rows[group[0]] = self._decode_here(pixels[group[0]])
            else:
                for row in group:
                    self._decode_group(pixels, [row], rows)
            return
        for row, picture in zip(group, pictures, strict=True):
            rows[row] = self._resize(picture, orientation(_open(pixels[row])))

    def _decode_here(self, file: Pixels) -> torch.Tensor | None:
        try:
            return torch.from_numpy(decode_pixels(file.tobytes(), self._by_processor, _CHECKED))
        except BadSample:
            return None

    def _resize(self, picture: torch.Tensor, turned: int) -> torch.Tensor:
        """Turn a picture (3, H, W) upright, resize it and cut out its centre (size, size, 3)."""
        if turned >= 5:
            picture = picture.transpose(1, 2)
        flips = [axis for axis, turns in ((1, (3, 4, 7, 8)), (2, (2, 3, 6, 7))) if turned in turns]
        picture = picture.flip(flips) if flips else picture
        width, height = self._preprocess.target(picture.shape[2], picture.shape[1])
        # CUDA has no antialiased kernel for uint8
        resized = F.interpolate(
            picture[None].float(), size=(height, width), mode=self._preprocess.interpolation, antialias=True
        )
        pixels = resized[0].round_().clamp_(0, 255).to(torch.uint8).permute(1, 2, 0)
        cut: torch.Tensor = self._preprocess.cut(pixels)
        return cut


def _open(file: Pixels) -> Image.Image:
    return Image.open(io.BytesIO(file.tobytes()), formats=["JPEG"])
