"""SVG by hand: elements that escape what they hold, a frame with two axes, and numbers that read well on them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

__all__ = ["Frame", "drawing", "element", "label", "ticks"]


def element(name: str, *content: str, **attributes: object) -> Markup:
    """An element; `class_` becomes class, underscores hyphens, floats one decimal, None is left out.

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
    """A piece of text."""
    return element("text", escape(text), class_=class_, x=x, y=y, text_anchor=anchor, **attributes)


def drawing(name: str, width: int, height: int, title: str, description: str, content: Iterable[str]) -> Markup:
    """A whole picture that screen readers name by its title and describe by its description."""
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
    """Round numbers from low to high, at most about `most`.

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
    """Where values lie in a drawing: x from `low` to `high`, y from 0 to `top`."""

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
        """Grid lines at `levels` as percentages, numbers below, and what the numbers are."""
        parts = []
        for level in levels:
            y = self.y(level)
            parts.append(element("line", class_="grid", x1=self.left, x2=self.width - self.right, y1=y, y2=y))
            parts.append(label(f"{100 * level:g} %", self.left - 6, y + 4, "end"))
        for value in ticks(self.low, self.high, (self.width - self.left) // 60):
            parts.append(label(f"{value:g}", self.x(value), self.height - self.below + 17))
        middle = (self.left + self.width - self.right) / 2
        return [*parts, label(caption, middle, self.height - 6, class_="axis")]
