"""Load an estimator by its name, or wrap a user's own; only the libraries of the requested kind are imported."""

import importlib
import string
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.settings import check_decoder
from noisegate.pipeline.shards.pixels import describe_decoder

from .base import Estimator, Identity, Pixels, describe_error, library_versions


@dataclass(frozen=True)
class ModelSpec:
    """Name and options of an estimator that is not loaded yet; a run records them so that `verify` can load it again."""

    model: str = "embedded"
    pretrained: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    batch_size: int | None = None
    draft: bool = False
    compile: bool = False
    decoder: str = "auto"

    @property
    def is_fast(self) -> bool:
        """Whether its pictures go through the fast decoder."""
        return self.decoder in ("auto", "fast") and not self.model.startswith("python:")

    def __call__(self) -> Estimator:
        return load_estimator(**vars(self))

    def describe_outside(self) -> str | None:
        """Describe foreign code or files that loading would use; None for `embedded` and for open_clip's names with a tag.

        >>> ModelSpec("python:tables.helper:make").describe_outside()
        'runs code of the module tables.helper'
        >>> ModelSpec("ViT-B-32", "openai").describe_outside()
        """
        kind, colon, place = self.model.partition(":")
        if kind == "python":
            return f"runs code of the module {place.partition(':')[0]}"
        if kind == "local-dir":
            return f"reads the model in the folder {place}"
        if colon:  # hf: and hf-hub: name a folder or a repository that anyone can create
            return f"reads the model {place}, from a folder or the hub"
        if self.pretrained and Path(self.pretrained).expanduser().is_file():
            return f"reads weights from the file {self.pretrained}"
        return None

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, without the device and `compile`, which change scores only by rounding."""
        drafted = {"draft": True} if self.draft else {}
        values = {"model": self.model, "pretrained": self.pretrained, "dtype": self.dtype, "decoder": self.decoder}
        return values | drafted


def load_estimator(
    model: str = "embedded",
    pretrained: str | None = None,
    *,
    device: str = "auto",
    dtype: str = "auto",
    batch_size: int | None = None,
    draft: bool = False,
    compile: bool = False,
    decoder: str = "auto",
) -> Estimator:
    """Load an image-text model.

    `model` is `embedded` (drawn scenes only, for trials), an open_clip name such as `ViT-B-32` with `pretrained` a tag or
    a checkpoint file, `hf-hub:ORG/NAME`, `local-dir:FOLDER`, `hf:NAME` (transformers: CLIP, ALIGN, SigLIP) or
    `python:MODULE:FACTORY`. With `draft` large JPEGs are decoded at a fraction of their size (`decode_image`): faster, with
    slightly different scores and therefore a different identity. With `compile` the vision tower of an open_clip model is
    compiled with torch, and used if its results agree and it is faster; the estimator's `notes` say which. `decoder` is
    `pillow`, `fast`, `gpu` or `auto`: fast, or pillow for a model with its own resizing. Raises ConfigError for options that
    cannot work.
    """
    check_decoder(decoder, draft)
    if batch_size is not None and batch_size < 1:
        raise ConfigError.of("batch-size", batch_size, "is not a batch; leave it out or use 64")
    if pretrained is not None and model.startswith(("python:", "hf:")):
        raise ConfigError.of("pretrained", pretrained, f"does not fit {model}, which brings its weights; leave it out")
    if compile and model.startswith(("python:", "hf:")):
        raise ConfigError.of("compile", True, f"is for open_clip's models such as ViT-B-32, not {model}; leave it out")
    if model.startswith("python:"):
        for name, value in (("device", device), ("dtype", dtype)):
            if value != "auto":
                raise ConfigError.of(name, value, f"is what {model} chooses by itself; leave it out")
        if draft:
            raise ConfigError.of("draft", True, f"shrinks JPEGs, and {model} resizes by itself; leave it out")
        if decoder not in ("auto", "pillow"):
            raise ConfigError.of("decoder", decoder, f"resizes pictures, and {model} does that by itself; leave it out")
        return CustomEstimator.load(model, batch_size)
    from .device import Device

    place = Device.choose(device, dtype)
    decoder = "fast" if decoder == "auto" else decoder
    if model.startswith("hf:"):
        from .transformers_model import TransformersEstimator

        return TransformersEstimator.load(model, place, batch_size, draft, decoder)
    from .openclip import OpenClipEstimator

    return OpenClipEstimator.load(model, pretrained, place, batch_size, draft, compile, decoder)


def as_estimator(given: Any) -> Estimator:
    """Return an estimator: the one given, the result of the given function, or a wrapped object as in `python:`."""
    if isinstance(given, type) or not hasattr(given, "encode_images"):
        if not callable(given):
            raise ConfigError.of("estimator", str(given), "is not one; load one with load_estimator('embedded')")
        given = given()
    if isinstance(getattr(given, "identity", None), Identity):
        made: Estimator = given
        return made
    return CustomEstimator(given, f"python:{type(given).__module__}:{type(given).__name__}")


class CustomEstimator:
    """Wraps an object with `encode_images(list of PIL images)`, `encode_texts(list of str)` and a string `identity`."""

    def __init__(self, inner: Any, name: str, batch_size: int | None = None) -> None:
        missing = [n for n in ("encode_images", "encode_texts", "identity") if not hasattr(inner, n)]
        if missing:
            raise ConfigError.of("model", name, f"made a {type(inner).__name__} without {', '.join(missing)}")
        if not isinstance(inner.identity, str) or not inner.identity:
            raise ConfigError.of("model", name, f"has identity {inner.identity!r}; give a string naming its weights")
        self._inner, self._name = inner, name
        self.batch_size = batch_size or 64
        self.preprocess = rgb_pixels
        self._width = self._common_width()
        if hasattr(inner, "find_truncated"):
            self.find_truncated = inner.find_truncated  # optional
        self.identity = Identity(
            name,
            inner.identity,
            "by the estimator itself",
            describe_decoder("pillow"),
            "its own",
            library_versions("pillow", decoder="pillow"),
        )

    @classmethod
    def load(cls, spec: str, batch_size: int | None = None) -> "CustomEstimator":
        """Import `python:module:factory`, call the factory and wrap what it returns."""
        parts = spec.split(":")
        if len(parts) != 3 or not all(parts):
            raise ConfigError.of("model", spec, "must read python:MODULE:FACTORY, such as python:my_models:make_clip")
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.append(here)  # at the end, so that the folder shadows no other module
        try:
            module = importlib.import_module(parts[1])
        except ModuleNotFoundError as error:
            raise ConfigError.of("model", spec, f"cannot be found ({error}); is it here or on PYTHONPATH?") from error
        except Exception as error:  # the module is the user's: it may raise anything
            raise ConfigError.of("model", spec, f"cannot be imported: {describe_error(error)}") from error
        factory = getattr(module, parts[2], None)
        if not callable(factory):
            what = f"has no {parts[2]!r}" if factory is None else f"has a {parts[2]!r} that cannot be called"
            raise ConfigError.of("model", spec, f"does not work: {parts[1]} {what}; name a function that makes one")
        try:
            inner = factory()
        except Exception as error:
            raise ConfigError(f"model {spec!r}: {parts[2]}() failed: {describe_error(error)}", "model", spec) from error
        return cls(inner, spec, batch_size)

    def encode_pixels(self, pixels: Sequence[Pixels]) -> NDArray[np.float32]:
        return self.encode_images([Image.fromarray(p) for p in pixels])

    def encode_images(self, images: Sequence[Image.Image]) -> NDArray[np.float32]:
        return self._call("encode_images", list(images))

    def encode_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self._call("encode_texts", list(texts))

    def encode_noise(self, count: int, rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Embed pictures of uniform noise (224 px) and strings of random letters."""
        pictures = [Image.fromarray(rng.integers(0, 256, (224, 224, 3), dtype=np.uint8)) for _ in range(count)]
        return self.encode_images(pictures), self.encode_texts(random_texts(count, rng))

    def _call(self, name: str, items: list[Any]) -> NDArray[np.float32]:
        parts = []
        for start in range(0, len(items), self.batch_size):
            batch = items[start : start + self.batch_size]
            rows = _array(getattr(self._inner, name)(batch))
            if rows.ndim != 2 or len(rows) != len(batch):
                raise ConfigError.of("model", self._name, f"gave {name} of shape {rows.shape}; want ({len(batch)}, d)")
            parts.append(rows)
        return np.concatenate(parts) if parts else np.zeros((0, self._width), np.float32)

    def _common_width(self) -> int:
        """Measure the width d of both kinds of embeddings on a grey picture and a word, before the work starts."""
        widths = []
        for name, item in (("encode_images", Image.new("RGB", (224, 224), (128, 128, 128))), ("encode_texts", "a")):
            try:
                widths.append(int(self._call(name, [item]).shape[1]))
            except ConfigError:
                raise
            except Exception as error:
                raise ConfigError.of("model", self._name, f"failed in {name}: {describe_error(error)}") from error
        if widths[0] != widths[1]:
            raise ConfigError.of("model", self._name, f"has widths {widths}; pictures and texts need one space")
        return widths[0]


def _array(rows: Any) -> NDArray[np.float32]:
    """Convert rows to float32; they may be a torch tensor on any device."""
    return np.asarray(rows.detach().float().cpu() if hasattr(rows, "detach") else rows, dtype=np.float32)


def rgb_pixels(image: Image.Image) -> Pixels:
    """Return the whole picture as (H, W, 3) uint8, for estimators that resize themselves."""
    return np.asarray(image.convert("RGB"), dtype=np.uint8)


def random_texts(count: int, rng: np.random.Generator) -> list[str]:
    """Make strings of 40 random letters, digits and spaces, for estimators whose tokens noisegate does not see."""
    letters = np.array(list(string.ascii_lowercase + string.digits + "    "))
    return ["".join(rng.choice(letters, 40)) for _ in range(count)]
