"""Compare two runs over the same data (another model, β or method): rank correlations, agreement of the cut, disagreements."""

import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from scipy.stats import kendalltau, rankdata, spearmanr

from noisegate.pipeline.errors import ConfigError, MismatchError, TableError
from noisegate.pipeline.runs.table import RunFolder, read_metadata
from noisegate.pipeline.system.array_types import Float32, Index, Mask

from .show import one_line, read_captions

SCORES = ("similarity", "osa_weight", "clean_probability", "label_quality", "neighbourhood")
MOST = 1_000_000  # most rows for correlations; a larger run is sampled, with a seed, to about this many
_READ = ["key", "image_sha256", "text_sha256", "clean", "refined_label", *SCORES]


@dataclass(frozen=True)
class RankAgreement:
    """Rank correlations of one score over the rows that both runs scored; nan where one side is constant."""

    score: str
    rows: int
    spearman: float
    kendall: float  # τ-b
    kendall_rows: int  # rows that τ-b is computed from: all of them


@dataclass(frozen=True)
class CutAgreement:
    """The column `clean` of both runs, over all rows in which both have it."""

    both: int
    only_first: int
    only_second: int
    neither: int

    @property
    def rows(self) -> int:
        return self.both + self.only_first + self.only_second + self.neither

    @property
    def share(self) -> float:
        """Compute the share of rows on which both runs agree."""
        return (self.both + self.neither) / self.rows

    @property
    def kappa(self) -> float:
        """Compute Cohen's κ: 1 for the same cut, 0 for agreement by chance; nan if both runs keep all or nothing."""
        from sklearn.metrics import cohen_kappa_score

        if self.rows in (self.both, self.neither):
            return float("nan")
        counts = [self.both, self.only_first, self.only_second, self.neither]
        return float(cohen_kappa_score([1, 1, 0, 0], [1, 0, 1, 0], sample_weight=counts))

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "rows": self.rows, "share": self.share, "kappa": self.kappa}


@dataclass(frozen=True)
class Disagreement:
    """One sample that the runs rank differently; ranks are shares from 0 (worst) to 1 (best)."""

    shard: str
    key: str
    index: int
    ranks: tuple[float, float]
    first: Mapping[str, Any]
    second: Mapping[str, Any]
    caption: str | None


@dataclass(frozen=True)
class Comparison:
    """Result of comparing two runs. Correlations and the list are computed from `compared` of the `matched` rows."""

    first: str
    second: str
    rows: tuple[int, int]
    matched: int
    compared: int
    ranks: tuple[RankAgreement, ...]
    cut: CutAgreement | None
    refined_rows: int
    refined_same: int
    by: str | None
    disagreements: tuple[Disagreement, ...] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "cut": self.cut.to_dict() if self.cut else None}


@dataclass
class _Counts:
    matched: int = 0
    clean: Index = field(default_factory=lambda: np.zeros((2, 2), np.int64))
    refined_rows: int = 0
    refined_same: int = 0


@dataclass
class _Sample:
    """Matched rows: positions in the list of stems, rows of the first run's table, scores (N, scores) of both runs."""

    places: Index
    rows: Index
    first: Float32
    second: Float32


