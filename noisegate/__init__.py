"""Score image-text pairs and labels once with a pretrained CLIP, and train on what is right.

>>> import noisegate as ng
>>> round(ng.osa_weight(0.30, beta=0.215), 6)
0.006611

The public names live here and load on first use, so that `noisegate --help` and worker processes start at once.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noisegate.pipeline.annotate import annotate
    from noisegate.pipeline.errors import NoisegateError
    from noisegate.pipeline.estimators import Estimator, load_estimator
    from noisegate.pipeline.pairs.beta import Beta, estimate_beta
    from noisegate.pipeline.pairs.osa import osa_weight
    from noisegate.pipeline.runs.table import read_table
    from noisegate.pipeline.scoring.summary import Summary
    from noisegate.pipeline.shards.locate import find_shards
    from noisegate.service.client import AsyncClient, Client
    from noisegate.trainers.config import TrainConfig
    from noisegate.trainers.data import Batch, WeightedShards
    from noisegate.trainers.evaluate import ModelFigures, evaluate_model
    from noisegate.trainers.losses import info_nce, weighted
    from noisegate.trainers.methods import METHODS, Method
    from noisegate.trainers.targets import TARGETS, Target, build_target, load_target
    from noisegate.trainers.train import TrainResult, train

_HOMES = {
    "METHODS": "trainers.methods",
    "TARGETS": "trainers.targets",
    "AsyncClient": "service.client",
    "Batch": "trainers.data",
    "Beta": "pipeline.pairs.beta",
    "Client": "service.client",
    "Estimator": "pipeline.estimators",
    "Method": "trainers.methods",
    "ModelFigures": "trainers.evaluate",
    "NoisegateError": "pipeline.errors",
    "Summary": "pipeline.scoring.summary",
    "Target": "trainers.targets",
    "TrainConfig": "trainers.config",
    "TrainResult": "trainers.train",
    "WeightedShards": "trainers.data",
    "annotate": "pipeline.annotate",
    "build_target": "trainers.targets",
    "estimate_beta": "pipeline.pairs.beta",
    "evaluate_model": "trainers.evaluate",
    "find_shards": "pipeline.shards.locate",
    "info_nce": "trainers.losses",
    "load_estimator": "pipeline.estimators",
    "load_target": "trainers.targets",
    "osa_weight": "pipeline.pairs.osa",
    "read_table": "pipeline.runs.table",
    "train": "trainers.train",
    "weighted": "trainers.losses",
}

__all__ = [
    "METHODS",
    "TARGETS",
    "AsyncClient",
    "Batch",
    "Beta",
    "Client",
    "Estimator",
    "Method",
    "ModelFigures",
    "NoisegateError",
    "Summary",
    "Target",
    "TrainConfig",
    "TrainResult",
    "WeightedShards",
    "annotate",
    "build_target",
    "estimate_beta",
    "evaluate_model",
    "find_shards",
    "info_nce",
    "load_estimator",
    "load_target",
    "osa_weight",
    "read_table",
    "train",
    "weighted",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'noisegate' has no attribute {name!r}")
    return getattr(importlib.import_module(f"noisegate.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
