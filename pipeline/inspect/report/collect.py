"""Choose the score that a report shows, and read a run's tables once: counts, histograms, and the few rows shown.

Memory does not grow with the number of rows.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from noisegate.pipeline.pairs.beta import Beta
from noisegate.pipeline.pairs.calibration import LIKELY, Expected, PairCalibration
from noisegate.pipeline.runs.table import RunFolder, read_metadata
from noisegate.pipeline.settings import ScoreSettings
from noisegate.pipeline.system.array_types import Float64, Index, Mask


@dataclass(frozen=True)
class ScoreView:
    """The score that a report shows: `column` is drawn and cut, `rank` sorts worst to best.

    `noun` and `score` name a sample and its score in sentences.

    The column is drawn from -`span` to `span`; values outside are counted at the ends. `rule` is the rule that decided `clean`
    of pairs.
    """

    column: str
    rank: str
    noun: str
    score: str
    cut: float | None
    cut_name: str
    interval: tuple[float, float] | None
    calibration: PairCalibration | None
    span: float = 1.0
    rule: str = ScoreSettings.cut

    @property
    def expected(self) -> Expected | None:
        """Return what the rule is expected to keep and lose; None without a calibration."""
        if self.calibration is None or self.cut is None:
            return None
        return self.calibration.expected_of(self.rule, self.cut)

    @property
    def caption(self) -> str:
        """Title of the axis on which the column is drawn."""
        return "probability that the label is right" if self.noun == "label" else f"{self.score} of the {self.noun}"

    @property
    def edges(self) -> NDArray[np.float64]:
        """Return the ends of the bins that scores are counted in, (4001,); drawing merges these bins."""
        return np.linspace(-self.span, self.span, 4001)


def choose_score_view(facts: dict[str, Any]) -> ScoreView:
    """Choose the score to show by a table's metadata: the cosine of pairs, else their neighbourhood score, else labels."""
    calibration = _calibration(facts.get("calibration"))
    if facts.get("beta"):
        beta = Beta.from_dict(facts["beta"])
        rule = facts.get("cut") or ScoreSettings.cut
        return ScoreView(
            "similarity", "similarity", "pair", "similarity", beta.value, "β", beta.interval, calibration, rule=rule
        )
    near = facts.get("neighbourhood")
    if near and near.get("alone"):
        calibration = _calibration(near.get("calibration"))
        score = "neighbourhood agreement"
        return ScoreView(
            "neighbourhood", "neighbourhood", "pair", score, near.get("cut"), "cut", None, calibration, span=10
        )
    if facts.get("labels"):
        return ScoreView("clean_probability", "label_quality", "label", "probability", 0.5, "cut", None, None)
    return ScoreView("similarity", "similarity", "pair", "similarity", None, "cut", None, None)


def _calibration(values: dict[str, Any] | None) -> PairCalibration | None:
    return PairCalibration.from_dict(values) if values else None


COLUMNS = [
    "key", "index", "status", "error", "image_sha256", "text_sha256", "similarity", "osa_weight", "clean_probability",
    "label", "label_quality", "neighbourhood", "clean", "predicted_label", "predicted_confidence",
    "refined_label", "flags",
]  # fmt: skip
COARSE = 10  # fine bins merged into one bin of a shard's histogram
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class TableRow:
    """One row of a table: its shard's stem, and its columns by name."""

    stem: str
    values: dict[str, Any]

    @property
    def place(self) -> tuple[str, int]:
        """Return the shard's stem and the sample's position in it: unique, while keys may repeat."""
        return self.stem, int(self.values["index"])

    @property
    def key(self) -> str:
        return str(self.values["key"])


