"""Estimators by name: open_clip models, transformers models, a user's own, and the small embedded one."""

from .base import Estimator, Identity, normalise

__all__ = ["Estimator", "Identity", "load_estimator", "normalise"]


def load_estimator(
    model: str = "embedded",
    pretrained: str | None = None,
    *,
    device: str = "auto",
    dtype: str = "auto",
    batch_size: int | None = None,
) -> Estimator:
    """Load an image-text model.

    `model` is `embedded` (drawn scenes only, for trials), an open_clip name such as `ViT-B-32` with `pretrained` a tag or
    a checkpoint file, `hf-hub:ORG/NAME`, `local-dir:FOLDER`, `hf:NAME` (transformers: CLIP, ALIGN, SigLIP) or
    `python:MODULE:FACTORY`. Raises ConfigError, which says what would work.
    """
    from ..errors import ConfigError

    if batch_size is not None and batch_size < 1:
        raise ConfigError(f"batch_size {batch_size} is not a batch; leave it out or use 64")
    if model.startswith("python:"):
        from .custom import CustomEstimator

        return CustomEstimator.load(model, batch_size)
    from .device import Device

    place = Device.choose(device, dtype)
    if model.startswith("hf:"):
        from .transformers_model import TransformersEstimator

        return TransformersEstimator.load(model, place, batch_size)
    from .openclip import OpenClipEstimator

    return OpenClipEstimator.load(model, pretrained, place, batch_size)
