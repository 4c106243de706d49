"""The report's charts as SVG: histogram of scores, P(clean), confusion of classes, and shards side by side.

SVG is written by `element`, which escapes its content; `Frame` maps values to positions.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from .collect import ScoreView


def element(name: str, *content: str, **attributes: object) -> Markup:
    """Write an SVG element: `class_` becomes class, underscores become hyphens, floats get one decimal, None is left out.

    >>> element("rect", class_="bar", x=1.25, stroke_width=2)
    Markup('<rect class="bar" x="1.2" stroke-width="2"/>')
    """
    parts = [Markup(name)]
    for key, value in attributes.items():
        if value is not None:
            text = f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value
            parts.append(Markup('{}="{}"').format(key.rstrip("_").replace("_", "-"), text))
    opening = Markup(" ").join(parts)
    if not content:
        return Markup("<{}/>").format(opening)
    return Markup("<{}>{}</{}>").format(opening, Markup("").join(content), Markup(name))


def label(text: str, x: float, y: float, anchor: str = "middle", class_: str = "tick", **attributes: object) -> Markup:
    """Write a piece of text."""
    return element("text", escape(text), class_=class_, x=x, y=y, text_anchor=anchor, **attributes)


def drawing(name: str, width: int, height: int, title: str, description: str, content: Iterable[str]) -> Markup:
    """Write a whole picture with a title and a description for screen readers."""
    return element(
        "svg",
        element("title", escape(title), id=f"{name}-title"),
        element("desc", escape(description), id=f"{name}-desc"),
        *content,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
        class_="chart",
    )


def ticks(low: float, high: float, most: int) -> list[float]:
    """Choose round numbers from low to high, at most about `most`.

    >>> ticks(0.07, 0.42, 5)
    [0.1, 0.2, 0.3, 0.4]
    """
    if not high > low:
        return [low]
    rough = (high - low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


@dataclass(frozen=True)
class Frame:
    """Map values to positions in a drawing: x from `low` to `high`, y from 0 to `top`."""

    width: int
    height: int
    low: float
    high: float
    top: float
    left: int = 44
    right: int = 10
    above: int = 26
    below: int = 40

    def x(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.left + min(max(share, 0.0), 1.0) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        return self.height - self.below - value / self.top * (self.height - self.above - self.below)

    def axes(self, caption: str, levels: Sequence[float]) -> list[Markup]:
        """Draw grid lines at `levels` as percentages, numbers below, and the axis title `caption`."""
        parts = []
        for level in levels:
            y = self.y(level)
            parts.append(element("line", class_="grid", x1=self.left, x2=self.width - self.right, y1=y, y2=y))
            parts.append(label(f"{100 * level:g} %", self.left - 6, y + 4, "end"))
        for value in ticks(self.low, self.high, (self.width - self.left) // 60):
            parts.append(label(f"{value:g}", self.x(value), self.height - self.below + 17))
        middle = (self.left + self.width - self.right) / 2
        return [*parts, label(caption, middle, self.height - 6, class_="axis")]


SHOWN_BINS = 64


@dataclass(frozen=True)
class Bins:
    """Counts of given and mismatched pairs between `edges` (B + 1,); `mismatched` is None where there are none."""

    edges: NDArray[np.float64]
    given: NDArray[np.int64]
    mismatched: NDArray[np.int64] | None

    def shares(self, which: str) -> NDArray[np.float64]:
        """Return the share of pairs in each bin, (B,), of all pairs of that kind."""
        counts = self.given if which == "given" else self.mismatched
        return np.zeros(len(self.given)) if counts is None else counts / max(counts.sum(), 1)


def merge_bins(
    edges: NDArray[np.float64],
    given: NDArray[np.int64],
    mismatched: NDArray[np.int64] | None,
    also: Sequence[float] = (),
) -> Bins:
    """Merge fine bins into at most 64 over the part of the scale that is in use; `also` are values that must lie inside.

    >>> int(merge_bins(np.linspace(-1, 1, 2001), np.bincount([1200, 1300], minlength=2000), None).given.sum())
    2
    """
    used = np.flatnonzero(given + (0 if mismatched is None else mismatched))
    inside = np.clip(np.searchsorted(edges, also, side="right") - 1, 0, len(given) - 1)
    first, last = (int(f(np.concatenate([used, inside]))) if len(used) + len(inside) else 0 for f in (np.min, np.max))
    step = max(1, -(-(last - first + 1) // SHOWN_BINS))
    starts = np.arange(first // step * step, last + 1, step)
    ends = np.minimum(np.append(starts, starts[-1] + step), len(given))

    def merged(counts: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.asarray(np.add.reduceat(counts[: ends[-1]], starts))

    return Bins(edges[ends], merged(given), None if mismatched is None else merged(mismatched))


def draw_histogram(bins: Bins, view: ScoreView, name: str, width: int, height: int, description: str) -> Markup:
    """Draw bars of the given pairs, an area of the mismatched ones behind, the cut as a line and its interval as a band."""
    given, mismatched = bins.shares("given"), bins.shares("mismatched")
    top = max(float(given.max(initial=0)), float(mismatched.max(initial=0)), 1e-9) * 1.05
    frame = Frame(width, height, float(bins.edges[0]), float(bins.edges[-1]), top)
    parts = frame.axes(view.caption, ticks(0, top, 4)[1:])
    if view.interval:
        start, end = (frame.x(value) for value in view.interval)
        parts.append(_box("band", start, frame.above, max(end - start, 1), frame.y(0) - frame.above))
    if bins.mismatched is not None:
        parts.append(element("path", class_="mismatched", d=_steps(frame, bins.edges, mismatched)))
    for i, share in enumerate(given):
        if share > 0:
            start, end = frame.x(bins.edges[i]), frame.x(bins.edges[i + 1])
            tooltip = f"{bins.edges[i]:.3f} to {bins.edges[i + 1]:.3f}: {bins.given[i]:,} ({100 * share:.1f} %)"
            y = frame.y(share)
            parts.append(
                _box(
                    "bar",
                    start + 0.4,
                    y,
                    max(end - start - 0.8, 0.6),
                    frame.y(0) - y,
                    element("title", escape(tooltip)),
                )
            )
    if bins.mismatched is not None:
        parts.append(element("path", class_="outline", d=_steps(frame, bins.edges, mismatched)))
    parts.append(element("line", class_="base", x1=frame.left, x2=width - frame.right, y1=frame.y(0), y2=frame.y(0)))
    if view.cut is not None:
        parts += _cut_line(frame, view)
    return drawing(name, width, height, f"How many {view.noun}s have which {view.score}", description, parts)


def draw_clean(view: ScoreView, bins: Bins, name: str, width: int, height: int, description: str) -> Markup:
    """Draw P(clean) over the score, on the histogram's scale; nothing without a calibration."""
    if view.calibration is None:
        return Markup("")
    frame = Frame(width, height, float(bins.edges[0]), float(bins.edges[-1]), 1.0)
    places = np.linspace(frame.low, frame.high, 121)
    points = zip(places, view.calibration.clean_at(places), strict=True)
    line = " ".join(f"{frame.x(float(x)):.1f},{frame.y(float(y)):.1f}" for x, y in points)
    parts = frame.axes(view.caption, [0, 0.5, 1])
    if view.interval:
        start, end = (frame.x(value) for value in view.interval)
        parts.append(_box("band", start, frame.above, max(end - start, 1), frame.y(0) - frame.above))
    parts.append(element("polyline", class_="curve", points=line))
    return drawing(
        name,
        width,
        height,
        f"Probability that a {view.noun} is right, by its {view.score}",
        description,
        parts + (_cut_line(frame, view) if view.cut is not None else []),
    )


