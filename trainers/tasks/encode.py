"""Encode an evaluation set: without gradients, in evaluation mode, and kept on the CPU."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noisegate.pipeline.errors import ConfigError
from noisegate.trainers.targets import Encoded, Target

if TYPE_CHECKING:
    from noisegate.trainers.data import Batch

__all__ = ["evaluating", "image_ids", "kept", "labelled_images", "moved"]


@contextmanager
def evaluating(target: Target) -> Iterator[None]:
    """Evaluation mode without gradients; the mode that was on before comes back."""
    before = target.training
    target.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        target.train(before)


def kept(encoded: Encoded) -> Encoded:
    """On the CPU, floats as float32, so that an evaluation set does not fill the device."""
    return {name: t.cpu().float() if t.is_floating_point() else t.cpu() for name, t in encoded.items()}


def moved(encoded: Encoded, device: torch.device) -> Encoded:
    """On the device again."""
    return {name: tensor.to(device) for name, tensor in encoded.items()}


def image_ids(batch: Batch) -> list[Hashable]:
    """What tells the images of a batch apart: field `image_id`, else the picture's digest, else each row is its own."""
    for name in ("image_id", "image_sha256"):
        values = batch.fields.get(name)
        if values is not None and all(value is not None for value in values):
            return [(name, value) for value in values]
    return [("row", row) for row in batch.rows.tolist()]


def labelled_images(target: Target, batches: Iterable[Batch], task: str) -> Iterator[tuple[Encoded, NDArray[np.int64]]]:
    """Encoded images on the target's device with the labels (B,) of their batch."""
    for batch in batches:
        if not len(batch):
            continue
        if batch.images is None or batch.labels is None:
            what = "images" if batch.images is None else "labels"
            raise ConfigError(f"task {task} needs {what}, and the evaluation data brings none; use shards with them")
        labels: Tensor = batch.labels
        yield target.encode_images(batch.images.to(target.device)), labels.cpu().numpy()
