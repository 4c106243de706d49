"""A figure over the noise rate as a picture, a line for each method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noisegate.pipeline.inspect.report.svg import drawing, element, label, ticks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from markupsafe import Markup

    from .tables import Spread

__all__ = ["alone", "draw_curves"]

COLOURS = ("#6b7280", "#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#4d7c0f", "#92400e")
DASHES = ("7 3", "2 3", "7 3 2 3", "12 4")
ASIDE = 2.5  # points of one rate stand side by side, so that their deviations can be told apart
ALONE = """
text { font: 12px sans-serif; fill: #374151 }
@media (prefers-color-scheme: dark) {
text { fill: #a6adb4 } line.grid { stroke: #33393f }
polyline, circle, line:not(.grid) { filter: brightness(1.5) }
}
"""


def draw_curves(
    name: str,
    figure: str,
    rates: Sequence[float],
    lines: Mapping[str, Sequence[Spread]],
    width: int = 660,
    height: int = 350,
) -> Markup:
    """Means over the noise rates, with deviations as bars; a variant NAME@WORD has its method's colour and dashes."""
    values = [one.mean for line in lines.values() for one in line if one.count]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    low, high = max(0.0, low - 0.05 * (high - low) - 1), high + 0.05 * (high - low) + 1
    left, right, top, bottom = 44, width - 70 - 7 * max(map(len, lines)), 28, height - 40

    def x(rate: float) -> float:
        return left + 14 + (right - left - 28) * (rate - rates[0]) / max(rates[-1] - rates[0], 1e-9)

    def y(value: float) -> float:
        return bottom - (bottom - top) * (value - low) / (high - low)

    parts = [label(figure, 4, 14, "start")]
    for tick in ticks(low, high, 6):
        parts.append(element("line", class_="grid", x1=left, x2=right, y1=y(tick), y2=y(tick), stroke="#d1d5db"))
        parts.append(label(f"{tick:g}", left - 6, y(tick) + 4, "end"))
    parts += [label(f"{100 * rate:g} %", x(rate), bottom + 18) for rate in rates]
    parts.append(label("noise rate", (left + right) / 2, height - 6))
    methods: dict[str, list[str]] = {}
    for place, (method, line) in enumerate(lines.items()):
        plain = method.partition("@")[0]
        methods.setdefault(plain, []).append(method)
        colour = COLOURS[list(methods).index(plain) % len(COLOURS)]
        variant = len([one for one in methods[plain] if one != plain])
        dashes = None if method == plain else DASHES[(variant - 1) % len(DASHES)]
        aside = ASIDE * (place - (len(lines) - 1) / 2)
        known = [(x(rate) + aside, one) for rate, one in zip(rates, line, strict=True) if one.count]
        path = " ".join(f"{at:.1f},{y(one.mean):.1f}" for at, one in known)
        stroke = {"stroke": colour, "stroke_width": 2, "stroke_dasharray": dashes}
        parts.append(element("polyline", points=path, fill="none", **stroke))
        for at, one in known:
            above, below = (y(min(high, max(low, one.mean + sign * one.sd))) for sign in (1, -1))
            parts.append(element("line", x1=at, x2=at, y1=below, y2=above, stroke=colour))
            parts.append(element("circle", cx=at, cy=y(one.mean), r=2.5, fill=colour))
        row = top + 10.0 + 18 * place
        parts.append(element("line", x1=right + 20, x2=right + 46, y1=row - 4, y2=row - 4, **stroke))
        parts.append(label(method, right + 54, row, "start"))
    what = "One line for each method; variants of a method are dashed."
    return drawing(f"curves-{name}", width, height, f"{figure} over the noise rate", what, parts)


def alone(picture: Markup) -> str:
    """As a file of its own: letters that need no page around it, and lighter lines on a dark page."""
    return str(picture).replace("</desc>", f"</desc><style>{ALONE}</style>", 1) + "\n"