def draw_confusion(names: Sequence[str], shares: NDArray[np.float64], name: str, description: str) -> Markup:
    """Draw shares (C, C) of each given class (row) by the class it looks like (column); the diagonal is only marked."""
    cell, margin = 18, 12 + 6 * max(len(text) for text in names)
    margin = min(margin, 150)
    size = margin + cell * len(names) + 4
    most = max(float((shares * (1 - np.eye(len(names)))).max(initial=0)), 1e-9)
    parts = []
    for i, text in enumerate(names):
        middle = margin + cell * i + cell / 2
        parts.append(label(_short(text), margin - 6, middle + 4, "end"))
        turned = f"rotate(-90 {middle + 4:.1f} {margin - 6})"
        parts.append(label(_short(text), middle + 4, margin - 6, "start", transform=turned))
    for i, j in np.argwhere(shares > 0).tolist():
        x, y = float(margin + cell * j), float(margin + cell * i)
        tooltip = element("title", escape(f"{names[i]} to {names[j]}: {100 * shares[i, j]:.1f} %"))
        if i == j:
            parts.append(_box("same", x + 1, y + 1, cell - 2, cell - 2, tooltip))
        else:
            depth = f"{0.12 + 0.88 * shares[i, j] / most:.2f}"
            parts.append(_box("moved", x + 1, y + 1, cell - 2, cell - 2, tooltip, fill_opacity=depth))
    parts.append(_box("outline-box", float(margin), float(margin), cell * len(names), cell * len(names)))
    drawn = drawing(name, size, size, "Given classes (rows) and what they look like (columns)", description, parts)
    return drawn.replace('class="chart"', Markup('class="chart map" width="{}"').format(size), 1)