def compare(first: str | Path, second: str | Path, *, top: int = 10, most: int = MOST, seed: int = 0) -> Comparison:
    """Compare the tables of two runs, shard by shard; rows match by shard, key, picture and caption.

    Shards match by their digest, else by their name. The `top` samples with the largest rank differences are listed, with their
    captions if the shards are on this machine. Correlations and that list come from all rows, or from a seeded sample of about
    `most`. Raises MismatchError if fewer than half of the smaller run's rows are in the other run, and TableError if there is
    no run.
    """
    for name, value, least, works in (("top", top, 0, 10), ("most", most, 1, MOST), ("seed", seed, 0, 0)):
        if value < least:
            raise ConfigError.of(name, value, f"is too small; use {works}")
    runs = RunFolder.to_read(first), RunFolder.to_read(second)
    stems = tuple(list(run.stems()) for run in runs)
    for run, run_stems in zip(runs, stems, strict=True):
        if not run_stems:
            raise TableError(f"{run.name} has no tables yet; run its annotate command again", "run", run.name)
    sizes = tuple(
        sum(pq.read_metadata(run.table(stem)).num_rows for stem in run_stems)
        for run, run_stems in zip(runs, stems, strict=True)
    )
    counts = _Counts()
    sample = _read_sample(runs, stems, min(1.0, most / max(sizes[0], 1)), seed, counts)
    if 2 * counts.matched < min(sizes) or not counts.matched:
        rows = f"{counts.matched:,} of {sizes[0]:,} and {sizes[1]:,} rows match by shard, key, picture and caption"
        raise MismatchError.of("second", second, f"and {first} are not of the same data: {rows}")
    by, listed = _disagreements(runs[0], stems[0], sample, top)
    return Comparison(
        first=str(first),
        second=str(second),
        rows=(sizes[0], sizes[1]),
        matched=counts.matched,
        compared=len(sample.rows),
        ranks=_rank_agreements(sample),
        cut=CutAgreement(*counts.clean[::-1, ::-1].ravel().tolist()) if counts.clean.sum() else None,
        refined_rows=counts.refined_rows,
        refined_same=counts.refined_same,
        by=by,
        disagreements=tuple(listed),
    )


