"""Attributes of a scene (a group of equal objects, sometimes a small companion, a background), and captions of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from noisegate.pipeline.errors import ConfigError

SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple")
SIZES = ("small", "large")
POSITIONS = ("left", "right", "top", "bottom", "middle")
COUNTS = (1, 2, 3, 4)
BACKGROUNDS = ("white", "gray", "black", "brown")
COMPANION_RATE = 0.4

_CHOICES: dict[str, tuple[Any, ...]] = {
    "shape": SHAPES,
    "colour": COLOURS,
    "size": SIZES,
    "position": POSITIONS,
    "count": COUNTS,
    "background": BACKGROUNDS,
}
ATTRIBUTES = tuple(_CHOICES)

T = TypeVar("T")


@dataclass(frozen=True)
class Group:
    """Equal objects standing together; `position` is where the middle of the group is."""

    shape: str
    colour: str
    size: str
    position: str
    count: int

    def __post_init__(self) -> None:
        for name in ("shape", "colour", "size", "position", "count"):
            _check(name, getattr(self, name))


@dataclass(frozen=True)
class Scene:
    """A scene; `seed` fixes what no caption mentions: exact places, tilts and shades.

    The companion is a single small object that shares neither shape, colour nor position with the main group, so no
    sentence about the main group can be true of it.
    """

    main: Group
    background: str
    companion: Group | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check("background", self.background)
        if self.companion is None:
            return
        for name in ("shape", "colour", "position"):
            if (value := getattr(self.companion, name)) == getattr(self.main, name):
                raise ConfigError.of(f"companion.{name}", value, "is the main group's: choose another")
        if (self.companion.size, self.companion.count) != ("small", 1) or self.companion.position == "middle":
            raise ConfigError.of("companion", self.companion, "must be small, count=1 and at a side such as 'left'")


def _check(name: str, value: object) -> None:
    if value not in _CHOICES[name]:
        raise ConfigError.of(name, value, f"is not drawn: use {_CHOICES[name][0]!r} or another of {_CHOICES[name]}")


def _pick(rng: np.random.Generator, choices: Sequence[T]) -> T:
    return choices[int(rng.integers(len(choices)))]


def _other(rng: np.random.Generator, choices: Sequence[T], *taken: T) -> T:
    return _pick(rng, [choice for choice in choices if choice not in taken])


def random_scene(rng: np.random.Generator) -> Scene:
    """Draw every attribute uniformly; four scenes in ten have a companion.

    >>> scene = random_scene(np.random.default_rng(3))
    >>> scene.main.count in COUNTS and scene.background in BACKGROUNDS
    True
    """
    main = Group(_pick(rng, SHAPES), _pick(rng, COLOURS), _pick(rng, SIZES), _pick(rng, POSITIONS), _pick(rng, COUNTS))
    companion = None
    if rng.random() < COMPANION_RATE:
        companion = Group(
            shape=_other(rng, SHAPES, main.shape),
            colour=_other(rng, COLOURS, main.colour),
            size="small",
            position=_other(rng, POSITIONS, main.position, "middle"),
            count=1,
        )
    return Scene(main, _pick(rng, BACKGROUNDS), companion, seed=int(rng.integers(2**31)))


def with_attribute(scene: Scene, attribute: str, value: Any) -> Scene:
    """Copy the scene with one attribute (of `ATTRIBUTES`) of the main group, or the background, replaced."""
    if attribute == "background":
        return replace(scene, background=value)
    if attribute not in ATTRIBUTES:
        raise ConfigError.of("attribute", attribute, f"is not one of {ATTRIBUTES}: use 'colour', say")
    return replace(scene, main=replace(scene.main, **{attribute: value}))


def hard_negative(scene: Scene, rng: np.random.Generator, attribute: str | None = None) -> Scene:
    """Copy the scene with exactly one attribute changed, a random one unless it is named.

    Captions mention every attribute of `ATTRIBUTES`, so each caption of the copy is false of the scene itself.

    >>> scene = Scene(Group("circle", "red", "large", "left", 2), "white")
    >>> changed_attributes(scene, hard_negative(scene, np.random.default_rng(0), "count"))
    ['count']
    """
    attribute = _pick(rng, ATTRIBUTES) if attribute is None else attribute
    if attribute not in ATTRIBUTES:
        raise ConfigError.of("attribute", attribute, f"is not one of {ATTRIBUTES}: use 'colour', say")
    taken = [attribute_value(scene, attribute)]
    if scene.companion is not None and attribute in ("shape", "colour", "position"):
        taken.append(getattr(scene.companion, attribute))
    return with_attribute(scene, attribute, _other(rng, _CHOICES[attribute], *taken))


def attribute_value(scene: Scene, attribute: str) -> Any:
    """Read one attribute of `ATTRIBUTES`."""
    return scene.background if attribute == "background" else getattr(scene.main, attribute)


def changed_attributes(scene: Scene, other: Scene) -> list[str]:
    """Name the attributes of `ATTRIBUTES` in which two scenes differ."""
    return [name for name in ATTRIBUTES if attribute_value(scene, name) != attribute_value(other, name)]


def class_names() -> list[str]:
    """Name the classes, colour and shape of the main group, in the order of their ids.

    >>> class_names()[:2], len(class_names())
    (['red circle', 'orange circle'], 36)
    """
    return [f"{colour} {shape}" for shape in SHAPES for colour in COLOURS]


def scene_class(scene: Scene) -> int:
    """Return the id of the scene's class: its place in `class_names()`.

    >>> class_names()[scene_class(Scene(Group("star", "blue", "small", "top", 3), "black"))]
    'blue star'
    """
    return SHAPES.index(scene.main.shape) * len(COLOURS) + COLOURS.index(scene.main.colour)


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
