"""Figures as pure functions on arrays: selection and relabelling against known noise (`selection`), retrieval and accuracy
of a trained model (`trained_model`). Every name contains its positive class.
"""

from .selection import (
    BestCut,
    MeanNoiseRank,
    SelectionMetrics,
    best_cut,
    clean_auroc,
    mean_noise_rank,
    osa_acc,
    osa_recall,
    relabel_accuracy,
    selection_metrics,
)
from .trained_model import BlockRecall, RecallAtK, map_at_r, mean_class_accuracy, precision_at_1, rsum, top_k_accuracy

__all__ = [
    "BestCut",
    "BlockRecall",
    "MeanNoiseRank",
    "RecallAtK",
    "SelectionMetrics",
    "best_cut",
    "clean_auroc",
    "map_at_r",
    "mean_class_accuracy",
    "mean_noise_rank",
    "osa_acc",
    "osa_recall",
    "precision_at_1",
    "relabel_accuracy",
    "rsum",
    "selection_metrics",
    "top_k_accuracy",
]
