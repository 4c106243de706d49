"""Compare a run with people's marks: how often the tool agreed, and where the cut should be (`noisegate review`)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.stats import binomtest

from noisegate.pipeline.errors import ConfigError, TableError
from noisegate.pipeline.runs.reviews import MARKS, Mark, sample_order
from noisegate.pipeline.runs.table import READ_BY_NAME, RunFolder, read_metadata
from noisegate.pipeline.runs.where import parse_where
from noisegate.pipeline.system.array_types import Float64, Index, Mask

from .report.collect import choose_score_view

BINS = 5  # bins of P(clean) in the table of agreement
MIN_MARKS = 20  # marks of each kind to fit a cut; chosen: with fewer, its interval spans most of the scores
RESAMPLES = 1000
RANDOM_DEPTH = 10_000  # most samples of the random order that are used
Place = tuple[str, int]  # a table's stem and a row
_READ = [
    "index",
    "review",
    "review_label",
    "clean",
    "clean_probability",
    "label_quality",
    "similarity",
    "neighbourhood",
    "predicted_label",
]


@dataclass(frozen=True)
class Share:
    """A share `hits` of `of`, with Wilson's 95 % interval, None if `of` is 0."""

    hits: int
    of: int
    interval: tuple[float, float] | None

    def __str__(self) -> str:
        if self.interval is None:
            return "–"
        low, high = (f"{100 * end:.0f} %" for end in self.interval)
        return f"{self.hits:,} of {self.of:,} ({100 * self.hits / self.of:.0f} %; 95 %: {low} to {high})"

    def short(self) -> str:
        """Format the count and its interval only, to fit a table."""
        low, high = self.interval or (0.0, 1.0)
        return f"{self.hits:,} of {self.of:,} ({100 * low:.0f} % to {100 * high:.0f} %)"


def share(hits: int, of: int) -> Share:
    """
    >>> str(share(8, 10)), share(8, 10).short()
    ('8 of 10 (80 %; 95 %: 49 % to 94 %)', '8 of 10 (49 % to 94 %)')
    """
    if not of:
        return Share(0, 0, None)
    low, high = binomtest(hits, of).proportion_ci(0.95, "wilson")
    return Share(hits, of, (float(low), float(high)))


@dataclass(frozen=True)
class BinAgreement:
    """Marks of samples with P(clean) from `low` to `high`: how often people keep them, and how often the tool agrees."""

    low: float
    high: float
    kept: Share
    agreed: Share


@dataclass(frozen=True)
class ReviewFigures:
    """Agreement of the tool with people's marks. A mark `drop` or `relabel` agrees with a sample that is not clean.

    `agreed` is over all marks, so it depends on which samples people looked at. `random` is over the first samples of the
    random order, up to the first one without a mark: an unbiased figure for the whole run, as are `kept_right` (share of the
    samples kept by the tool that people keep too) and `dropped_right`. `suggested`: relabelled to the class that the tool
    suggests. `stale` marks belong to samples that have changed or are gone; they are not counted.
    """

    marks: dict[str, int]
    stale: int
    reviewers: dict[str, int]
    agreed: Share
    random: Share
    kept_right: Share
    dropped_right: Share
    suggested: Share
    bins: tuple[BinAgreement, ...]

    def rows(self) -> list[tuple[str, str]]:
        """List names and values to print."""
        rows = [("marks", ", ".join(f"{n:,} {mark}" for mark, n in self.marks.items() if n) or "none that count")]
        if len(self.reviewers) > 1:
            rows.append(("  by", ", ".join(f"{name or 'no name'} {n:,}" for name, n in self.reviewers.items())))
        if self.stale:
            rows.append(("  of changed samples", f"{self.stale:,}, which count nowhere"))
        rows.append(("the tool agreed with you in", f"{self.agreed}, of all marks: depends on what you looked at"))
        if self.random.of:
            rows.append(("  in the random sample", f"{self.random}, unbiased"))
            rows += [("  kept, and right", str(self.kept_right)), ("  dropped, and wrong", str(self.dropped_right))]
        else:
            rows.append(("  in the random sample", "not known: mark it in Browse, from its first sample on"))
        return rows + ([("relabelled as suggested", str(self.suggested))] if self.suggested.of else [])

    def bin_rows(self) -> list[tuple[str, str, str]]:
        """List the bins to print: P(clean), how many you keep, and how often the tool agrees."""
        return [(f"{part.low:.1f} to {part.high:.1f}", part.kept.short(), part.agreed.short()) for part in self.bins]

    @property
    def fits_cut(self) -> bool:
        """Whether there are enough marks to fit a cut; marks of samples without a score are counted too."""
        return min(self.marks["keep"], self.marks["drop"] + self.marks["relabel"]) >= MIN_MARKS

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Cut:
    """A cut of `column` fitted to marks, with its bootstrap interval and the export rule that applies the marks first.

    `agreed` counts agreement with the marks used for the fit; `held_out` is the cut's mean share of agreement with marks left
    out of the fit, `held_out_now` the share of the present `clean` on the same marks. `keeps` of `rows` rows pass the rule.
    """

    column: str
    value: float
    interval: tuple[float, float]
    agreed: Share
    agreed_now: Share
    held_out: float
    held_out_now: float
    rule: str
    keeps: int
    rows: int

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def read_judged(run: RunFolder, marks: Sequence[Mark]) -> pa.Table:
    """Read the rows that have a mark: `shard`, `keep` (the person's verdict) and the columns that the figures need."""
    wanted = {mark.shard for mark in marks}
    parts = []
    for stem in run.stems():
        if stem in wanted:
            part = run.read(stem, _READ).replace_schema_metadata(None)
            part = part.filter(pc.is_valid(part["review"]))
            part = part.set_column(part.column_names.index("review"), "review", part["review"].cast(pa.string()))
            parts.append(part.append_column("shard", pa.array([stem] * len(part), pa.string())))
    table = pa.concat_tables(parts) if parts else _empty()
    return table.append_column("keep", pc.equal(table["review"], "keep"))


