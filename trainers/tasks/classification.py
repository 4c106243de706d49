"""Classification: accuracy by the prompts of the classes, or by the target's linear head."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.inspect.metrics import mean_class_accuracy, top_k_accuracy
from noisegate.trainers.targets import Target

from .encode import encode_labelled, evaluation_mode

if TYPE_CHECKING:
    from noisegate.trainers.data import Batch

FIGURES = ("accuracy", "accuracy_top5", "mean_class_accuracy")


def evaluate(target: Target, batches: Iterable[Batch]) -> dict[str, float]:
    """Figures in percent: `accuracy`, `accuracy_top5`, `mean_class_accuracy`, and `samples`; labels of -1 are left out.

    With several prompts per class their mean similarity counts; prompts are encoded once.
    """
    scores, labels = [], []
    with evaluation_mode(target):
        anchors = target.encode_classes() if target.config.head == "prompts" else None
        for images, given in encode_labelled(target, batches, "classification"):
            scores.append(target.class_logits(images, anchors).float().cpu().numpy())
            labels.append(given)
    if not scores:
        raise ConfigError(
            "task classification: the evaluation data has no samples; check data.eval_shards", "data.eval_shards"
        )
    rows, label = np.concatenate(scores), np.concatenate(labels)
    if label.max() >= rows.shape[1]:
        raise ConfigError(
            f"target.classes has {rows.shape[1]} names, and the evaluation data has the label {label.max()}; give a name for "
            "every label, from 0 on",
            "target.classes",
            rows.shape[1],
        )
    return {
        "accuracy": top_k_accuracy(rows, label),
        "accuracy_top5": top_k_accuracy(rows, label, k=5),
        "mean_class_accuracy": mean_class_accuracy(rows, label),
        "samples": float((label >= 0).sum()),
    }
