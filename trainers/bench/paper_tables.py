"""Write the results of a bench on a paper's data set: ours with the papers' figures in brackets, costs, curves."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from markupsafe import Markup

from .cells import NOISE_FIGURES, RANK_FIGURES, json_values
from .paper_bench import MAIN_FIGURE, Condition, PaperBench, PaperFigure
from .tables import (
    Spread,
    draw_curves,
    format_failures,
    format_median,
    format_noise_found,
    format_noise_rank,
    format_seeds,
    markdown_table,
    method_notes,
    write_results,
)

FIGURES = {"retrieval": ("i2t_r1", "t2i_r1", "rsum"), "classification": ("accuracy",), "image_retrieval": ("map_at_r",)}
"""of each task, those that always get a table"""


def paper_markdown(bench: PaperBench) -> str:
    """Make one table per figure: ours, and in brackets a paper's for the same method, data and noise."""
    preset = bench.preset
    trained = [row for row in bench.reported if row.part is None and row.also_on is None]
    names = list(dict.fromkeys([*FIGURES[preset.task], *(name for row in trained for name in row.figures)]))
    seeds = format_seeds(len(cells) for cells in bench.cells.values())
    lines = [
        f"**{preset.name}, {bench.setup}:** {preset.summary}. Mean ± standard deviation of {seeds}"
        + ("; in brackets the paper's own figure for the same method and noise." if trained else "."),
    ]
    titles = [condition.title for condition in bench.conditions]
    for name in names:
        rows = []
        for method in bench.methods:
            words = [_ours_and_theirs(bench, trained, name, method, condition) for condition in bench.conditions]
            if any(word != "–" for word in words):
                rows.append([method, *words])
        lines += _optional_table([name, *titles], rows)
    lines += _costs(bench)
    judged = [row for row in bench.reported if row.part is not None and row.method in bench.methods]
    lines += _noise_found(bench, judged, titles)
    notes = [*preset.setups[bench.setup].notes, *dict.fromkeys(row.note for row in trained if row.note)]
    witnesses = {row.paper: row.witness for row in trained}
    lines += ["", *(f"- {title} (figures from {'the paper' if kind == 'paper' else 'reading notes'})"
                    for title, kind in witnesses.items())]  # fmt: skip
    lines += [*method_notes(bench.methods), *(f"- {text}" for text in notes)]
    lines += [f"- {_judgement_note(row)}" for row in judged if any(_same_noise(row, c) for c in bench.conditions)]
    others = [row for row in bench.reported if row.also_on is not None]
    lines += [
        f"- on {row.also_on} the paper has {row.method} "
        f"{', '.join(f'{name} {value:g}' for name, value in row.figures.items())}: "
        f"noisegate evaluate-model RUN --shards '{preset.setups[bench.setup].also_on.get(str(row.also_on), row.also_on)}'"
        for row in others
    ]
    lines += format_failures(cell for cells in bench.cells.values() for cell in cells)
    return "\n".join(lines).rstrip() + "\n"


def _optional_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Make an empty line and a table; no lines if there are no rows."""
    return ["", *markdown_table(head, rows)] if rows else []


def _ours_and_theirs(
    bench: PaperBench, trained: Sequence[PaperFigure], name: str, method: str, condition: Condition
) -> str:
    """Format our mean, with the papers' figures in brackets; a dash if there is neither."""
    ours = our_spread(bench, name, method, condition)
    theirs = [
        row.figures[name]
        for row in trained
        if row.method == method and name in row.figures and _same_noise(row, condition)
    ]
    if not ours.count and not ours.failed and not theirs:
        return "–"
    return f"{ours} ({', '.join(f'{value:g}' for value in theirs)})" if theirs else str(ours)


def our_spread(bench: PaperBench, name: str, method: str, condition: Condition) -> Spread:
    """Compute mean and deviation over the cells that measured this figure, or failed."""
    cells = bench.cells[method, condition.name]
    return Spread.of([cell.figures.get(name) for cell in cells if cell.error is not None or name in cell.figures])


def _same_noise(row: PaperFigure, condition: Condition) -> bool:
    if condition.rate is None:
        return row.noise == condition.protocol
    return row.rate == condition.rate and (row.noise == condition.protocol or condition.rate == 0)