class Lowest:
    """Keep the `count` rows with the lowest score over all tables added; ties go to the row that came first.

    >>> lowest = Lowest(2)
    >>> lowest.add("a", pa.table({"key": ["x", "y", "z"], "index": [0, 1, 2]}), np.array([0.3, np.nan, 0.1]))
    >>> lowest.add("b", pa.table({"key": ["v"], "index": [0]}), np.array([0.2]))
    >>> [row.key for row in lowest.rows]
    ['z', 'v']
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._kept: list[tuple[float, TableRow]] = []

    def add(self, stem: str, table: pa.Table, score: Float64) -> None:
        """Consider all rows of a table; `score` (N,), NaN for rows that do not take part."""
        eligible = np.flatnonzero(~np.isnan(score))
        if len(self._kept) == self._count and self._kept:
            eligible = eligible[score[eligible] < self._kept[-1][0]]
        rows = eligible[np.argsort(score[eligible], kind="stable")[: self._count]]
        if len(rows):
            lowest = zip(score[rows].tolist(), _table_rows(stem, table, rows), strict=True)
            self._kept = sorted([*self._kept, *lowest], key=lambda entry: entry[0])[: self._count]

    @property
    def rows(self) -> list[TableRow]:
        """The rows kept, lowest score first."""
        return [row for _, row in self._kept]


class LowestPerClass:
    """Keep the lowest rows of every class; memory grows with the number of classes only."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.classes: dict[int, Lowest] = {}

    def add(self, stem: str, table: pa.Table, labels: Index, score: Float64) -> None:
        """Consider all rows of a table; `labels` (N,), negative for none; `score` (N,), NaN for rows that do not take part."""
        rows = np.flatnonzero((labels >= 0) & ~np.isnan(score))
        rows = rows[np.lexsort((score[rows], labels[rows]))]
        if not len(rows):
            return
        starts = np.flatnonzero(np.diff(labels[rows], prepend=-1))
        rank = np.arange(len(rows)) - np.repeat(starts, np.diff([*starts, len(rows)]))
        rows = rows[rank < self._count]
        chosen = np.full(len(score), np.nan)
        for label in np.unique(labels[rows]):
            mine = rows[labels[rows] == label]
            chosen[mine] = score[mine]
            self.classes.setdefault(int(label), Lowest(self._count)).add(stem, table, chosen)
            chosen[mine] = np.nan


def _table_rows(stem: str, table: pa.Table, numbers: Index) -> list[TableRow]:
    return [TableRow(stem, values) for values in table.take(pa.array(numbers)).to_pylist()] if len(numbers) else []


@dataclass(frozen=True)
class Sizes:
    """Numbers of samples that a report shows: per gallery, per class, of duplicates, and per kind of failure."""

    gallery: int = 12
    per_class: int = 4
    duplicates: int = 8
    failures: int = 5


@dataclass
class Confusion:
    """Counts of (given label, predicted class), as sorted codes `given * 2**32 + predicted` with counts."""

    codes: Index = field(default_factory=lambda: np.zeros(0, np.int64))
    counts: Index = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, given: Index, predicted: Index) -> None:
        codes, counts = np.unique((given << 32) + predicted, return_counts=True)
        self.codes, place = np.unique(np.concatenate([self.codes, codes]), return_inverse=True)
        self.counts = np.bincount(place, np.concatenate([self.counts, counts])).astype(np.int64)

    @property
    def entries(self) -> list[tuple[int, int, int]]:
        """List (given, predicted, count) of all that occur, the most frequent first."""
        order = np.argsort(-self.counts, kind="stable")
        return [
            (int(self.codes[i]) >> 32, int(self.codes[i]) & 0xFFFFFFFF, int(self.counts[i])) for i in order.tolist()
        ]


@dataclass
class ShardFacts:
    """One shard's scores (a coarse histogram and quantiles) and the number of samples that failed."""

    stem: str
    rows: int
    failed: int
    histogram: Index
    quantiles: tuple[float, ...]
    damage: str | None