def _empty() -> pa.Table:
    kinds = {name: READ_BY_NAME[name][0] for name in _READ} | {"review": pa.string(), "shard": pa.string()}
    return pa.schema(list(kinds.items())).empty_table()


def random_places(run: RunFolder) -> list[Place]:
    """List the first samples in random order of all that the tool has judged."""
    order, places = np.zeros(0), []
    for stem in run.stems():
        judged = np.flatnonzero(pc.is_valid(run.read(stem, ["clean"])["clean"]).to_numpy(zero_copy_only=False))
        places += [(stem, int(row)) for row in judged]
        order = np.concatenate([order, sample_order(stem, int(judged.max(initial=-1)) + 1)[judged]])
        first = np.argsort(order, kind="stable")[:RANDOM_DEPTH]
        order, places = order[first], [places[i] for i in first]
    return places


def review_figures(judged: pa.Table, marks: Sequence[Mark], order: Iterable[Place]) -> ReviewFigures:
    """Count agreement over `judged` (from `read_judged`); `order` is the run's random order, as far as it may be needed."""
    decided = judged.filter(pc.is_valid(judged["clean"]))
    keep, clean = _flags(decided, "keep"), _flags(decided, "clean")
    rows = {
        place: i
        for i, place in enumerate(zip(*(decided[name].to_pylist() for name in ("shard", "index")), strict=True))
    }
    drawn = np.array([rows[place] for place in takewhile(rows.__contains__, order)], np.int64)
    relabelled = judged.filter(pc.equal(judged["review"], "relabel"))
    suggested = pc.sum(pc.equal(relabelled["review_label"], relabelled["predicted_label"])).as_py() or 0
    counts = Counter(judged["review"].to_pylist())
    return ReviewFigures(
        marks={mark: counts[mark] for mark in MARKS},
        stale=len(marks) - len(judged),
        reviewers=dict(Counter(mark.reviewer or "" for mark in marks)),
        agreed=_agreement(keep == clean),
        random=_agreement((keep == clean)[drawn]),
        kept_right=_agreement(keep[drawn][clean[drawn]]),
        dropped_right=_agreement(~keep[drawn][~clean[drawn]]),
        suggested=share(suggested, len(relabelled)),
        bins=_bins(decided, keep, clean),
    )


def read_figures(folder: str | Path) -> ReviewFigures | None:
    """Compute the figures of a run; None if there are no marks."""
    run = RunFolder.to_read(folder)
    run.recorded()
    marks = run.reviews.read()
    return review_figures(read_judged(run, marks), marks, random_places(run)) if marks else None


def _agreement(hits: Mask) -> Share:
    return share(int(hits.sum()), len(hits))


def _flags(table: pa.Table, name: str) -> Mask:
    return np.asarray(table[name].to_numpy(), bool)


