"""Captions for a scene: the same facts in many wordings, from about seventy words."""

from collections.abc import Sequence

import numpy as np

from .scene import Scene

_COUNT_WORDS = {1: ("one", ""), 2: ("two",), 3: ("three",), 4: ("four",)}
_SIZE_WORDS = {"small": ("small", "little"), "large": ("large", "big")}
_PLACES = {
    "left": ("on the left", "at the left"),
    "right": ("on the right", "at the right"),
    "top": ("at the top",),
    "bottom": ("at the bottom",),
    "middle": ("in the middle", "in the center"),
}
_GROUNDS = ("on {}", "on a {} background", "with a {} background")
_ORDERS = (
    "{objects} {place} {ground}",
    "{objects} {ground} {place}",
    "{place} {objects} {ground}",
    "{ground} {objects} {place}",
)
_COMPANIONS = (" and {}", " with {}")


def caption(scene: Scene, rng: np.random.Generator) -> str:
    """Describe shape, colour, size, position, count and background; a companion is mentioned half the time.

    >>> from noisegate.pipeline.datasets.scenes.scene import Group
    >>> caption(Scene(Group("circle", "red", "large", "left", 2), "white"), np.random.default_rng(0))
    'two big red circles at the left on white'
    """

    def pick(choices: Sequence[str]) -> str:
        return choices[int(rng.random() * len(choices))]

    main = scene.main
    things = f"{pick(_SIZE_WORDS[main.size])} {main.colour} {_plural(main.shape, main.count)}"
    count = pick(_COUNT_WORDS[main.count])
    objects = f"{count} {things}" if count else _article(things)
    ground = pick(_GROUNDS).format(scene.background)
    text = pick(_ORDERS).format(objects=objects, place=pick(_PLACES[main.position]), ground=ground)
    if scene.companion is not None and rng.random() < 0.5:
        text += pick(_COMPANIONS).format(_article(f"{scene.companion.colour} {scene.companion.shape}"))
    return text


def _article(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _plural(noun: str, count: int) -> str:
    if count == 1:
        return noun
    return noun + ("es" if noun.endswith("s") else "s")