@dataclass(frozen=True)
class Strip:
    """One row of `draw_strips`: a name and the quantiles .05, .25, .5, .75, .95 of its scores."""

    name: str
    quantiles: tuple[float, ...]
    stands_out: bool


def draw_strips(
    strips: Sequence[Strip], low: float, high: float, caption: str, name: str, width: int, description: str
) -> Markup:
    """Draw a box plot per row: box from .25 to .75, whiskers from .05 to .95, a line at the median."""
    step = 30
    frame = Frame(width, step * len(strips) + 56, low, high, 1.0, left=min(150, width // 3), above=8)
    parts = []
    for value in ticks(low, high, (width - frame.left) // 60):
        x = frame.x(value)
        parts.append(element("line", class_="grid", x1=x, x2=x, y1=frame.above, y2=frame.height - frame.below))
    parts += frame.axes(caption, [])
    for i, strip in enumerate(strips):
        y = frame.above + step * i + step / 2
        least, start, middle, end, most = (frame.x(value) for value in strip.quantiles)
        kind = "out" if strip.stands_out else "in"
        parts.append(label(_short(strip.name, 24 if width > 500 else 15), frame.left - 8, y + 4, "end"))
        parts.append(element("line", class_=f"whisker {kind}", x1=least, x2=most, y1=y, y2=y))
        parts.append(_box(f"box {kind}", start, y - 8, max(end - start, 1.5), 16))
        parts.append(element("line", class_="median", x1=middle, x2=middle, y1=y - 9, y2=y + 9))
    return drawing(name, width, frame.height, f"{caption} of shards side by side", description, parts)


def _box(class_: str, x: float, y: float, width: float, height: float, *content: str, **more: object) -> Markup:
    return element(
        "rect", *content, class_=class_, x=x, y=y, width=float(width), height=max(float(height), 0.0), **more
    )


def _cut_line(frame: Frame, view: ScoreView) -> list[Markup]:
    """Draw the cut with its value above; the text stays inside the drawing."""
    cut = view.cut if view.cut is not None else 0.0
    x, text = frame.x(cut), f"{view.cut_name} {cut:.3f}"
    half = 4.2 * len(text)
    place = min(max(x, frame.left + half), frame.width - frame.right - half)
    return [
        element("line", class_="cut", x1=x, x2=x, y1=frame.above, y2=frame.y(0)),
        label(text, place, frame.above - 8, class_="cut-text"),
    ]


def _steps(frame: Frame, edges: NDArray[np.float64], shares: NDArray[np.float64]) -> str:
    """Return the path of a closed outline along the tops of the bins."""
    points = [f"M{frame.x(edges[0]):.1f} {frame.y(0):.1f}"]
    for i, share in enumerate(shares):
        points.append(f"V{frame.y(float(share)):.1f}H{frame.x(float(edges[i + 1])):.1f}")
    return "".join([*points, f"V{frame.y(0):.1f}Z"])


def _short(text: str, most: int = 22) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
