"""Targets: the networks that are trained. Each computes a similarity matrix for a batch; methods use nothing else.

clip.py, hf.py, dual.py, sgraf.py, scan.py and video.py are the networks, build.py makes, averages, saves and loads them
by name. region_words.py has the common part of sgraf and scan. base.py defines the protocol of targets and of encoded batches;
pictures.py and texts.py turn samples into inputs, pooling.py turns parts into one vector.
"""

from .base import (
    PROMPT,
    Encoded,
    Target,
    TargetConfig,
    concat,
    count,
    full_precision,
    gather,
    gather_tensor,
    take,
    text_anchored_logits,
)
from .build import TARGETS, Ensemble, as_one, build_target, load_target, resolve_target, save_target, target_config
from .region_words import RegionWordsConfig

__all__ = [
    "PROMPT",
    "TARGETS",
    "Encoded",
    "Ensemble",
    "RegionWordsConfig",
    "Target",
    "TargetConfig",
    "as_one",
    "build_target",
    "concat",
    "count",
    "full_precision",
    "gather",
    "gather_tensor",
    "load_target",
    "resolve_target",
    "save_target",
    "take",
    "target_config",
    "text_anchored_logits",
]
