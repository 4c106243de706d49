"""Targets: the networks that are trained. Each gives a similarity matrix for a batch; methods know nothing else.

clip.py (with clip_tokens.py), dual.py, sgraf.py and video.py are the networks, build.py makes, saves and loads them by name,
ensemble.py averages several. base.py says what a target is and encoded.py what it makes of a batch; pictures.py and texts.py
turn samples into inputs, pooling.py parts into one vector.
"""

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
