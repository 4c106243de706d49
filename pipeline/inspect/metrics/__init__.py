"""How good a selection, a weight table, a relabelling or a retrieval model is; every name says its positive class."""

from .accuracy import mean_class_accuracy, top_k_accuracy
from .retrieval import BlockRecall, RecallAtK, coco_folds, map_at_r, precision_at_1, recall_at_k, rsum
from .selection import (
    BestCut,
    MeanNoiseRank,
    SelectionMetrics,
    best_cut,
    clean_auroc,
    effective_sample_size,
    f1_score,
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
    "coco_folds",
    "effective_sample_size",
    "f1_score",
    "map_at_r",
    "mean_class_accuracy",
    "mean_noise_rank",
    "osa_acc",
    "osa_recall",
    "precision_at_1",
    "recall_at_k",
    "relabel_accuracy",
    "rsum",
    "selection_metrics",
    "top_k_accuracy",
]
