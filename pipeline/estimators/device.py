"""The device and precision of an encoder, and what estimators of torch models share."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.shards.preprocess import Preprocess, ProcessorPixels
from noisegate.pipeline.system.machine import reuse_memory

from .base import Pixels, length_batches
from .gpu_jpegs import GpuJpegs, load_torchvision

P = TypeVar("P", Preprocess, ProcessorPixels)
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Device:
    """A torch device and the number type that encoders compute in.

    >>> Device.choose("cpu").dtype_name
    'float32'
    """

    name: str
    dtype_name: str

    @classmethod
    def choose(cls, device: str = "auto", dtype: str = "auto") -> "Device":
        """Check the choice; `auto` takes the first GPU, in bfloat16 if native, else float16; a CPU computes in float32."""
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        kind, _, number = device.partition(":")
        if kind not in ("cpu", "cuda", "mps") or (":" in device and not (number.isascii() and number.isdigit())):
            raise ConfigError.of("device", device, "is unknown; use auto, cpu, cuda, cuda:0 or mps")
        if kind == "cuda" and not torch.cuda.is_available():
            raise ConfigError(f"device {device!r}: torch sees no GPU here; use --device cpu", "device", device)
        if kind == "cuda" and number and int(number) >= torch.cuda.device_count():
            raise ConfigError.of("device", device, f"is not among {torch.cuda.device_count()} GPUs; use cuda:0")
        if kind == "mps" and not torch.backends.mps.is_available():
            raise ConfigError(f"device {device!r}: torch sees no Apple GPU here; use --device cpu", "device", device)
        if dtype == "auto":
            half = "bfloat16" if kind == "cuda" and torch.cuda.is_bf16_supported() else "float16"
            dtype = half if kind == "cuda" else "float32"
        if dtype not in _DTYPES:
            raise ConfigError.of("dtype", dtype, "is unknown; use auto, float32, bfloat16 or float16")
        return cls(device, dtype)

    @property
    def batch_size(self) -> int:
        """Default batch size: keeps the device busy and fits its memory, for models up to ViT-L."""
        return 64 if self.name.startswith("cpu") else 256

    def place(self, model: Any) -> Any:
        """Move a module to the device for inference; freed memory is kept for the next batch of pixels."""
        reuse_memory()
        return model.eval().to(self.name, memory_format=torch.channels_last)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Compute in the chosen type; does nothing in float32."""
        if self.dtype_name == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.name.split(":")[0], dtype=_DTYPES[self.dtype_name])


class TorchEstimator(Generic[P]):
    """Encode pictures and texts in batches on a device: the shared part of open_clip's and transformers' estimators.

    A subclass gives the width of its embeddings (`_width`) and embeds a batch of normalised pictures.
    """

    def __init__(self, device: Device, batch_size: int | None, preprocess: P) -> None:
        self._device = device
        self.preprocess: P = preprocess
        self.batch_size = batch_size or device.batch_size
        self.jpegs: GpuJpegs[P] | None = None
        if preprocess.decoder == "gpu":
            self.jpegs = GpuJpegs(preprocess, device.name, load_torchvision(device.name))
        self._mean = torch.tensor(preprocess.mean, device=device.name).view(1, 3, 1, 1)
        self._std = torch.tensor(preprocess.std, device=device.name).view(1, 3, 1, 1)

    @torch.inference_mode()
    def encode_pixels(self, pixels: Sequence[Pixels]) -> NDArray[np.float32]:
        return self._in_batches(pixels, self._encode_pixel_batch)

    def encode_images(self, images: Sequence[Image.Image]) -> NDArray[np.float32]:
        return self.encode_pixels([self.preprocess(image.convert("RGB")) for image in images])

    def _width(self) -> int:
        raise NotImplementedError

    def _encode_image_tensor(self, batch: torch.Tensor) -> torch.Tensor:
        """Embed normalised pictures (N, 3, H, W)."""
        raise NotImplementedError

    def _encode_pixel_batch(self, pixels: Sequence[Pixels]) -> torch.Tensor:
        return self._encode_image_tensor(self._normalise_pixels(pixels))

    def _normalise_pixels(self, pixels: Sequence[Pixels]) -> torch.Tensor:
        if self.jpegs is None and self._device.name == "cpu":
            return self._normalise_here(pixels)
        if self.jpegs is not None:
            batch, broken = self.jpegs(pixels)
        else:
            batch, broken = torch.from_numpy(np.stack(pixels)).to(self._device.name, non_blocking=True), []
        floats = batch.permute(0, 3, 1, 2).float().div_(255).sub_(self._mean).div_(self._std)
        if broken:
            floats[broken] = torch.nan  # so that their embedding is invalid
        return floats

    def _normalise_here(self, pixels: Sequence[Pixels]) -> torch.Tensor:
        """Normalise picture by picture: the same numbers in a third of the time, because one picture fits the CPU cache."""
        height, width, channels = pixels[0].shape
        batch = np.empty((len(pixels), height, width * channels), np.float32)
        mean, std = (np.tile(values.numpy().reshape(-1), width) for values in (self._mean, self._std))
        for row, picture in zip(batch, pixels, strict=True):
            row[...] = picture.reshape(height, -1)
            row /= np.float32(255)
            row -= mean
            row /= std
        return torch.from_numpy(batch.reshape(len(pixels), height, width, channels)).permute(0, 3, 1, 2)

    def _place(self, batch: torch.Tensor) -> torch.Tensor:
        return batch.to(self._device.name).contiguous(memory_format=torch.channels_last)

    def _in_batches(self, items: Sequence[Any], encode: Callable[[Any], torch.Tensor]) -> NDArray[np.float32]:
        starts = range(0, len(items), self.batch_size)
        parts = [encode(items[start : start + self.batch_size]).float().cpu().numpy() for start in starts]
        return np.concatenate(parts) if parts else np.zeros((0, self._width()), np.float32)

    def _by_length(self, lengths: Sequence[int], encode: Callable[[list[int]], torch.Tensor]) -> NDArray[np.float32]:
        """Encode texts of these lengths in batches of similar length; `encode` embeds the texts at some positions."""
        batches = length_batches(lengths, self.batch_size)
        parts = [encode(batch).float().cpu().numpy() for batch in batches]
        embedded = np.empty((len(lengths), parts[0].shape[1]), np.float32)
        embedded[np.concatenate(batches)] = np.concatenate(parts)
        return embedded
