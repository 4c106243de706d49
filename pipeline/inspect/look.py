"""Look at a run in a notebook: `noisegate.gallery` shows samples with their pictures, `noisegate.histogram` the scores.

Both take a run's folder, or a table that `read_table` gave (filtered and sorted as you like) with `run=` naming its folder.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from noisegate.pipeline.errors import ConfigError, TableError
from noisegate.pipeline.runs.table import ALL_COLUMNS, RunFolder, read_metadata
from noisegate.pipeline.runs.where import Where, parse_where
from noisegate.pipeline.settings import Limits
from noisegate.pipeline.system.array_types import Float64

from .notebook import draw_cards, paragraph, wrap
from .report.build import mismatched_cosines
from .report.charts import Bins, draw_histogram, merge_bins
from .report.collect import COLUMNS, Lowest, ScoreView, TableRow, choose_score_view
from .report.page import card, count
from .report.pictures import Album, fetch
from .report.sections import describe_histogram
from .show import read_class_names

ORDERS = ("worst", "best", "borderline")
MOST = 500  # most samples of a gallery


@dataclass(frozen=True, eq=False)
class Gallery:
    """Samples of a run with their pictures; `rows` are their table rows, `title` describes the selection."""

    title: str
    rows: Sequence[TableRow]
    album: Album = field(repr=False)
    class_names: Sequence[str] = field(default=(), repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<gallery of {self.title}: {', '.join(row.key for row in self.rows[:5])}{' …' * (len(self) > 5)}>"

    def _repr_html_(self) -> str:
        missing = [f"{stem}: {reason}" for stem, reason in self.album.missing.items()]
        return wrap(
            paragraph(self.title),
            *(paragraph(f"Some pictures are missing: {reason}", "notice") for reason in missing[:1]),
            draw_cards(card(row, self.album, self.class_names) for row in self.rows),
        )


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts of scores between `edges` (B + 1,), and counts of pairs mismatched on purpose, None if there are none."""

    view: ScoreView
    bins: Bins

    @property
    def edges(self) -> Float64:
        return self.bins.edges

    @property
    def counts(self) -> Any:
        return self.bins.given

    @property
    def mismatched(self) -> Any:
        return self.bins.mismatched

    def __repr__(self) -> str:
        return f"<histogram: {describe_histogram(self.bins, self.view)}>"

    def _repr_html_(self) -> str:
        description = describe_histogram(self.bins, self.view)
        chart = draw_histogram(self.bins, self.view, f"histogram-{id(self)}", 820, 280, description)
        return wrap(chart, paragraph(description, "quiet"))


def gallery(
    source: str | Path | pa.Table,
    *,
    run: str | Path | None = None,
    where: str | Where | None = None,
    order: str = "worst",
    limit: int = 12,
) -> Gallery:
    """Show samples of a run with pictures, captions, scores and verdict.

    For a folder, show the `worst`, `best` or `borderline` samples (`order`) for which `where` holds; for a table, its first
    rows. If a shard is gone, only its pictures are missing.
    """
    if order not in ORDERS:
        raise ConfigError.of("order", order, f"is unknown; use {', '.join(ORDERS)}")
    if not 1 <= limit <= MOST:
        raise ConfigError.of("limit", limit, f"is no number of samples for a page; use 12, at most {MOST}")
    folder, tables = _open(source, run)
    if folder is None:
        raise ConfigError("run is needed to find the pictures of a table; give run='tables'", "run")
    rule = parse_where(where) if isinstance(where, str) else where
    view = _view_of(folder)
    if isinstance(source, pa.Table):
        rows, title = _first_rows(source, rule, limit), f"the first {limit} rows"
    else:
        rows = _ordered_rows(tables(_columns(rule)), view, rule, order, limit)
        title = f"the {order} {view.noun}s by {view.rank}"
    recorded = folder.recorded()
    reading, album = recorded.get("reading") or {}, Album()
    if "limits" in reading:  # a run from embeddings has no pictures
        urls = {entry["table"]: entry["url"] for entry in recorded["shards"]}
        limits = Limits.from_dict(reading["limits"])
        album = fetch(rows, urls, reading.get("text_field"), limits, lambda text: None)
    title = f"{count(len(rows), 'sample')}, {title}{f', where {rule.text}' if rule else ''}"
    return Gallery(title, rows, album, read_class_names(folder))


