"""One pass over a run's tables, shard by shard: counts, bins, and the few rows worth showing."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from noisegate.pipeline.runs.table import RunFolder, read_metadata
from noisegate.pipeline.system.array_types import Float64, Index, Mask

from .lens import Lens
from .picks import Lowest, LowestPerClass, Pick

__all__ = ["Collected", "Confusion", "Sizes", "collect"]

COLUMNS = [
    "key", "index", "status", "error", "image_sha256", "text_sha256", "similarity", "osa_weight", "clean_probability",
    "label", "label_quality", "neighbourhood", "clean", "refined_label", "refined_confidence", "flags",
]  # fmt: skip
COARSE = 10  # fine bins in one of a shard's own histogram
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Sizes:
    """How much of everything a report shows."""

    gallery: int = 12
    per_class: int = 4
    duplicates: int = 8
    failures: int = 5


@dataclass
class Confusion:
    """How often class `given` became `refined`, as sorted codes `given * 2**32 + refined` with counts."""

    codes: Index = field(default_factory=lambda: np.zeros(0, np.int64))
    counts: Index = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, given: Index, refined: Index) -> None:
        codes, counts = np.unique((given << 32) + refined, return_counts=True)
        self.codes, place = np.unique(np.concatenate([self.codes, codes]), return_inverse=True)
        self.counts = np.bincount(place, np.concatenate([self.counts, counts])).astype(np.int64)

    @property
    def entries(self) -> list[tuple[int, int, int]]:
        """(given, refined, count) of all that occur, the most frequent first."""
        order = np.argsort(-self.counts, kind="stable")
        return [
            (int(self.codes[i]) >> 32, int(self.codes[i]) & 0xFFFFFFFF, int(self.counts[i])) for i in order.tolist()
        ]


@dataclass
class ShardFacts:
    """One shard's scores: a coarse histogram, quantiles, and what failed."""

    stem: str
    rows: int
    failed: int
    histogram: Index
    quantiles: tuple[float, ...]
    damage: str | None


@dataclass
class Collected:
    """Everything a report says about the tables; its size depends on shards and classes, not on rows."""

    rows: int = 0
    scored: int = 0
    kept: int = 0
    weight_sum: float = 0.0
    weighted: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    flags: Counter[str] = field(default_factory=Counter)
    histogram: Index = field(default_factory=lambda: np.zeros(4000, np.int64))
    shards: list[ShardFacts] = field(default_factory=list)
    worst: list[Pick] = field(default_factory=list)
    best: list[Pick] = field(default_factory=list)
    borderline: list[Pick] = field(default_factory=list)
    duplicates: list[Pick] = field(default_factory=list)
    originals: dict[tuple[str, int], Pick] = field(default_factory=dict)
    failures: dict[str, list[Pick]] = field(default_factory=dict)
    confusion: Confusion = field(default_factory=Confusion)
    suspects: dict[int, list[Pick]] = field(default_factory=dict)
    label_doubts: Counter[int] = field(default_factory=Counter)
    label_counts: Counter[int] = field(default_factory=Counter)


def collect(run: RunFolder, stems: Sequence[str], lens: Lens, sizes: Sizes) -> Collected:
    """Read every table once, and the keys of all tables once more where duplicates need their originals."""
    found = Collected()
    worst, best, borderline = (Lowest(sizes.gallery) for _ in range(3))
    duplicates = Lowest(sizes.duplicates)
    per_class = LowestPerClass(sizes.per_class)
    for stem in stems:
        table = run.read(stem, COLUMNS)
        ok = pc.equal(table["status"], "ok").to_numpy()
        score, rank = (np.where(ok, _floats(table, name), np.nan) for name in (lens.column, lens.rank))
        _count(found, table)
        worst.add(stem, table, rank)
        best.add(stem, table, -rank)
        if lens.cut is not None:
            borderline.add(stem, table, np.abs(score - lens.cut))
        duplicates.add(stem, table, _doubt_of_duplicates(table))
        _add_failures(found, stem, table, sizes.failures)
        _add_shard(found, run, stem, ok, score, lens)
        _add_labels(found, per_class, stem, table, ok)
    found.worst, found.best, found.borderline = worst.picks, best.picks, borderline.picks
    found.duplicates = duplicates.picks
    found.suspects = {label: lowest.picks for label, lowest in per_class.classes.items()}
    found.originals = _originals(run, stems, found.duplicates)
    return found


def _count(found: Collected, table: pa.Table) -> None:
    found.rows += len(table)
    found.statuses.update(_values(table["status"].cast("string")))
    words = pc.list_flatten(table["flags"]).cast("string")
    found.flags.update(_values(pc.replace_substring_regex(words, "^duplicate_of:.*", "duplicate")))
    found.kept += pc.sum(table["clean"]).as_py() or 0
    weight = table["osa_weight"].drop_null()
    found.weighted += len(weight)
    found.weight_sum += pc.sum(weight).as_py() or 0.0


