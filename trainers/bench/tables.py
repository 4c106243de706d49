"""Results of a bench as one table: Markdown to read, JSON to compute with, HTML with curves to look at."""

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from noisegate.pipeline.inspect.report.svg import element
from noisegate.pipeline.system.output_files import write_atomically
from noisegate.pipeline.system.progress import counted
from noisegate.trainers.methods import METHODS

from .cells import CellResult
from .curves import alone, draw_curves
from .runner import BenchResult

__all__ = [
    "Spread",
    "curves",
    "figure_of",
    "found_of_noise",
    "html_page",
    "markdown_row",
    "notes_on",
    "plain",
    "spread",
    "to_json",
    "to_markdown",
    "whole",
    "write_tables",
]

IDENTIFICATION = {
    "noise_precision": "noise precision",
    "noise_recall": "noise recall",
    "noise_f1": "noise F1",
    "clean_auroc": "AUROC",
    "relabel_accuracy": "relabel accuracy",
}


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (N - 1) of the cells that did not fail; nan without any, 0 deviation for one."""

    mean: float
    sd: float
    count: int
    failed: int

    def __str__(self) -> str:
        if not self.count:
            return "failed" if self.failed else "–"
        text = f"{self.mean:.1f} ± {self.sd:.1f}" if self.count > 1 else f"{self.mean:.1f}"
        return f"{text} ({self.failed} failed)" if self.failed else text


def spread(values: Iterable[float | None]) -> Spread:
    """Of figures, None for a cell that failed.

    >>> str(spread([1.0, 2.0, 3.0, None]))
    '2.0 ± 1.0 (1 failed)'
    """
    every = list(values)
    good = [value for value in every if value is not None and math.isfinite(value)]
    sd = statistics.stdev(good) if len(good) > 1 else 0.0
    return Spread(statistics.fmean(good) if good else math.nan, sd, len(good), len(every) - len(good))


def figure_of(result: BenchResult, cell: CellResult) -> float | None:
    """The deciding figure of a cell, None where it failed."""
    value = cell.figures.get(result.preset.figure.name)
    return None if value is None else value / result.preset.figure.divide


def _cells(result: BenchResult, method: str, rate: float | None = None) -> list[CellResult]:
    return [c for c in result.cells if c.method == method and (rate is None or c.rate == rate)]


def _spread(result: BenchResult, method: str, rate: float) -> Spread:
    return spread(figure_of(result, cell) for cell in _cells(result, method, rate))


def _of_all(result: BenchResult, method: str, what: Callable[[CellResult], float]) -> float:
    good = [what(cell) for cell in _cells(result, method) if cell.error is None]
    return statistics.median(good) if good else math.nan


def to_markdown(result: BenchResult) -> str:
    """The table with a line on how it was made."""
    preset = result.preset
    rates = sorted(preset.rates)
    lines = [
        f"**{preset.summary}** {preset.figure.label} on {preset.data.held_out:,} held-out scenes, mean ± standard deviation of "
        f"{counted(len(preset.seeds), 'seed')}, {preset.data.train:,} training samples, {preset.updates:,} updates for every "
        "method"
        + (" (@passes: as many passes over its own samples)." if any("@passes" in m for m in preset.methods) else "."),
        "",
        markdown_row(
            ["method", *(f"{100 * rate:g} %" for rate in rates), "CPU seconds", "memory MB", "skipped batches"]
        ),
        markdown_row(["---"] * (len(rates) + 4)),
    ]
    for method in preset.methods:
        seconds = _of_all(result, method, lambda cell: cell.seconds)
        memory = _of_all(result, method, lambda cell: cell.memory_mb)
        skipped = sum(cell.skipped for cell in _cells(result, method))
        figures = [str(_spread(result, method, rate)) for rate in rates]
        lines.append(markdown_row([method, *figures, whole(seconds), whole(memory), str(skipped)]))
    lines += ["", "What the weight table said of the noise (percent):", ""]
    names = [name for name in IDENTIFICATION if any(name in found for found in result.identification.values())]
    lines += [
        markdown_row(["noise rate", *(IDENTIFICATION[name] for name in names)]),
        markdown_row(["---"] * (len(names) + 1)),
    ]
    for rate in rates:
        found = result.identification[rate]
        shown = ["–" if math.isnan(found.get(name, math.nan)) else f"{found[name]:.1f}" for name in names]
        lines.append(markdown_row([f"{100 * rate:g} %", *shown]))
    lines += _learnt(result, rates)
    failed = [cell for cell in result.cells if cell.error is not None]
    lines += ["", *notes_on(preset.methods)]
    lines += [f"- failed: {c.method} at {100 * c.rate:g} %, seed {c.seed}: {c.error}" for c in failed]
    return "\n".join(lines).rstrip() + "\n"


def notes_on(methods: Iterable[str]) -> list[str]:
    """What must be known of a method's figures, such as that it is a reconstruction."""
    plain_names = dict.fromkeys(name.partition("@")[0] for name in methods)
    return [f"- {METHODS[name].provenance}" for name in plain_names if name in METHODS and METHODS[name].provenance]