def histogram(
    source: str | Path | pa.Table,
    *,
    run: str | Path | None = None,
    column: str | None = None,
    where: str | Where | None = None,
) -> Histogram:
    """Draw a histogram of scores as in the report, with the cut and the mismatched pairs if they are known.

    `column` is any column of numbers (default: the score that the run's cut applies to); `where` limits the rows.
    """
    folder, tables = _open(source, run, embeddings=where is None)
    rule = parse_where(where) if isinstance(where, str) else where
    view = _view_of(folder) if folder is not None else choose_score_view({})
    wrong = np.zeros(0, np.float32)
    if column is None or column == view.column:
        wrong = _mismatched(folder, view) if folder is not None and rule is None else wrong
    else:
        kind = ALL_COLUMNS.get(column, (pa.null(), ""))[0]
        if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
            raise ConfigError.of("column", column, "is not a column of numbers; use similarity or clean_probability")
        view = ScoreView(column, column, "sample", column, None, "cut", None, None)
    scores = [
        values[~np.isnan(values)]
        for _, table in tables([view.column, *(rule.columns if rule else ())])
        for values in [_floats(table, view.column)[rule.mask(table) if rule else slice(None)]]
    ]
    known = np.concatenate([np.zeros(0), *scores])
    if not len(known):
        raise TableError.of("column", view.column, "has no values in these rows; choose another, or another where")
    edges = view.edges if known.min() >= -1 and known.max() <= 1 else np.linspace(known.min(), known.max() + 1e-9, 4001)
    behind = np.histogram(np.clip(wrong, edges[0], edges[-1]), edges)[0] if len(wrong) else None
    inside = [view.cut] if view.cut is not None else []
    return Histogram(
        view, merge_bins(edges, np.histogram(np.clip(known, edges[0], edges[-1]), edges)[0], behind, inside)
    )


def _open(source: Any, run: str | Path | None, embeddings: bool = False) -> tuple[RunFolder | None, Any]:
    """Return the run (None for a table alone), and a function from column names to (stem, table), one at a time."""
    if isinstance(source, pa.Table):

        def given(columns: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
            for name in columns:
                if name not in source.column_names:
                    raise TableError.of("column", name, "is not in this table; read it with read_table(run)")
            yield "", source

        return (RunFolder.to_read(run, embeddings) if run is not None else None), given
    if not isinstance(source, str | Path):
        raise ConfigError.of("source", type(source).__name__, "is not a run; give its folder, or what read_table gave")
    if run is not None:
        raise ConfigError.of("run", run, f"is given twice, also as {source}; leave it out")
    folder = RunFolder.to_read(source, embeddings)

    def read(columns: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
        for stem in folder.stems():
            table = folder.read(stem, [name for name in dict.fromkeys(columns) if name != "shard"])
            yield stem, table.append_column("shard", pa.array([stem] * len(table), pa.string()))

    return folder, read


def _view_of(folder: RunFolder) -> ScoreView:
    if folder.recorded().get("finished") is False:
        raise TableError.of("run", str(folder.path), "is not finished; run the same annotate command again, it goes on")
    stem = next(folder.stems(), None)
    if stem is None:
        raise TableError.of("run", str(folder.path), "holds no weight tables; make some with annotate")
    return choose_score_view(read_metadata(folder.table(stem)))


def _columns(rule: Where | None) -> list[str]:
    return [*COLUMNS, *(name for name in (rule.columns if rule else ()) if name not in COLUMNS)]


def _ordered_rows(
    tables: Iterator[tuple[str, pa.Table]], view: ScoreView, rule: Where | None, order: str, limit: int
) -> list[TableRow]:
    lowest = Lowest(limit)
    for stem, table in tables:
        rank = _floats(table, view.rank)
        if order == "best":
            rank = -rank
        elif order == "borderline":
            rank = np.abs(_floats(table, view.column) - (view.cut if view.cut is not None else np.nan))
        lowest.add(stem, table, np.where(rule.mask(table), rank, np.nan) if rule else rank)
    return lowest.rows


def _first_rows(table: pa.Table, rule: Where | None, limit: int) -> list[TableRow]:
    missing = [name for name in ("shard", "key", "index") if name not in table.column_names]
    if missing:
        raise TableError.of("table", missing[0], "is missing, which finds a sample; read it with read_table(run)")
    chosen = table.filter(pa.array(rule.mask(table))) if rule else table
    rows = chosen.slice(0, limit).to_pylist()
    return [TableRow(row["shard"], {**dict.fromkeys(COLUMNS), **row}) for row in rows]


def _mismatched(folder: RunFolder, view: ScoreView) -> Any:
    stems = list(folder.stems())
    return mismatched_cosines(folder, stems, view, read_metadata(folder.table(stems[0])))[0]


def _floats(table: pa.Table, name: str) -> Float64:
    values: Float64 = table[name].to_numpy(zero_copy_only=False).astype(np.float64)
    return values
