"""Robust fine-tuning from weight tables.

>>> import torch, trainers
>>> loss, weight = torch.tensor([1.0, 3.0]), torch.tensor([0.02, 0.0])
>>> float(trainers.weighted(loss, weight, mean_weight=0.01))
1.0
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import TrainConfig
    from .data import Batch, WeightedShards
    from .evaluate import ModelFigures, evaluate_model
    from .losses import weighted
    from .methods import METHODS, Method
    from .start import TrainResult, train
    from .targets import TARGETS, Target, build_target, load_target

_HOMES = {
    "METHODS": "methods",
    "TARGETS": "targets",
    "Batch": "data",
    "Method": "methods",
    "ModelFigures": "evaluate",
    "Target": "targets",
    "TrainConfig": "config",
    "TrainResult": "start",
    "WeightedShards": "data",
    "build_target": "targets",
    "evaluate_model": "evaluate",
    "load_target": "targets",
    "train": "start",
    "weighted": "losses",
}

__all__ = [
    "METHODS",
    "TARGETS",
    "Batch",
    "Method",
    "ModelFigures",
    "Target",
    "TrainConfig",
    "TrainResult",
    "WeightedShards",
    "build_target",
    "evaluate_model",
    "load_target",
    "train",
    "weighted",
]


def __getattr__(name: str) -> Any:
    """Public names load on first use, so that data workers and `noisegate --help` start at once."""
    if name not in _HOMES:
        raise AttributeError(f"module 'trainers' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
