"""Image retrieval: does the nearest other image have the same class (P@1), and do the nearest R all (mAP@R)?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.inspect.metrics import map_at_r, precision_at_1
from noisegate.trainers.targets import Target

from .encode import evaluating, labelled_images

if TYPE_CHECKING:
    from noisegate.trainers.data import Batch

__all__ = ["FIGURES", "evaluate"]

FIGURES = ("precision_at_1", "map_at_r")


def evaluate(target: Target, batches: Iterable[Batch]) -> dict[str, float]:
    """Figures in percent: `precision_at_1`, `map_at_r`, and `samples`.

    An image never finds itself, classes of one image ask nothing but can be found, and a label of -1 takes no part.
    """
    vectors, labels = [], []
    with evaluating(target):
        for images, given in labelled_images(target, batches, "image_retrieval"):
            vectors.append(images["vectors"].float().cpu().numpy())
            labels.append(given)
    if not vectors:
        raise ConfigError("task image_retrieval: the evaluation data has no samples; check data.eval_shards")
    rows, label = np.concatenate(vectors), np.concatenate(labels)
    return {
        "precision_at_1": precision_at_1(rows, label),
        "map_at_r": map_at_r(rows, label),
        "samples": float((label >= 0).sum()),
    }