def _read_sample(
    runs: tuple[RunFolder, RunFolder], stems: tuple[list[str], ...], share: float, seed: int, counts: _Counts
) -> _Sample:
    """Count over all matching rows, and keep a seeded `share` of them; one shard of each run is in memory at a time."""
    partner = _match_shards(runs, stems)
    empty = np.zeros((0, len(SCORES)), np.float32)
    parts: list[tuple[Index, Index, Float32, Float32]] = [(np.zeros(0, np.int64), np.zeros(0, np.int64), empty, empty)]
    for place, stem in enumerate(stems[0]):
        if stem not in partner:
            continue
        left, right = runs[0].read(stem, _READ), runs[1].read(partner[stem], _READ)
        rows, others = _match_rows(left, right)
        a, b = left.take(rows), right.take(others)
        counts.matched += len(rows)
        for name in ("clean", "refined_label"):
            known = pc.and_(pc.is_valid(a[name]), pc.is_valid(b[name]))
            x, y = (pc.filter(table[name], known).to_numpy(zero_copy_only=False) for table in (a, b))
            if name == "clean":
                pairs = 2 * x.astype(np.int64) + y.astype(np.int64)
                counts.clean += np.bincount(pairs, minlength=4).reshape(2, 2)
            else:
                counts.refined_rows += len(x)
                counts.refined_same += int((x == y).sum())
        chosen = np.random.default_rng([seed, zlib.crc32(stem.encode())]).random(len(rows)) < share
        parts.append((np.full(int(chosen.sum()), place), rows[chosen], _scores(a, chosen), _scores(b, chosen)))
    return _Sample(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _match_shards(runs: tuple[RunFolder, RunFolder], stems: tuple[list[str], ...]) -> dict[str, str]:
    """Map stems of the first run to stems of the second: the table of the same tar, else of the same name."""
    digests = {read_metadata(runs[1].table(stem))["shard"]["sha256"]: stem for stem in stems[1]}
    names = set(stems[1])
    partners = {}
    for stem in stems[0]:
        digest = read_metadata(runs[0].table(stem))["shard"]["sha256"]
        if digest and digest in digests:
            partners[stem] = digests[digest]
        elif stem in names:
            partners[stem] = stem
    return partners


def _match_rows(left: pa.Table, right: pa.Table) -> tuple[Index, Index]:
    """Return rows of both tables that are the same sample: the same key (repeats in order), and no different digest."""
    if left["key"].equals(right["key"]):
        rows = others = np.arange(len(left))
    else:
        places = {key: row for row, key in enumerate(_numbered_keys(right))}
        joined = [(row, places[key]) for row, key in enumerate(_numbered_keys(left)) if key in places]
        pairs = np.array(joined, np.int64).reshape(-1, 2)
        rows, others = pairs[:, 0], pairs[:, 1]
    same = np.ones(len(rows), bool)
    for name in ("image_sha256", "text_sha256"):
        equal = pc.equal(left[name].take(rows), right[name].take(others))  # null where one digest is not known
        same &= pc.fill_null(equal, True).to_numpy(zero_copy_only=False)
    return rows[same], others[same]


def _numbered_keys(table: pa.Table) -> list[tuple[str, int]]:
    """Pair each key with the number of its earlier occurrences in the table."""
    seen: dict[str, int] = {}
    keys = []
    for key in table["key"].to_pylist():
        seen[key] = seen.get(key, -1) + 1
        keys.append((key, seen[key]))
    return keys


def _rank_agreements(sample: _Sample) -> tuple[RankAgreement, ...]:
    agreements = []
    for i, name in enumerate(SCORES):
        known = np.flatnonzero(np.isfinite(sample.first[:, i]) & np.isfinite(sample.second[:, i]))
        if len(known) < 2:
            continue
        a, b = sample.first[known, i], sample.second[known, i]
        if np.ptp(a) == 0 or np.ptp(b) == 0:
            agreements.append(RankAgreement(name, len(known), float("nan"), float("nan"), len(known)))
        else:
            rho, tau = (round(float(test(a, b).statistic), 12) for test in (spearmanr, kendalltau))
            agreements.append(RankAgreement(name, len(known), rho, tau, len(known)))
    return tuple(agreements)


def _disagreements(
    run: RunFolder, stems: list[str], sample: _Sample, top: int
) -> tuple[str | None, list[Disagreement]]:
    """Return the first score by which the runs rank rows differently, and the rows whose ranks differ most."""
    for name in ("label_quality", "similarity", "neighbourhood", "osa_weight", "clean_probability"):
        i = SCORES.index(name)
        known = np.flatnonzero(np.isfinite(sample.first[:, i]) & np.isfinite(sample.second[:, i]))
        ranks = [(rankdata(side[known, i]) - 0.5) / max(len(known), 1) for side in (sample.first, sample.second)]
        apart = np.abs(ranks[0] - ranks[1])
        if apart.any():
            break
    else:
        return None, []
    order = np.argsort(-apart, kind="stable")[:top]
    order = order[apart[order] > 0]
    chosen = known[order]
    keys = _keys(run, stems, sample, chosen)
    captions = read_captions(run, [(stems[int(sample.places[r])], int(sample.rows[r]), keys[int(r)]) for r in chosen])
    listed = []
    for at, row in zip(order, chosen, strict=True):
        stem, index = stems[int(sample.places[row])], int(sample.rows[row])
        text = captions.get((stem, index))
        first, second = _scores_by_name(sample.first[row]), _scores_by_name(sample.second[row])
        rank = float(ranks[0][at]), float(ranks[1][at])
        caption = None if text is None else one_line(text)
        listed.append(Disagreement(stem, keys[int(row)], index, rank, first, second, caption))
    return name, listed


def _keys(run: RunFolder, stems: list[str], sample: _Sample, chosen: Index) -> dict[int, str]:
    """Read the keys of the chosen rows of the sample; each table is read once."""
    keys_by_row: dict[int, str] = {}
    for place in np.unique(sample.places[chosen]):
        keys = run.read(stems[int(place)], ["key"])["key"]
        for row in chosen[sample.places[chosen] == place]:
            keys_by_row[int(row)] = keys[int(sample.rows[row])].as_py()
    return keys_by_row


def _scores(table: pa.Table, chosen: Mask) -> Float32:
    """Return the scores of the chosen rows, (N, scores), NaN for null."""
    return np.stack([table[name].to_numpy(zero_copy_only=False).astype(np.float32)[chosen] for name in SCORES], axis=1)


def _scores_by_name(scores: Float32) -> dict[str, float]:
    return {name: float(value) for name, value in zip(SCORES, scores, strict=True) if np.isfinite(value)}
