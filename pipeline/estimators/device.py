"""The device and the precision of an encoder."""

import contextlib
from dataclasses import dataclass
from typing import Any

import torch

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system.machine import reuse_memory

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
        """Move a module to the device for inference; on a CPU, keep freed memory for the next batch."""
        if self.name.startswith("cpu"):
            reuse_memory()
        return model.eval().to(self.name, memory_format=torch.channels_last)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Compute in the chosen type; does nothing in float32."""
        if self.dtype_name == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.name.split(":")[0], dtype=_DTYPES[self.dtype_name])
