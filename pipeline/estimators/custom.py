"""A user's own estimator, `python:module:factory`: nothing to inherit from, three names to have."""

import importlib
import string
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..decode import DECODER
from ..errors import ConfigError
from .base import Identity, Pixels

__all__ = ["CustomEstimator", "random_texts"]


class CustomEstimator:
    """Wraps an object with `encode_images(list of PIL images)`, `encode_texts(list of str)` and a string `identity`."""

    def __init__(self, inner: Any, name: str, batch_size: int | None = None) -> None:
        missing = [n for n in ("encode_images", "encode_texts", "identity") if not hasattr(inner, n)]
        if missing:
            raise ConfigError(f"model {name!r}: the object it returned has no {', '.join(missing)}")
        if not isinstance(inner.identity, str) or not inner.identity:
            raise ConfigError(f"model {name!r}: identity is {inner.identity!r}; give a string that names these weights")
        self._inner, self._name = inner, name
        self.batch_size = batch_size or 64
        self.preprocess = rgb_pixels
        self.identity = Identity(
            name, inner.identity, "by the estimator itself", DECODER, "its own", (("pillow", version("pillow")),)
        )

    @classmethod
    def load(cls, spec: str, batch_size: int | None = None) -> "CustomEstimator":
        """Import `python:module:factory`, call the factory and wrap what it returns."""
        parts = spec.split(":")
        if len(parts) != 3 or not all(parts):
            raise ConfigError(f"model {spec!r} must read python:MODULE:FACTORY, such as python:my_models:make_clip")
        try:
            factory = getattr(importlib.import_module(parts[1]), parts[2])
        except ImportError as error:
            raise ConfigError(
                f"model {spec!r}: module {parts[1]!r} cannot be imported ({error}); is it on PYTHONPATH?"
            ) from error
        except AttributeError as error:
            raise ConfigError(f"model {spec!r}: module {parts[1]!r} has no {parts[2]!r}") from error
        return cls(factory(), spec, batch_size)

    def encode_pixels(self, pixels: Sequence[Pixels]) -> NDArray[np.float32]:
        return self.encode_images([Image.fromarray(p) for p in pixels])

    def encode_images(self, images: Sequence[Image.Image]) -> NDArray[np.float32]:
        return self._call("encode_images", list(images))

    def encode_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self._call("encode_texts", list(texts))

    def encode_noise(self, count: int, rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Pictures of uniform noise (224 px) and strings of random letters."""
        pictures = [Image.fromarray(rng.integers(0, 256, (224, 224, 3), dtype=np.uint8)) for _ in range(count)]
        return self.encode_images(pictures), self.encode_texts(random_texts(count, rng))

    def _call(self, name: str, items: list[Any]) -> NDArray[np.float32]:
        parts = []
        for start in range(0, len(items), self.batch_size):
            batch = items[start : start + self.batch_size]
            rows = np.asarray(getattr(self._inner, name)(batch), dtype=np.float32)
            if rows.ndim != 2 or len(rows) != len(batch):
                raise ConfigError(
                    f"model {self._name!r}: {name} gave shape {rows.shape} for {len(batch)} items; want ({len(batch)}, d)"
                )
            parts.append(rows)
        return np.concatenate(parts) if parts else np.zeros((0, 0), np.float32)


def rgb_pixels(image: Image.Image) -> Pixels:
    """The whole picture as (H, W, 3) uint8, for estimators that resize by themselves."""
    return np.asarray(image.convert("RGB"), dtype=np.uint8)


def random_texts(count: int, rng: np.random.Generator) -> list[str]:
    """Strings of 40 random letters, digits and spaces, for estimators whose tokens noisegate does not see."""
    letters = np.array(list(string.ascii_lowercase + string.digits + "    "))
    return ["".join(rng.choice(letters, 40)) for _ in range(count)]