@dataclass
class ReportData:
    """Statistics and chosen rows of all tables; the size depends on shards and classes, not on rows."""

    rows: int = 0
    scored: int = 0
    kept: int = 0
    dropped_likely: int = 0  # rows that are not clean with P(clean) above 0.5
    kept_unlikely: int = 0  # rows that are clean with P(clean) of 0.5 or less
    weight_sum: float = 0.0
    weighted: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    flags: Counter[str] = field(default_factory=Counter)
    histogram: Index = field(default_factory=lambda: np.zeros(4000, np.int64))
    shards: list[ShardFacts] = field(default_factory=list)
    worst: list[TableRow] = field(default_factory=list)
    best: list[TableRow] = field(default_factory=list)
    borderline: list[TableRow] = field(default_factory=list)
    duplicates: list[TableRow] = field(default_factory=list)
    originals: dict[tuple[str, int], TableRow] = field(default_factory=dict)
    failures: dict[str, list[TableRow]] = field(default_factory=dict)
    confusion: Confusion = field(default_factory=Confusion)
    suspects: dict[int, list[TableRow]] = field(default_factory=dict)
    label_doubts: Counter[int] = field(default_factory=Counter)
    changed: int = 0  # labels
    label_counts: Counter[int] = field(default_factory=Counter)


def collect(run: RunFolder, stems: Sequence[str], view: ScoreView, sizes: Sizes) -> ReportData:
    """Read every table once; read the keys of all tables again if duplicates need their originals."""
    data = ReportData()
    worst, best, borderline = (Lowest(sizes.gallery) for _ in range(3))
    duplicates = Lowest(sizes.duplicates)
    per_class = LowestPerClass(sizes.per_class)
    for stem in stems:
        table = run.read(stem, COLUMNS)
        ok = pc.equal(table["status"], "ok").to_numpy()
        score, rank = (np.where(ok, _floats(table, name), np.nan) for name in (view.column, view.rank))
        _count(data, table)
        worst.add(stem, table, rank)
        best.add(stem, table, -rank)
        if view.cut is not None:
            borderline.add(stem, table, np.abs(score - view.cut))
        duplicates.add(stem, table, _doubt_of_duplicates(table))
        _add_failures(data, stem, table, sizes.failures)
        _add_shard(data, run, stem, ok, score, view)
        _add_labels(data, per_class, stem, table, ok)
    data.worst, data.best, data.borderline = worst.rows, best.rows, borderline.rows
    data.duplicates = duplicates.rows
    data.suspects = {label: lowest.rows for label, lowest in per_class.classes.items()}
    data.originals = _originals(run, stems, data.duplicates)
    return data


def _count(data: ReportData, table: pa.Table) -> None:
    data.rows += len(table)
    data.statuses.update(_values(table["status"].cast("string")))
    words = pc.list_flatten(table["flags"]).cast("string")
    data.flags.update(_values(pc.replace_substring_regex(words, "(?s)^duplicate_of:.*", "duplicate")))
    data.kept += pc.sum(table["clean"]).as_py() or 0
    likely = pc.greater(table["clean_probability"], LIKELY)
    data.dropped_likely += pc.sum(pc.and_(likely, pc.invert(table["clean"]))).as_py() or 0
    data.kept_unlikely += pc.sum(pc.and_(pc.invert(likely), table["clean"])).as_py() or 0
    weight = table["osa_weight"].drop_null()
    data.weighted += len(weight)
    data.weight_sum += pc.sum(weight).as_py() or 0.0


def _values(column: pa.ChunkedArray) -> dict[str, int]:
    return {entry["values"]: entry["counts"] for entry in pc.value_counts(column).to_pylist()}


def _add_shard(data: ReportData, run: RunFolder, stem: str, ok: Mask, score: Float64, view: ScoreView) -> None:
    known = score[~np.isnan(score)]
    fine = np.histogram(np.clip(known, -view.span, view.span), view.edges)[0]
    data.scored += len(known)
    data.histogram += fine
    quantiles = tuple(np.quantile(known, QUANTILES).tolist()) if len(known) else ()
    coarse = fine.reshape(-1, COARSE).sum(axis=1)
    damage = read_metadata(run.table(stem))["shard"].get("damage")
    data.shards.append(ShardFacts(stem, len(ok), int((~ok).sum()), coarse, quantiles, damage))


