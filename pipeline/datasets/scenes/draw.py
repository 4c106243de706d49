"""Draw a scene: flat shapes with soft edges; the scene's seed jitters place, tilt and shade."""

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from noisegate.pipeline.errors import ConfigError

from .scene import Group, Scene

_RGB = {
    "red": (222, 36, 36),
    "orange": (248, 138, 20),
    "yellow": (244, 222, 44),
    "green": (36, 164, 62),
    "blue": (40, 92, 228),
    "purple": (150, 52, 190),
    "white": (246, 246, 246),
    "gray": (134, 134, 134),
    "black": (16, 16, 16),
    "brown": (98, 66, 40),
}
# Lengths below are fractions of the image's side.
_CENTRES = {"left": (0.28, 0.5), "right": (0.72, 0.5), "top": (0.5, 0.28), "bottom": (0.5, 0.72), "middle": (0.5, 0.5)}
_RADII = {"large": (0.23, 0.165, 0.135, 0.122), "small": (0.13, 0.105, 0.087, 0.08)}  # by count
_COMPANION_RADIUS = 0.075
_COMPANION_EDGE = 0.1  # distance of its centre from the side it stands at
_OVERSAMPLING = 4  # drawn larger, then averaged down to make edges soft

Point = tuple[float, float]


def draw(scene: Scene, size: int = 64) -> Image.Image:
    """Draw the scene as an RGB image of `size` x `size` pixels; the same scene always gives the same pixels.

    >>> scene = Scene(Group("square", "red", "large", "middle", 1), "white")
    >>> draw(scene, 32).getpixel((16, 16))[0] > 180
    True
    """
    if size < 16:
        raise ConfigError.of("size", size, "is too small to tell shapes apart: use 64")
    rng = np.random.default_rng(scene.seed)
    side = size * _OVERSAMPLING
    image = Image.new("RGB", (side, side), _shade(scene.background, rng, tint=5))
    canvas = ImageDraw.Draw(image)
    fill = _shade(scene.main.colour, rng, tint=10)
    radius = _RADII[scene.main.size][scene.main.count - 1] * rng.uniform(0.93, 1.03)
    for centre in _main_centres(scene, radius, rng):
        _draw_object(canvas, scene.main.shape, centre, radius, _tilt(rng), fill, side)
    if scene.companion is not None:
        fill = _shade(scene.companion.colour, rng, tint=10)
        centre = _companion_centre(scene.companion, scene.main, rng)
        _draw_object(canvas, scene.companion.shape, centre, _COMPANION_RADIUS, _tilt(rng), fill, side)
    return image.reduce(_OVERSAMPLING)


def _shade(colour: str, rng: np.random.Generator, tint: int) -> tuple[int, int, int]:
    """Vary brightness by up to 12 of 255 and each channel by up to `tint` more."""
    shift = rng.integers(-12, 13) + rng.integers(-tint, tint + 1, size=3)
    red, green, blue = (int(channel) for channel in np.clip(np.array(_RGB[colour]) + shift, 0, 255))
    return red, green, blue


def _tilt(rng: np.random.Generator) -> float:
    return float(rng.uniform(-0.22, 0.22))  # radians


def _main_centres(scene: Scene, radius: float, rng: np.random.Generator) -> list[Point]:
    """Place the main group's objects close together, none touching another or leaving the image."""
    x, y = _CENTRES[scene.main.position]
    x, y = x + rng.uniform(-0.03, 0.03), y + rng.uniform(-0.03, 0.03)
    count = scene.main.count
    if count == 1:
        return [(x, y)]
    step = (2.55 if count == 3 else 2.3) * radius  # in threes, rows are closer than neighbours
    reach = step / 2 / math.sin(math.pi / count)  # radius of the circle on which neighbours are `step` apart
    turn = {2: math.pi / 2 * _stacked(scene, rng), 3: math.pi / 2, 4: math.pi / 4}[count] + rng.uniform(-0.08, 0.08)
    angles = turn + 2 * math.pi * np.arange(count) / count
    return list(
        zip(_inside(x + reach * np.cos(angles), radius), _inside(y - reach * np.sin(angles), radius), strict=True)
    )


def _stacked(scene: Scene, rng: np.random.Generator) -> bool:
    """Return whether a pair stands one above the other: always along the side where it is, and away from the companion."""
    place = scene.main.position
    if place == "middle" and scene.companion is not None:
        place = scene.companion.position
    return bool(rng.random() < 0.5) if place == "middle" else place in ("left", "right")


def _inside(centres: NDArray[np.float64], radius: float) -> list[float]:
    """Shift all centres (N,) together by as little as keeps each at `radius` from both ends of 0..1."""
    shift = max(0.0, radius - float(centres.min())) + min(0.0, 1 - radius - float(centres.max()))
    return [float(centre) + shift for centre in centres]


def _companion_centre(companion: Group, main: Group, rng: np.random.Generator) -> Point:
    """Place the companion at its side of the image, in the half that the main group leaves free."""
    upright = companion.position in ("left", "right")
    before, after = ("top", "bottom") if upright else ("left", "right")
    if main.position in (before, after) or main.position == "middle":
        along = float(rng.uniform(0.66, 0.88))
        if main.position == after or (main.position == "middle" and rng.random() < 0.5):
            along = 1 - along
    else:
        along = float(rng.uniform(0.15, 0.85))
    across = _COMPANION_EDGE if companion.position in ("left", "top") else 1 - _COMPANION_EDGE
    return (across, along) if upright else (along, across)


def _draw_object(
    canvas: ImageDraw.ImageDraw,
    shape: str,
    centre: Point,
    radius: float,
    tilt: float,
    fill: tuple[int, int, int],
    side: int,
) -> None:
    x, y, r = centre[0] * side, centre[1] * side, radius * side
    box = (x - r, y - r, x + r, y + r)
    if shape == "circle":
        canvas.ellipse(box, fill=fill)
    elif shape == "ring":
        canvas.ellipse(box, outline=fill, width=max(1, round(0.36 * r)))
    else:
        cos, sin = math.cos(tilt), math.sin(tilt)
        corners = _OUTLINES[shape] * r
        canvas.polygon([(x + cos * px - sin * py, y + sin * px + cos * py) for px, py in corners], fill=fill)


def _star_outline() -> NDArray[np.float64]:
    angles = -math.pi / 2 + np.arange(10) * math.pi / 5
    reach = np.where(np.arange(10) % 2 == 0, 1.08, 0.44)
    return np.stack([reach * np.cos(angles), reach * np.sin(angles)], axis=1)


def _cross_outline() -> NDArray[np.float64]:
    arm, reach = 0.31, 1.0
    quarter = [(arm, -reach), (arm, -arm), (reach, -arm)]
    turns = [quarter, [(-y, x) for x, y in quarter], [(-x, -y) for x, y in quarter], [(y, -x) for x, y in quarter]]
    return np.array([point for turn in turns for point in turn])


# Corners (K, 2) of the shapes that are polygons, for radius 1, y pointing down.
_OUTLINES = {
    "square": np.array([(-0.84, -0.84), (0.84, -0.84), (0.84, 0.84), (-0.84, 0.84)]),
    "triangle": np.array([(0.0, -1.0), (0.92, 0.76), (-0.92, 0.76)]),
    "star": _star_outline(),
    "cross": _cross_outline(),
}