def _learnt(result: BenchResult, rates: Sequence[float]) -> list[str]:
    """A table of what methods found of the noise by themselves; nothing where none of them judges samples."""
    rows = []
    for method in result.preset.methods:
        if any(cell.learnt for cell in _cells(result, method)):
            found = [found_of_noise(cell.learnt for cell in _cells(result, method, rate)) for rate in rates]
            rows.append(markdown_row([method, *found]))
    if not rows:
        return []
    head = [
        markdown_row(["method", *(f"{100 * rate:g} %" for rate in rates)]),
        markdown_row(["---"] * (len(rates) + 1)),
    ]
    title = (
        "What methods found of the noise by themselves (percent: precision / recall / F1, right labels after repair):"
    )
    return ["", title, "", *head, *rows]


def found_of_noise(found: Iterable[Mapping[str, float | None]]) -> str:
    """Precision / recall / F1 and right labels after repair, means over the seeds; a dash where nothing was judged."""
    every = list(found)
    means = {
        name: statistics.fmean(values)
        for name in ("noise_precision", "noise_recall", "noise_f1", "relabel_accuracy")
        if (values := [value for one in every if (value := one.get(name)) is not None and math.isfinite(value)])
    }
    parts = [f"{means[name]:.1f}" if name in means else "–" for name in ("noise_precision", "noise_recall", "noise_f1")]
    repaired = f", {means['relabel_accuracy']:.1f}" if "relabel_accuracy" in means else ""
    return " / ".join(parts) + repaired if means else "–"


def markdown_row(words: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(words)} |"


def whole(value: float) -> str:
    """Without decimals; a dash where it is not known."""
    return "–" if math.isnan(value) else f"{value:,.0f}"


def to_json(result: BenchResult) -> dict[str, Any]:
    """Every cell, and the same means."""
    means: dict[str, dict[str, Mapping[str, float | int | None]]] = {}
    for method in result.preset.methods:
        means[method] = {
            f"{rate:g}": plain(asdict(_spread(result, method, rate))) for rate in sorted(result.preset.rates)
        }
    return {
        "preset": result.preset.model_dump(mode="json"),
        "figure": result.preset.figure.label,
        "means": means,
        "identification": {f"{rate:g}": plain(found) for rate, found in result.identification.items()},
        "cells": [plain(asdict(cell)) for cell in result.cells],
    }


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no nan."""
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values.items()}


def curves(result: BenchResult) -> Markup:
    """The deciding figure over the noise rate."""
    preset, rates = result.preset, sorted(result.preset.rates)
    lines = {method: [_spread(result, method, rate) for rate in rates] for method in preset.methods}
    return draw_curves(preset.name, preset.figure.label, rates, lines)


STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #111827 }
table { border-collapse: collapse; margin: 1rem 0 }
td, th { padding: .3rem .8rem; border-bottom: 1px solid #e5e7eb; text-align: right }
td:first-child, th:first-child { text-align: left }
svg { max-width: 100%; height: auto }
.tick { font: 12px system-ui, sans-serif; fill: #374151 }
"""


def to_html(result: BenchResult) -> str:
    """One page: curves, then the tables."""
    return html_page(result.preset.name, [curves(result)], to_markdown(result))


def html_page(title: str, pictures: Sequence[Markup], markdown: str) -> str:
    """Pictures, then the lines and tables of what `to_markdown` made."""
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
    head = f'<head><meta charset="utf-8"><title>noisegate bench</title><style>{STYLE}</style></head>'
    return f'<!doctype html><html lang="en">{head}{page}</html>\n'


def write_tables(result: BenchResult, out: Path) -> list[Path]:
    """`results.md`, `results.json`, `results.html` and `curves.svg` in the preset's folder."""
    place = out / result.preset.name
    texts = {
        "results.md": to_markdown(result),
        "results.json": json.dumps(to_json(result), indent=1) + "\n",
        "results.html": to_html(result),
        "curves.svg": alone(curves(result)),
    }
    for name, text in texts.items():
        write_atomically(place / name, text.encode())
    return [place / name for name in texts]
