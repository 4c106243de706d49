"""Image retrieval: P@1 (the nearest other image has the same class) and mAP@R."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.inspect.metrics import map_at_r, precision_at_1
from noisegate.trainers.targets import Target

from .encode import encode_labelled, evaluation_mode

if TYPE_CHECKING:
    from noisegate.trainers.data import Batch

FIGURES = ("precision_at_1", "map_at_r")


def evaluate(target: Target, batches: Iterable[Batch]) -> dict[str, float]:
    """Figures in percent: `precision_at_1`, `map_at_r`, and `samples`.

    An image never finds itself; the only image of a class is no query but can be found; labels of -1 are left out.
    """
    vectors, labels = [], []
    with evaluation_mode(target):
        for images, given in encode_labelled(target, batches, "image_retrieval"):
            vectors.append(images["vectors"].float().cpu().numpy())
            labels.append(given)
    if not vectors:
        raise ConfigError(
            "task image_retrieval: the evaluation data has no samples; check data.eval_shards", "data.eval_shards"
        )
    rows, label = np.concatenate(vectors), np.concatenate(labels)
    return {
        "precision_at_1": precision_at_1(rows, label),
        "map_at_r": map_at_r(rows, label),
        "samples": float((label >= 0).sum()),
    }
