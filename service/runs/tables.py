"""Query the tables of a finished run: overview, histogram, ranked and filtered rows. One table is in memory at a time.

Results that need a pass over all tables are cached until one of the run's files changes.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from noisegate.pipeline.errors import ConfigError, TableError
from noisegate.pipeline.inspect import (
    ReviewFigures,
    bin_range,
    bin_width,
    read_class_names,
    read_judged,
    read_overview,
    review_figures,
)
from noisegate.pipeline.inspect.report import ScoreView, choose_score_view
from noisegate.pipeline.pairs import PairCalibration
from noisegate.pipeline.runs import (
    COLUMNS,
    READ_BY_NAME,
    REVIEW_COLUMNS,
    RunFolder,
    Where,
    parse_where,
    read_metadata,
    sample_order,
)
from noisegate.pipeline.system import Float64, Index

DEPTH = 10_000  # most rows of a view that can be paged through
MAX_CACHED = 48  # cached results per run
BINS = 20  # most bins that `bin_width` leads to
RARE = 0.01  # share of pairs below which a kind (wrong, right) has no quantiles; chosen
NUMBERS = tuple(name for name, (kind, _) in COLUMNS.items() if pa.types.is_floating(kind))
SHOWN = [*COLUMNS, *REVIEW_COLUMNS]  # columns of a row

View = Literal["worst", "best", "borderline", "random", "all"]
Review = Literal["none", "any", "keep", "drop", "relabel", "disagree"]
REVIEWED: dict[str | None, str | None] = {
    None: None,
    "none": "review is null",
    "any": "review is not null",
    "disagree": "(review = 'keep' and not clean) or (review <> 'keep' and clean)",
    **{mark: f"review = '{mark}'" for mark in ("keep", "drop", "relabel")},
}
Known = TypeVar("Known")


@dataclass(frozen=True)
class Filters:
    """Conditions on rows; None means any. `flag` also matches `flag:…`, `key` a part of a key."""

    low: float | None = None
    high: float | None = None
    status: str | None = None
    label: int | None = None
    clean: bool | None = None
    flag: str | None = None
    key: str | None = None
    shard: str | None = None
    review: Review | None = None
    where: str | None = None

    def rules(self) -> list[Where]:
        """Return the conditions as rules of `noisegate.pipeline.runs.where`; raise ConfigError for an invalid `where`.

        >>> [rule.text for rule in Filters(low=0.5, key="it's").rules()]
        ['clean_probability >= 0.5', "key like '%it''s%'"]
        """
        texts = [
            None if self.low is None else f"clean_probability >= {self.low!r}",
            None if self.high is None else f"clean_probability <= {self.high!r}",
            None if self.status is None else f"status = {_quote(self.status)}",
            None if self.label is None else f"label = {self.label}",
            None if self.clean is None else f"clean = {str(self.clean).lower()}",
            None
            if self.flag is None
            else f"{_quote(self.flag)} in flags or flags like {_quote(_escape_like(self.flag) + ':%')}",
            None if self.key is None else f"key like {_quote(f'%{_escape_like(self.key)}%')}",
            None if self.shard is None else f"shard = {_quote(self.shard)}",
            REVIEWED[self.review],
            self.where or None,
        ]
        return [parse_where(text) for text in texts if text is not None]


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _escape_like(text: str) -> str:
    """Escape the wildcards of `like`."""
    return "".join(f"\\{sign}" if sign in "\\%_" else sign for sign in text)


@dataclass(frozen=True)
class Bins:
    """Counts of kept, dropped and undecided rows in [edges[i], edges[i + 1])."""

    column: str
    edges: tuple[float, ...]
    kept: tuple[int, ...]
    dropped: tuple[int, ...]
    unknown: tuple[int, ...]


@dataclass(frozen=True)
class RowSelection:
    """Rows in the order of a view: at most DEPTH of `total`, by shard (an index into `stems`) and row."""

    total: int
    stems: tuple[str, ...]
    places: Index
    rows: Index


def usual_similarities(calibration: PairCalibration) -> dict[str, tuple[float, float, float] | None]:
    """Return the similarities below which 5, 50 and 95 % of the wrong and right pairs lie; None for a rare kind."""
    cosines, kept, clean = calibration.by_cosine
    above = {"wrong": kept - clean, "right": clean}
    quantiles: dict[str, tuple[float, float, float] | None] = {}
    for kind, share in above.items():
        if share[0] < RARE:
            quantiles[kind] = None
            continue
        below = np.maximum.accumulate(1 - share / share[0])
        low, middle, high = np.interp((0.05, 0.5, 0.95), below, cosines).round(4).tolist()
        quantiles[kind] = (low, middle, high)
    return quantiles


class RunTables:
    """The tables of one run folder. Thread-safe: one thread reads while the others wait."""

    def __init__(self, path: Path) -> None:
        self.run = RunFolder(path)
        self._lock = threading.Lock()
        self._record: tuple[object, dict[str, Any]] = (None, {})
        self._stamp: object = None
        self._cache: OrderedDict[object, Any] = OrderedDict()

    def recorded(self) -> dict[str, Any]:
        """The content of `_run.json`; raises TableError without a finished run."""
        with self._lock:
            return self._recorded()

    def stems(self) -> tuple[str, ...]:
        """Names of the tables, in order."""
        with self._lock:
            return self._stems()

    def lenses(self) -> list[ScoreView]:
        """The scores that can be browsed, the run's main score first: pairs by cosine or neighbourhood, and labels."""
        with self._lock:
            return self._cached("lenses", self._lenses)

    def names(self) -> tuple[str, ...]:
        """Class names; empty if the run has no anchors."""
        with self._lock:
            return self._cached("names", lambda: read_class_names(self.run))

    def overview(self) -> dict[str, Any]:
        """Figures of the whole run, as `noisegate show` prints them, with usual similarities and counts by class."""
        with self._lock:
            return self._cached("overview", self._overview)

    def histogram(self, column: str, filters: Filters, bins: int = 50) -> Bins | None:
        """Count rows in at most `bins` bins of a round width, with an edge at the column's cut; None if no row has a value."""
        if column not in NUMBERS:
            raise ConfigError.of("column", column, f"holds no numbers; use one of {', '.join(NUMBERS)}")
        rules = filters.rules()
        with self._lock:
            key = ("bins", column, filters, bins, self._review_stamp(rules))
            return self._cached(key, lambda: self._histogram(column, rules, bins))

    def choose(self, view: View, filters: Filters, by: str | None = None) -> RowSelection:
        """Choose the rows of a view from the rows that pass the filters.

        `by` names the column that ranks, the run's own score unless given. Rows without that score are in no view but `all`,
        which is the order of the table, and `random`, which has all rows that are clean or not, in a fixed random order. Raises
        ConfigError for `borderline` of a column without a cut.
        """
        rules = filters.rules()
        with self._lock:
            column, cut = self._ranking(by)
            if view == "borderline":
                if cut is None:
                    raise ConfigError(f"view 'borderline': {column} has no cut; use view 'worst'", "view", view)
                column, rank = self._cut_column(column), lambda values: np.abs(values - cut)
            else:
                rank = (lambda values: -values) if view == "best" else (lambda values: values)
            ordered = {"all": None, "random": "clean"}.get(view, column)
            key = ("rows", view, column, filters, self._review_stamp(rules))
            return self._cached(key, lambda: self._choose(ordered, None if view == "random" else rank, rules))

    def review(self) -> ReviewFigures:
        """Compute how often the tool agrees with people's marks."""
        chosen = self.choose("random", Filters())
        with self._lock:
            return self._cached(("review", self._reviews()), lambda: self._review(chosen))

    def rows(self, chosen: RowSelection, start: int, count: int) -> list[dict[str, Any]]:
        """Read some of the chosen rows with all columns and their `shard`."""
        part = slice(start, start + count)
        places, rows = chosen.places[part], chosen.rows[part]
        found: list[dict[str, Any]] = [{} for _ in places]
        for place in np.unique(places):
            stem, here = chosen.stems[int(place)], np.flatnonzero(places == place)
            taken = self.run.read(stem, SHOWN).take(pa.array(rows[here])).to_pylist()
            for number, values in zip(here, taken, strict=True):
                found[number] = {"shard": stem, **values}
        return found

    def row(self, stem: str, index: int) -> dict[str, Any] | None:
        """Read one row with all columns, None if the run has no such shard or sample."""
        if stem not in self.stems() or index < 0:
            return None
        table = self.run.read(stem, SHOWN).slice(index, 1)
        return {"shard": stem, **table.to_pylist()[0]} if len(table) else None

    def _cached(self, key: object, compute: Callable[[], Known]) -> Known:
        """Compute a result once for the present files of the run; keeps the last MAX_CACHED."""
        stamp = tuple(_stamp(path) for path in (self.run.run_file, *map(self.run.table, self._stems())))
        if stamp != self._stamp:
            self._stamp = stamp
            self._cache.clear()
        if key not in self._cache:
            self._cache[key] = compute()
        self._cache.move_to_end(key)
        while len(self._cache) > MAX_CACHED:
            self._cache.popitem(last=False)
        result: Known = self._cache[key]
        return result

    def _recorded(self) -> dict[str, Any]:
        stamp = _stamp(self.run.run_file)
        if stamp != self._record[0]:
            self._record = (stamp, self.run.read_run() or {})
        found = self._record[1]
        if not found or found.get("finished") is False:
            raise TableError(f"{self.run.path} holds no finished run; finish it with the same annotate command")
        return found

    def _stems(self) -> tuple[str, ...]:
        return tuple(shard["table"] for shard in self._recorded()["shards"] if self.run.table(shard["table"]).exists())

    def _reviews(self) -> object:
        """A value that changes with the marks."""
        path = self.run.reviews.path
        return _stamp(path) if path.exists() else None

    def _review_stamp(self, rules: list[Where]) -> object:
        """Return `_reviews` if a rule depends on the marks, else None: most results stay valid after a new mark."""
        return self._reviews() if any(set(rule.columns) & REVIEW_COLUMNS.keys() for rule in rules) else None

    def _review(self, chosen: RowSelection) -> ReviewFigures:
        marks = self.run.reviews.read()
        order = (
            (chosen.stems[place], row) for place, row in zip(chosen.places.tolist(), chosen.rows.tolist(), strict=True)
        )
        return review_figures(read_judged(self.run, marks), marks, order)

    def _lenses(self) -> list[ScoreView]:
        stems = self._stems()
        facts = read_metadata(self.run.table(stems[0])) if stems else {}
        first = choose_score_view(facts)
        labels = facts.get("labels")
        return [first] if first.noun == "label" or not labels else [first, choose_score_view({"labels": labels})]

    def _ranking(self, by: str | None) -> tuple[str, float | None]:
        """Return the column that ranks, and the cut that belongs to it."""
        lenses = self._cached("lenses", self._lenses)
        if by is None:
            return lenses[0].rank, lenses[0].cut
        if by not in NUMBERS:
            raise ConfigError.of("by", by, f"is no column of numbers; use one of {', '.join(NUMBERS)}")
        cut = next((lens.cut for lens in lenses if by in (lens.rank, lens.column)), None)
        return by, 0.5 if by == "clean_probability" else cut

    def _cut_column(self, column: str) -> str:
        """Return the column of the cut, which can differ from the ranking: labels rank by quality, are cut by probability."""
        lenses = self._cached("lenses", self._lenses)
        return next((lens.column for lens in lenses if lens.rank == column), column)

    def _overview(self) -> dict[str, Any]:
        seen = read_overview(self.run.path, top=0)
        summary = seen.summary
        names = read_class_names(self.run)
        return {
            **summary.to_dict(),
            "notes": list(seen.notes),
            "usual": usual_similarities(summary.calibration) if summary.calibration else None,
            "class_names": list(names),
            "class_counts": [
                {"label": label, "name": names[label] if label < len(names) else None, "count": count, "kept": kept}
                for label, (count, kept) in sorted(self._labels().items())
            ],
        }

    def _labels(self) -> dict[int, tuple[int, int]]:
        """Count rows and kept rows of every given class."""
        totals: dict[int, tuple[int, int]] = {}
        for _, table in self._tables(["label", "clean"], []):
            known = pc.is_valid(table["label"]).to_numpy()
            label = table["label"].fill_null(-1).to_numpy()[known]
            kept = table["clean"].fill_null(False).to_numpy()[known]
            for value, count in zip(*np.unique(label, return_counts=True), strict=True):
                before = totals.get(int(value), (0, 0))
                totals[int(value)] = (before[0] + int(count), before[1] + int(kept[label == value].sum()))
        return totals

    def _tables(self, columns: list[str], rules: list[Where]) -> Iterator[tuple[int, pa.Table]]:
        """Yield (index, table) of every shard with the columns, and `passes`: whether all rules hold for the row."""
        needed = {*columns, *(name for rule in rules for name in rule.columns)} - {"shard"}
        for place, stem in enumerate(self._stems()):
            table = self.run.read(stem, [name for name in READ_BY_NAME if name in needed] or ["index"])
            shard = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(table), np.int32)), [stem])
            table = table.append_column("shard", shard)
            passes = np.ones(len(table), bool)
            for rule in rules:
                passes &= rule.mask(table)
            yield place, table.append_column("passes", pa.array(passes))

    def _histogram(self, column: str, rules: list[Where], bins: int) -> Bins | None:
        lows, highs = [], []
        for _, table in self._tables([column], rules):
            values = _floats(table, column)[table["passes"].to_numpy()]
            if not np.isnan(values).all():
                lows.append(np.nanmin(values))
                highs.append(np.nanmax(values))
        if not lows:
            return None
        low, high = min(lows), max(highs)
        cut = self._ranking(column)[1] or 0.0
        width = bin_width((high - low) * BINS / bins)
        first, last = bin_range((low - cut) / width, (high - cut) / width)
        counts = np.zeros((3, last - first + 1), np.int64)
        for _, table in self._tables([column, "clean"], rules):
            values = _floats(table, column)
            taken = table["passes"].to_numpy() & ~np.isnan(values)
            place = np.minimum(np.floor((values[taken] - cut) / width).astype(np.int64), last) - first
            clean = np.asarray(table["clean"].cast(pa.int8()).fill_null(2).to_numpy())[taken]
            for row, fate in enumerate((1, 0, 2)):
                counts[row] += np.bincount(place[clean == fate], minlength=counts.shape[1])
        edges = tuple(round(float(cut + width * i), 9) for i in range(first, last + 2))
        kept, dropped, unknown = (tuple(part) for part in counts.tolist())
        return Bins(column, edges, kept, dropped, unknown)

    def _choose(
        self, column: str | None, rank: Callable[[Float64], Float64] | None, rules: list[Where]
    ) -> RowSelection:
        """Choose the rows with a value in `column` (all rows for None) by rank; in random order without a rank."""
        total, score = 0, np.zeros(0)
        places, rows = np.zeros(0, np.int64), np.zeros(0, np.int64)
        for place, table in self._tables([column] if column else [], rules):
            here = _floats(table, column) if column else np.zeros(len(table))
            if rank is None:
                here = np.where(np.isnan(here), np.nan, sample_order(self._stems()[place], len(table)))
            elif column:
                here = rank(here)
            taken = np.flatnonzero(table["passes"].to_numpy() & ~np.isnan(here))
            total += len(taken)
            score = np.concatenate([score, here[taken]])
            places = np.concatenate([places, np.full(len(taken), place)])
            rows = np.concatenate([rows, taken])
            order = np.argsort(score, kind="stable")[:DEPTH]  # ties: the earlier row first
            score, places, rows = score[order], places[order], rows[order]
        return RowSelection(total, self._stems(), places, rows)


def _stamp(path: Path) -> tuple[int, int, int]:
    """Return a value that changes with the file; raise TableError if it is missing."""
    try:
        stat = path.stat()
    except OSError as error:
        raise TableError(f"{path} cannot be read: {error.strerror}") from error
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _floats(table: pa.Table, name: str) -> Float64:
    values: Float64 = table[name].to_numpy(zero_copy_only=False).astype(np.float64)
    return values


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a row for JSON: digests in hex, None for numbers that are not finite."""
    unknown = [name for name, value in values.items() if isinstance(value, float) and not np.isfinite(value)]
    digests = {name: value.hex() for name, value in values.items() if isinstance(value, bytes)}
    return {**values, **digests, **dict.fromkeys(unknown)}
