"""Drawn scenes with captions: data that any machine can make for itself, where the truth about each pair is known."""

from pipeline.scenes.caption import caption
from pipeline.scenes.draw import draw
from pipeline.scenes.scene import (
    ATTRIBUTES,
    BACKGROUNDS,
    COLOURS,
    COUNTS,
    POSITIONS,
    SHAPES,
    SIZES,
    Group,
    Scene,
    changed_attributes,
    class_names,
    hard_negative,
    random_scene,
    scene_class,
    with_attribute,
)
from pipeline.scenes.shards import scene_rng, write_scenes

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
