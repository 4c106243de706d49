"""Metrics as pure functions on arrays: selection and relabelling against known noise (`selection`), retrieval and accuracy of a
trained model (`trained_model`). The name of each metric contains its positive class.
"""

from .selection import (
    MeanNoiseRank,
    calibration_error,
    clean_auroc,
    mean_noise_rank,
    relabel_accuracy,
    selection_metrics,
)
from .trained_model import BlockRecall, RecallAtK, map_at_r, mean_class_accuracy, precision_at_1, rsum, top_k_accuracy

__all__ = [
    "BlockRecall",
    "MeanNoiseRank",
    "RecallAtK",
    "calibration_error",
    "clean_auroc",
    "map_at_r",
    "mean_class_accuracy",
    "mean_noise_rank",
    "precision_at_1",
    "relabel_accuracy",
    "rsum",
    "selection_metrics",
    "top_k_accuracy",
]
