"""Figures as pure functions on arrays: selection and relabelling against known noise (`selection`), R@K, P@1 and mAP@R
(`retrieval`), and accuracy of a classifier (`accuracy`). Every name contains its positive class.
"""

from .accuracy import mean_class_accuracy, top_k_accuracy
from .retrieval import BlockRecall, RecallAtK, map_at_r, precision_at_1, rsum
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
