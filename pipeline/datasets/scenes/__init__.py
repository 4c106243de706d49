"""Drawn scenes with captions: data that any machine can make, where the truth about each pair is known.

`scene` has the facts of a scene and its words, `draw` its pixels; `shards` writes many of them.
"""

from .draw import draw
from .scene import (
    ATTRIBUTES,
    BACKGROUNDS,
    COLOURS,
    COUNTS,
    POSITIONS,
    SHAPES,
    SIZES,
    Group,
    Scene,
    caption,
    changed_attributes,
    class_names,
    hard_negative,
    random_scene,
    scene_class,
    with_attribute,
)
from .shards import scene_rng, write_scenes

__all__ = [
    "ATTRIBUTES",
    "BACKGROUNDS",
    "COLOURS",
    "COUNTS",
    "POSITIONS",
    "SHAPES",
    "SIZES",
    "Group",
    "Scene",
    "caption",
    "changed_attributes",
    "class_names",
    "draw",
    "hard_negative",
    "random_scene",
    "scene_class",
    "scene_rng",
    "with_attribute",
    "write_scenes",
]
