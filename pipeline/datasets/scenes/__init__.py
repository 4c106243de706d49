"""Drawn scenes with captions: data that any machine can make, with the truth about each pair known.

`scene` has the attributes and captions of a scene, `draw` its pixels; `shards` writes many scenes.
"""

from .draw import draw
from .scene import caption, random_scene
from .shards import scene_rng, write_scenes

__all__ = ["caption", "draw", "random_scene", "scene_rng", "write_scenes"]