def _bins(decided: pa.Table, keep: Mask, clean: Mask) -> tuple[BinAgreement, ...]:
    chance = decided["clean_probability"].to_numpy().astype(np.float64)
    place = np.minimum(np.floor(np.nan_to_num(chance, nan=-1) * BINS), BINS - 1)
    found = []
    for i in range(BINS):
        here = place == i
        if here.any():
            found.append(
                BinAgreement(i / BINS, (i + 1) / BINS, _agreement(keep[here]), _agreement((keep == clean)[here]))
            )
    return tuple(found)


def recalibrate(folder: str | Path, seed: int = 0) -> Cut:
    """Fit the cut with the fewest disagreements with the marks; raises ConfigError for fewer than MIN_MARKS of a kind.

    If the probability that a person keeps a sample rises with its score, the best cut is where it passes 1/2, whichever samples
    were marked and in whichever order. `clean` is not changed.
    """
    run = RunFolder.to_read(folder)
    run.recorded()
    judged = read_judged(run, run.reviews.read())
    column = _cut_column(run, judged)
    judged = judged.filter(pc.and_(pc.is_valid(judged[column]), pc.is_valid(judged["clean"])))
    keep, clean = _flags(judged, "keep"), _flags(judged, "clean")
    kinds = (int(keep.sum()), int((~keep).sum()))
    if min(kinds) < MIN_MARKS:
        problem = f"has {kinds[0]} marks keep and {kinds[1]} drop or relabel on scored samples"
        raise ConfigError.of(
            "run", folder, f"{problem}; a cut needs {MIN_MARKS} of each, so mark some more around the cut"
        )
    scores = judged[column].to_numpy().astype(np.float64)
    value = float(f"{fit_cut(scores, keep):.4g}")
    rng = np.random.default_rng(seed)
    cuts, new, now = [], [], []
    for _ in range(RESAMPLES):
        rows = rng.integers(0, len(keep), len(keep))
        cuts.append(fit_cut(scores[rows], keep[rows]))
        left = np.setdiff1d(np.arange(len(keep)), rows)
        new.append(np.mean((scores[left] >= cuts[-1]) == keep[left]))
        now.append(np.mean(clean[left] == keep[left]))
    low, high = np.quantile(cuts, (0.025, 0.975)).tolist()
    relabelled = "relabel" in judged["review"].to_pylist()
    marked = 'review in ("keep", "relabel")' if relabelled else 'review = "keep"'  # fits into a shell's single quotes
    rule = f"{marked} or (review is null and {column} >= {value:g})"
    passed = [parse_where(rule).rows(run, stem) for stem in run.stems()]
    return Cut(
        column,
        value,
        (low, high),
        agreed=_agreement((scores >= value) == keep),
        agreed_now=_agreement(clean == keep),
        held_out=float(np.mean(new)),
        held_out_now=float(np.mean(now)),
        rule=rule,
        keeps=sum(int(rows.sum()) for rows in passed),
        rows=sum(len(rows) for rows in passed),
    )


def fit_cut(scores: Float64, keep: Mask) -> float:
    """Find the cut c for which `scores >= c` differs from `keep` least often, halfway between two scores; ties: the middle.

    >>> fit_cut(np.array([0.1, 0.2, 0.6, 0.9]), np.array([False, False, True, True]))
    0.4
    """
    values, place = np.unique(scores, return_inverse=True)
    kept = np.bincount(place, keep, len(values))
    dropped = np.bincount(place, ~keep, len(values))
    wrong = np.concatenate([[0], np.cumsum(kept)]) + dropped.sum() - np.concatenate([[0], np.cumsum(dropped)])
    best: Index = np.flatnonzero(wrong == wrong.min())
    at = best[(len(best) - 1) // 2]  # cut below values[at]
    if at in (0, len(values)):
        return float(values[0]) if at == 0 else float(np.nextafter(values[-1], np.inf))
    return float((values[at - 1] + values[at]) / 2)


def _cut_column(run: RunFolder, judged: pa.Table) -> str:
    """Choose the score to cut: for pairs P(clean) if known, else the score that ranks them; for labels their quality."""
    stem = next(run.stems(), None)
    if stem is None:
        raise TableError.of("run", run.path, "has no tables; make some: noisegate annotate SHARDS --out FOLDER")
    view = choose_score_view(read_metadata(run.table(stem)))
    if view.noun == "label":
        return "label_quality"
    return "clean_probability" if judged["clean_probability"].null_count < max(len(judged), 1) else view.rank
