"""Write the results of a bench on drawn scenes as Markdown, JSON, and HTML with curves."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from markupsafe import Markup

from noisegate.pipeline.system import counted

from .cells import CellResult, json_values
from .scene_bench import SceneBench
from .tables import (
    Spread,
    draw_curves,
    format_failures,
    format_median,
    format_noise_found,
    format_seeds,
    markdown_table,
    method_notes,
    write_results,
)

IDENTIFICATION = {
    "noise_precision": "noise precision",
    "noise_recall": "noise recall",
    "noise_f1": "noise F1",
    "clean_auroc": "AUROC",
    "relabel_accuracy": "relabel accuracy",
}


def to_markdown(bench: SceneBench) -> str:
    """Make the table of figures, how it was made, and how well tables and methods found the noise."""
    preset = bench.preset
    rates = sorted(preset.rates)
    percents = [f"{100 * rate:g} %" for rate in rates]
    passes = " (@passes: as many passes over its own samples)" if any("@passes" in m for m in preset.methods) else ""
    budget = f"{preset.updates:,} updates" if preset.updates is not None else counted(preset.epochs or 0, "epoch")
    seeds = format_seeds(len(_cells(bench, method, rate)) for method in preset.methods for rate in rates)
    lines = [
        f"**{preset.summary}** {preset.figure.label} on {preset.data.held_out:,} held-out scenes, mean ± standard deviation of "
        f"{seeds}, {preset.data.train:,} training samples, {budget} for every "
        f"method{passes}.",
        "",
    ]
    if bench.pretrained:
        start = bench.pretrained[preset.figure.name] / preset.figure.divide
        lines[0] += f" The pretrained weights had {start:.1f} before."
    rows = []
    for method in preset.methods:
        good = [cell for cell in _cells(bench, method) if cell.error is None]
        costs = [format_median(cell.seconds for cell in good), format_median(cell.memory_mb for cell in good)]
        skipped = sum(cell.skipped for cell in _cells(bench, method))
        rows.append([method, *(str(_spread(bench, method, rate)) for rate in rates), *costs, str(skipped)])
    lines += markdown_table(["method", *percents, "CPU seconds", "memory MB", "skipped batches"], rows)
    lines += ["", "What the weight table said of the noise (percent):", ""]
    names = [name for name in IDENTIFICATION if any(name in found for found in bench.identification.values())]
    judged = []
    for rate, percent in zip(rates, percents, strict=True):
        found = bench.identification[rate]
        judged.append(
            [percent, *("–" if math.isnan(found.get(name, math.nan)) else f"{found[name]:.1f}" for name in names)]
        )
    lines += markdown_table(["noise rate", *(IDENTIFICATION[name] for name in names)], judged)
    lines += _noise_found(bench, rates, percents)
    lines += ["", *method_notes(preset.methods), *format_failures(bench.cells)]
    return "\n".join(lines).rstrip() + "\n"


def _noise_found(bench: SceneBench, rates: Sequence[float], percents: Sequence[str]) -> list[str]:
    """Make a table of the noise that methods found by themselves; no lines if no method judges samples."""
    rows = [
        [method, *(format_noise_found(cell.learnt for cell in _cells(bench, method, rate)) for rate in rates)]
        for method in bench.preset.methods
        if any(cell.learnt for cell in _cells(bench, method))
    ]
    if not rows:
        return []
    title = (
        "What methods found of the noise by themselves (percent: precision / recall / F1, right labels after repair):"
    )
    return ["", title, "", *markdown_table(["method", *percents], rows)]


def main_figure(bench: SceneBench, cell: CellResult) -> float | None:
    """Return the preset's main figure of a cell, None if the cell failed."""
    value = cell.figures.get(bench.preset.figure.name)
    return None if value is None else value / bench.preset.figure.divide


def _cells(bench: SceneBench, method: str, rate: float | None = None) -> list[CellResult]:
    return [c for c in bench.cells if c.method == method and (rate is None or c.rate == rate)]


def _spread(bench: SceneBench, method: str, rate: float) -> Spread:
    return Spread.of(main_figure(bench, cell) for cell in _cells(bench, method, rate))


def to_json(bench: SceneBench) -> dict[str, Any]:
    """Return every cell, and the means of the Markdown table."""
    preset = bench.preset
    means: dict[str, dict[str, Mapping[str, float | int | None]]] = {
        method: {f"{rate:g}": json_values(asdict(_spread(bench, method, rate))) for rate in sorted(preset.rates)}
        for method in preset.methods
    }
    return {
        "preset": preset.model_dump(mode="json"),
        "figure": preset.figure.label,
        "means": means,
        "pretrained": json_values(bench.pretrained),
        "identification": {f"{rate:g}": json_values(found) for rate, found in bench.identification.items()},
        "cells": [json_values(asdict(cell)) for cell in bench.cells],
    }


def draw_scene_curves(bench: SceneBench) -> Markup:
    """Draw the main figure over the noise rate."""
    preset, rates = bench.preset, sorted(bench.preset.rates)
    lines = {method: [_spread(bench, method, rate) for rate in rates] for method in preset.methods}
    return draw_curves(preset.name, preset.figure.label, rates, lines)


def write_tables(bench: SceneBench, out: Path) -> list[Path]:
    """Write `results.md`, `results.json`, `results.html` and `curves.svg` into the preset's folder."""
    name, curves = bench.preset.name, {"curves": draw_scene_curves(bench)}
    return write_results(out / name, name, to_markdown(bench), to_json(bench), curves)