def _values(column: pa.ChunkedArray) -> dict[str, int]:
    return {entry["values"]: entry["counts"] for entry in pc.value_counts(column).to_pylist()}


def _add_shard(found: Collected, run: RunFolder, stem: str, ok: Mask, score: Float64, lens: Lens) -> None:
    known = score[~np.isnan(score)]
    fine = np.histogram(np.clip(known, -lens.span, lens.span), lens.edges)[0]
    found.scored += len(known)
    found.histogram += fine
    quantiles = tuple(np.quantile(known, QUANTILES).tolist()) if len(known) else ()
    coarse = fine.reshape(-1, COARSE).sum(axis=1)
    damage = read_metadata(run.table(stem))["shard"].get("damage")
    found.shards.append(ShardFacts(stem, len(ok), int((~ok).sum()), coarse, quantiles, damage))


def _add_failures(found: Collected, stem: str, table: pa.Table, most: int) -> None:
    """The first few of every status."""
    status = np.array(table["status"].to_pylist())
    for name in np.unique(status[status != "ok"]).tolist():
        examples = found.failures.setdefault(name, [])
        rows = np.flatnonzero(status == name)[: most - len(examples)]
        examples += [Pick(stem, values) for values in table.take(pa.array(rows)).to_pylist()] if len(rows) else []


def _add_labels(found: Collected, per_class: LowestPerClass, stem: str, table: pa.Table, ok: Mask) -> None:
    quality = _floats(table, "label_quality")
    given, refined = (_integers(table, name) for name in ("label", "refined_label"))
    known = ok & ~np.isnan(quality) & (given >= 0) & (refined >= 0)
    if not known.any():
        return
    found.confusion.add(given[known], refined[known])
    found.label_counts.update(_tally(given[known]))
    found.label_doubts.update(_tally(given[known & (given != refined)]))
    per_class.add(stem, table, np.where(known, given, -1), np.where(known, quality, np.nan))


def _tally(labels: Index) -> dict[int, int]:
    values, counts = np.unique(labels, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def _doubt_of_duplicates(table: pa.Table) -> Float64:
    """P(clean) of rows that are flagged as a duplicate, 2 where it is not known, NaN for all others."""
    flags = pc.list_flatten(table["flags"]).cast("string")
    rows = pc.list_parent_indices(table["flags"]).to_numpy()[pc.starts_with(flags, "duplicate_of:").to_numpy()]
    doubt = np.full(len(table), np.nan)
    doubt[rows] = np.nan_to_num(_floats(table, "clean_probability"), nan=2.0)[rows]
    return doubt


def _originals(run: RunFolder, stems: Sequence[str], duplicates: Sequence[Pick]) -> dict[tuple[str, int], Pick]:
    """The row that each duplicate names, by the duplicate's place; a key that a shard has twice means the first."""
    wanted = {pick.place: named for pick in duplicates if (named := _original(pick, stems))}
    found: dict[tuple[str, str], list[Pick]] = {}
    for stem in sorted({stem for stem, _ in wanted.values()}):
        keys = pa.array(sorted({key for shard, key in wanted.values() if shard == stem}), pa.string())
        hits = pc.is_in(run.read(stem, ["key"])["key"], value_set=keys)
        if pc.any(hits).as_py():
            for values in run.read(stem, COLUMNS).filter(hits).to_pylist():
                found.setdefault((stem, values["key"]), []).append(Pick(stem, values))
    return {
        place: others[0]
        for place, named in wanted.items()
        if (others := [pick for pick in found.get(named, []) if pick.place != place])
    }


def _original(pick: Pick, stems: Sequence[str]) -> tuple[str, str] | None:
    """Shard and key of what a row repeats; a name without a shard is a key of the row's own.

    Keys may hold slashes too: what comes before one is a shard only if the run has it.
    """
    name = original_key(pick)
    if name is None:
        return None
    shards = [stem for stem in stems if stem != pick.stem and name.startswith(f"{stem}/")]
    shard = max(shards, key=len, default=None)
    return (pick.stem, name) if shard is None else (shard, name.removeprefix(f"{shard}/"))


def original_key(pick: Pick) -> str | None:
    """What comes after `duplicate_of:` among a row's flags: a key, after `SHARD/` if that is another than the row's."""
    prefix = "duplicate_of:"
    return next((flag.removeprefix(prefix) for flag in pick.values["flags"] or [] if flag.startswith(prefix)), None)


def _floats(table: pa.Table, name: str) -> Float64:
    values: Float64 = table[name].to_numpy(zero_copy_only=False).astype(np.float64)
    return values


def _integers(table: pa.Table, name: str) -> Index:
    values: Index = table[name].cast(pa.int64()).fill_null(-1).to_numpy()
    return values