def _add_failures(data: ReportData, stem: str, table: pa.Table, most: int) -> None:
    """Keep the first few rows of every status."""
    status = np.array(table["status"].to_pylist())
    for name in np.unique(status[status != "ok"]).tolist():
        examples = data.failures.setdefault(name, [])
        rows = np.flatnonzero(status == name)[: most - len(examples)]
        examples += _table_rows(stem, table, rows)


def _add_labels(data: ReportData, per_class: LowestPerClass, stem: str, table: pa.Table, ok: Mask) -> None:
    quality = _floats(table, "label_quality")
    given, predicted = (_integers(table, name) for name in ("label", "predicted_label"))
    known = ok & ~np.isnan(quality) & (given >= 0)
    if not known.any():
        return
    doubtful = known & (quality < 0.5)
    seen = doubtful & (predicted >= 0)
    data.confusion.add(given[seen], predicted[seen])
    data.label_counts.update(_tally(given[known]))
    data.label_doubts.update(_tally(given[doubtful]))
    data.changed += int((known & (given != _integers(table, "refined_label"))).sum())
    per_class.add(stem, table, np.where(known, given, -1), np.where(known, quality, np.nan))


def _tally(labels: Index) -> dict[int, int]:
    values, counts = np.unique(labels, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def _doubt_of_duplicates(table: pa.Table) -> Float64:
    """Return P(clean) of rows flagged as a duplicate (2 if not known), NaN for all other rows."""
    flags = pc.list_flatten(table["flags"]).cast("string")
    rows = pc.list_parent_indices(table["flags"]).to_numpy()[pc.starts_with(flags, "duplicate_of:").to_numpy()]
    doubt = np.full(len(table), np.nan)
    doubt[rows] = np.nan_to_num(_floats(table, "clean_probability"), nan=2.0)[rows]
    return doubt


def _originals(run: RunFolder, stems: Sequence[str], duplicates: Sequence[TableRow]) -> dict[tuple[str, int], TableRow]:
    """Find the row that each duplicate names, by the duplicate's place; if a key occurs twice in a shard, the first row."""
    wanted = {row.place: named for row in duplicates if (named := _original(row, stems))}
    rows_by_key: dict[tuple[str, str], list[TableRow]] = {}
    for stem in sorted({stem for stem, _ in wanted.values()}):
        keys = pa.array(sorted({key for shard, key in wanted.values() if shard == stem}), pa.string())
        hits = pc.is_in(run.read(stem, ["key"])["key"], value_set=keys)
        if pc.any(hits).as_py():
            for values in run.read(stem, COLUMNS).filter(hits).to_pylist():
                rows_by_key.setdefault((stem, values["key"]), []).append(TableRow(stem, values))
    return {
        place: others[0]
        for place, named in wanted.items()
        if (others := [row for row in rows_by_key.get(named, []) if row.place != place])
    }


def _original(row: TableRow, stems: Sequence[str]) -> tuple[str, str] | None:
    """Return shard and key of the sample that a row repeats; a name without a shard is a key in the row's own shard.

    Keys may hold slashes too: the part before a slash is a shard only if the run has it.
    """
    name = original_key(row)
    if name is None:
        return None
    shards = [stem for stem in stems if stem != row.stem and name.startswith(f"{stem}/")]
    shard = max(shards, key=len, default=None)
    return (row.stem, name) if shard is None else (shard, name.removeprefix(f"{shard}/"))


def original_key(row: TableRow) -> str | None:
    """Return the sample that a row's flag `duplicate_of:` names: its key, prefixed with `SHARD/` if it is in another shard."""
    prefix = "duplicate_of:"
    return next((flag.removeprefix(prefix) for flag in row.values["flags"] or [] if flag.startswith(prefix)), None)


def _floats(table: pa.Table, name: str) -> Float64:
    values: Float64 = table[name].to_numpy(zero_copy_only=False).astype(np.float64)
    return values


def _integers(table: pa.Table, name: str) -> Index:
    values: Index = table[name].cast(pa.int64()).fill_null(-1).to_numpy()
    return values
