"""Parts of result tables for both kinds of bench: means, Markdown rows, curves over the noise rate, an HTML page."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from noisegate.pipeline.inspect.report import drawing, element, label, ticks
from noisegate.pipeline.system import counted, write_atomically
from noisegate.trainers.methods import METHODS

from .cells import CellResult

COLOURS = (
    "#6b7280", "#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#4d7c0f", "#92400e",
    "#f472b6", "#84cc16",
)  # fmt: skip
DASHES = ("7 3", "2 3", "7 3 2 3", "12 4")
ASIDE = 2.5  # pixels between the points of one rate, so that their deviation bars do not overlap
SVG_STYLE = """
text { font: 12px sans-serif; fill: #374151 }
@media (prefers-color-scheme: dark) {
text { fill: #a6adb4 } line.grid { stroke: #33393f }
polyline, circle, line:not(.grid) { filter: brightness(1.5) }
}
"""
PAGE_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #111827 }
table { border-collapse: collapse; margin: 1rem 0 }
td, th { padding: .3rem .8rem; border-bottom: 1px solid #e5e7eb; text-align: right }
td:first-child, th:first-child { text-align: left }
svg { max-width: 100%; height: auto }
.tick { font: 12px system-ui, sans-serif; fill: #374151 }
"""


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (N - 1) of the cells that did not fail; nan without any, deviation 0 for one."""

    mean: float
    sd: float
    count: int
    failed: int

    @classmethod
    def of(cls, figures: Iterable[float | None]) -> Spread:
        """Compute the spread of figures, where None is a failed cell.

        >>> str(Spread.of([1.0, 2.0, 3.0, None]))
        '2.0 ± 1.0 (1 failed)'
        """
        values = list(figures)
        good = [value for value in values if value is not None and math.isfinite(value)]
        sd = statistics.stdev(good) if len(good) > 1 else 0.0
        return cls(statistics.fmean(good) if good else math.nan, sd, len(good), len(values) - len(good))

    def __str__(self) -> str:
        if not self.count:
            return "failed" if self.failed else "–"
        text = f"{self.mean:.1f} ± {self.sd:.1f}" if self.count > 1 else f"{self.mean:.1f}"
        return f"{text} ({self.failed} failed)" if self.failed else text


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Make the lines of a Markdown table."""
    return [f"| {' | '.join(words)} |" for words in (head, ["---"] * len(head), *rows)]


def method_notes(methods: Iterable[str]) -> list[str]:
    """List notes about the methods, such as that a method is a reconstruction."""
    plain_names = dict.fromkeys(name.partition("@")[0] for name in methods)
    return [f"- {METHODS[name].provenance}" for name in plain_names if name in METHODS and METHODS[name].provenance]


def format_noise_found(judged: Iterable[Mapping[str, float | None]]) -> str:
    """Format precision / recall / F1 and correct labels after repair, means over seeds; a dash if nothing was judged."""
    results = list(judged)
    means = {
        name: statistics.fmean(values)
        for name in ("noise_precision", "noise_recall", "noise_f1", "relabel_accuracy")
        if (values := [value for one in results if (value := one.get(name)) is not None and math.isfinite(value)])
    }
    parts = [f"{means[name]:.1f}" if name in means else "–" for name in ("noise_precision", "noise_recall", "noise_f1")]
    repaired = f", {means['relabel_accuracy']:.1f}" if "relabel_accuracy" in means else ""
    return " / ".join(parts) + repaired if means else "–"


def format_noise_rank(judged: Iterable[Mapping[str, float | None]]) -> str:
    """Format the mean rank of the noise and its optimum, means over seeds; a dash if nothing was ranked.

    >>> format_noise_rank([{"mean_noise_rank": 9000.0, "mean_noise_rank_best": 9500.0}, {}])
    '9,000 / 9,500'
    """
    pairs = [(one.get("mean_noise_rank"), one.get("mean_noise_rank_best")) for one in judged]
    known = [(rank, best) for rank, best in pairs if rank is not None and best is not None and math.isfinite(rank)]
    return " / ".join(f"{statistics.fmean(values):,.0f}" for values in zip(*known, strict=True)) if known else "–"


def format_median(values: Iterable[float]) -> str:
    """Format the median of the finite values without decimals; a dash if there are none."""
    known = [value for value in values if math.isfinite(value)]
    return f"{statistics.median(known):,.0f}" if known else "–"


def format_failures(cells: Iterable[CellResult]) -> list[str]:
    """Make a line for each failed cell."""
    return [f"- failed: {cell.title}: {cell.error}" for cell in cells if cell.error is not None]


def format_seeds(counts: Iterable[int]) -> str:
    """Say how many seeds cells have, where `counts` are those of each place of a table; 0 where nothing was trained.

    >>> format_seeds([3, 3, 0]), format_seeds([1, 3]), format_seeds([1])
    ('3 seeds', '1 to 3 seeds', '1 seed')
    """
    known = [count for count in counts if count] or [0]
    least, most = min(known), max(known)
    return counted(most, "seed") if least == most else f"{least} to {most} seeds"


def draw_curves(
    name: str,
    figure: str,
    rates: Sequence[float],
    lines: Mapping[str, Sequence[Spread]],
    width: int = 660,
    height: int = 350,
) -> Markup:
    """Draw a line of means over the noise rates for each method, deviations as bars; NAME@WORD is dashed in NAME's colour."""
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
    has_bars = any(one.sd > 0 for line in lines.values() for one in line if one.count)
    parts += [label(f"{100 * rate:g} %", x(rate), bottom + 18) for rate in rates]
    parts.append(label("noise rate", (left + right) / 2, height - 6))
    methods: dict[str, list[str]] = {}
    for place, (method, line) in enumerate(lines.items()):
        plain = method.partition("@")[0]
        methods.setdefault(plain, []).append(method)
        colour = COLOURS[list(methods).index(plain) % len(COLOURS)]
        variant = len([one for one in methods[plain] if one != plain])
        dashes = None if method == plain else DASHES[(variant - 1) % len(DASHES)]
        aside = ASIDE * (place - (len(lines) - 1) / 2) if has_bars else 0.0
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


def svg_file(picture: Markup) -> str:
    """Make a stand-alone SVG file of a drawing, with fonts, and lighter lines on a dark page."""
    return str(picture).replace("</desc>", f"</desc><style>{SVG_STYLE}</style>", 1) + "\n"


def write_results(
    folder: Path, title: str, markdown: str, values: Mapping[str, Any], pictures: Mapping[str, Markup]
) -> list[Path]:
    """Write `results.md`, `results.json`, `results.html` and the pictures as SVG files by name."""
    texts = {
        "results.md": markdown,
        "results.json": json.dumps(values, indent=1) + "\n",
        "results.html": html_page(title, list(pictures.values()), markdown),
        **{f"{name}.svg": svg_file(picture) for name, picture in pictures.items()},
    }
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in texts]


def html_page(title: str, pictures: Sequence[Markup], markdown: str) -> str:
    """Make one page: pictures, then the lines and tables of a Markdown text."""
    body: list[Markup] = [element("h1", escape(f"noisegate bench: {title}")), *pictures]
    rows: list[Markup] = []
    for line in [*markdown.splitlines(), ""]:
        words = [word.strip() for word in line.strip("|").split(" | ")] if line.startswith("|") else []
        if words and set(words) != {"---"}:
            rows.append(element("tr", *(element("td" if rows else "th", escape(word.strip())) for word in words)))
        elif not words and rows:
            body.append(element("table", *rows))
            rows = []
        if not words and line:
            body.append(element("p", escape(line.replace("**", ""))))
    page = element("body", *body)
    head = f'<head><meta charset="utf-8"><title>noisegate bench</title><style>{PAGE_STYLE}</style></head>'
    return f'<!doctype html><html lang="en">{head}{page}</html>\n'
