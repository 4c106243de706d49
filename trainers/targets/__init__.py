"""Targets: the networks that are trained. Each gives a similarity matrix for a batch; methods know nothing else."""

from .base import PROMPT, Target, TargetConfig
from .build import TARGETS, build_target, load_target, resolve_target, save_target, target_config
from .encoded import Encoded, concat, count, gather, gather_tensor, take
from .ensemble import Ensemble, as_one

__all__ = [
    "PROMPT",
    "TARGETS",
    "Encoded",
    "Ensemble",
    "Target",
    "TargetConfig",
    "as_one",
    "build_target",
    "concat",
    "count",
    "gather",
    "gather_tensor",
    "load_target",
    "resolve_target",
    "save_target",
    "take",
    "target_config",
]
