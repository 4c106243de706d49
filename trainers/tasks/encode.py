"""Encode evaluation data without gradients, in evaluation mode, and keep it on the CPU."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system import Index
from noisegate.trainers.targets import Encoded, Target

if TYPE_CHECKING:
    from noisegate.trainers.data import Batch


@contextmanager
def evaluation_mode(target: Target) -> Iterator[None]:
    """Evaluation mode without gradients; restores the mode afterwards."""
    before = target.training
    target.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        target.train(before)


def to_cpu(encoded: Encoded) -> Encoded:
    """Move to the CPU, floats as float32: evaluation data may not fit on the device."""
    return {name: t.cpu().float() if t.is_floating_point() else t.cpu() for name, t in encoded.items()}


def to_device(encoded: Encoded, device: torch.device) -> Encoded:
    """Move to the device."""
    return {name: tensor.to(device) for name, tensor in encoded.items()}


def image_ids(batch: Batch) -> list[Hashable]:
    """An identifier for each image of a batch: field `image_id`, else the picture's digest, else the row number."""
    for name in ("image_id", "image_sha256"):
        values = batch.fields.get(name)
        if values is not None and all(value is not None for value in values):
            return [(name, value) for value in values]
    return [("row", row) for row in batch.rows.tolist()]


def encode_labelled(target: Target, batches: Iterable[Batch], task: str) -> Iterator[tuple[Encoded, Index]]:
    """Encoded images on the target's device with the labels (B,) of their batch."""
    for batch in batches:
        if not len(batch):
            continue
        if batch.images is None or batch.labels is None:
            what = "images" if batch.images is None else "labels"
            raise ConfigError(
                f"task {task} needs {what}, and the evaluation data has none; use shards with them", "data.eval_shards"
            )
        labels: Tensor = batch.labels
        yield target.encode_images(batch.images.to(target.device)), labels.cpu().numpy()