def _costs(bench: PaperBench) -> list[str]:
    """List processor time and memory of each method: medians over all noise and seeds."""
    rows = []
    for method in bench.methods:
        cells = [cell for (name, _), found in bench.cells.items() if name == method for cell in found]
        good = [cell for cell in cells if cell.error is None]
        if not cells:
            continue
        rows.append([method, format_median(c.seconds for c in good), format_median(c.memory_mb for c in good)])
    return _optional_table(["what it took", "CPU seconds", "memory MB"], rows)


def _noise_found(bench: PaperBench, judged: Sequence[PaperFigure], titles: Sequence[str]) -> list[str]:
    """Make tables of what table and methods found of the noise, and of its mean rank by weight; the papers' in brackets."""
    found = "What the table and the methods found of the noise (percent: precision / recall / F1, right labels after repair):"
    ranks = "Mean rank of the noise among all samples, the heaviest first, and the last that it can be (OSA Table 9):"
    return [
        *_judged_table(bench, judged, titles, found, format_noise_found, NOISE_FIGURES),
        *_judged_table(bench, judged, titles, ranks, format_noise_rank, RANK_FIGURES),
    ]


def _judged_table(
    bench: PaperBench,
    judged: Sequence[PaperFigure],
    titles: Sequence[str],
    title: str,
    written: Callable[[Iterable[Mapping[str, float | None]]], str],
    figures: Sequence[str],
) -> list[str]:
    """Make a table of what `written` makes of the table's and the methods' figures; no lines if nothing was judged."""
    rows = [["the weight table", *(written([bench.tables.get(one.name, {})]) for one in bench.conditions)]]
    for method in bench.methods:
        words = []
        for condition in bench.conditions:
            ours = written(cell.learnt for cell in bench.cells[method, condition.name])
            theirs = [
                " / ".join(f"{row.figures[name]:g}" for name in figures)
                for row in judged
                if row.method == method and set(figures) <= set(row.figures) and _same_noise(row, condition)
            ]
            words.append(f"{ours} ({', '.join(theirs)})" if theirs else ours)
        rows.append([method, *words])
    rows = [row for row in rows if any(word != "–" for word in row[1:])]
    return ["", title, *_optional_table(["method", *titles], rows)] if rows else []


def _judgement_note(row: PaperFigure) -> str:
    where = "on its own noise" if row.rate is None else f"at {100 * row.rate:g} %"
    figures = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in row.figures.items())
    return f"the paper's {row.part} by {row.method} {where}: {figures}{f' ({row.note})' if row.note else ''}"


def paper_json(bench: PaperBench) -> dict[str, Any]:
    """Return every cell with its noise, and the papers' figures."""
    cells = [{"noise": name, **json_values(asdict(cell))} for (_, name), found in bench.cells.items() for cell in found]
    reported = [row.model_dump(mode="json") for row in bench.reported]
    tables = {name: json_values(found) for name, found in bench.tables.items()}
    return {"preset": bench.preset.name, "setup": bench.setup, "cells": cells, "tables": tables, "papers": reported}


def paper_curves(bench: PaperBench) -> dict[str, Markup]:
    """Draw the main figure over the noise rates, for each protocol with several rates."""
    name = MAIN_FIGURE[bench.preset.task]
    kinds: dict[str, dict[float, Condition]] = {}
    for condition in bench.conditions:
        if condition.rate is not None:
            kinds.setdefault(condition.protocol, {})[condition.rate] = condition
    found = {}
    for protocol, by_rate in kinds.items():
        if len(by_rate) > 1:
            rates = sorted(by_rate)
            lines = {
                method: [our_spread(bench, name, method, by_rate[rate]) for rate in rates] for method in bench.methods
            }
            found[protocol] = draw_curves(f"{bench.preset.name}, {protocol}", name, rates, lines)
    return found


def write_paper_tables(bench: PaperBench, out: Path) -> list[Path]:
    """Write `results.md`, `results.json`, `results.html` and, with several rates, curves into the set-up's folder."""
    name, curves = bench.preset.name, {f"curves-{kind}": picture for kind, picture in paper_curves(bench).items()}
    title, folder = f"{name}, {bench.setup}", out / name / bench.setup
    return write_results(folder, title, paper_markdown(bench), paper_json(bench), curves)
