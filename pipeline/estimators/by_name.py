"""Load an estimator by its name; heavy libraries are imported only for the kind that is asked for."""

from dataclasses import dataclass
from typing import Any

from noisegate.pipeline.errors import ConfigError

from .base import Estimator, Identity


@dataclass(frozen=True)
class ModelSpec:
    """An estimator by name, not loaded yet; a run records it, so that its scores can be checked later."""

    model: str = "embedded"
    pretrained: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    batch_size: int | None = None
    draft: bool = False
    compile: bool = False

    def __call__(self) -> Estimator:
        return load_estimator(
            self.model,
            self.pretrained,
            device=self.device,
            dtype=self.dtype,
            batch_size=self.batch_size,
            draft=self.draft,
            compile=self.compile,
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, without the device and `compile`, which change scores only by rounding."""
        drafted = {"draft": True} if self.draft else {}
        return {"model": self.model, "pretrained": self.pretrained, "dtype": self.dtype, **drafted}


def load_estimator(
    model: str = "embedded",
    pretrained: str | None = None,
    *,
    device: str = "auto",
    dtype: str = "auto",
    batch_size: int | None = None,
    draft: bool = False,
    compile: bool = False,
) -> Estimator:
    """Load an image-text model.

    `model` is `embedded` (drawn scenes only, for trials), an open_clip name such as `ViT-B-32` with `pretrained` a tag or
    a checkpoint file, `hf-hub:ORG/NAME`, `local-dir:FOLDER`, `hf:NAME` (transformers: CLIP, ALIGN, SigLIP) or
    `python:MODULE:FACTORY`. With `draft` large JPEGs are decoded at a fraction of their size (`decode_image`): faster, with
    slightly different scores and so another identity. With `compile` the vision tower of an open_clip model is compiled with
    torch, and used if it agrees and is faster; the estimator's `notes` tell. Raises ConfigError for what cannot work.
    """
    if batch_size is not None and batch_size < 1:
        raise ConfigError.of("batch-size", batch_size, "is not a batch; leave it out or use 64")
    if pretrained is not None and model.startswith(("python:", "hf:")):
        raise ConfigError(
            f"model {model!r} brings its own weights; leave out pretrained ({pretrained!r})", "pretrained", pretrained
        )
    if compile and model.startswith(("python:", "hf:")):
        raise ConfigError(
            f"model {model!r} cannot be compiled, open_clip's such as ViT-B-32 can; leave out compile", "compile", True
        )
    if model.startswith("python:"):
        if (device, dtype) != ("auto", "auto"):
            raise ConfigError(
                f"model {model!r} places itself; leave out device ({device!r}) and dtype ({dtype!r})",
                "device" if device != "auto" else "dtype",
                device if device != "auto" else dtype,
            )
        if draft:
            raise ConfigError(
                f"model {model!r} resizes by itself, so JPEGs cannot shrink before it; leave out draft", "draft", True
            )
        from .custom import CustomEstimator

        return CustomEstimator.load(model, batch_size)
    from .device import Device

    place = Device.choose(device, dtype)
    if model.startswith("hf:"):
        from .transformers_model import TransformersEstimator

        return TransformersEstimator.load(model, place, batch_size, draft)
    from .openclip import OpenClipEstimator

    return OpenClipEstimator.load(model, pretrained, place, batch_size, draft, compile)


def as_estimator(given: Any) -> Estimator:
    """The estimator itself, what a function returns, or a user's own object, wrapped as `python:` does."""
    if isinstance(given, type) or not hasattr(given, "encode_images"):
        if not callable(given):
            raise ConfigError.of(
                "estimator", str(given), "is not one; load one first, for example with load_estimator('embedded')"
            )
        given = given()
    if isinstance(getattr(given, "identity", None), Identity):
        made: Estimator = given
        return made
    from .custom import CustomEstimator

    return CustomEstimator(given, f"python:{type(given).__module__}:{type(given).__name__}")
