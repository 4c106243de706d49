"""Drawn scenes with captions: data that any machine can make, where the truth about each pair is known.

`scene` has the facts of a scene and its words, `draw` its pixels; `shards` writes many of them.
"""

from .draw import draw
from .scene import caption, random_scene
from .shards import scene_rng, write_scenes

__all__ = ["caption", "draw", "random_scene", "scene_rng", "write_scenes"]
