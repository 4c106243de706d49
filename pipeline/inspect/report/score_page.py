"""The scores' part of a report: histogram, probability, the cost of the cut, and shards that stand out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.pairs.calibration import Expected
from noisegate.pipeline.summary import label_promise

from .charts import Bins, Strip, draw_clean, draw_histogram, draw_strips, merge_bins
from .collect import Collected, ShardFacts
from .lens import Lens
from .page import count, number, percent
from .pictures import printable

__all__ = ["Drift", "drift_section", "find_drift", "score_section"]

LEAST_DISTANCE = 0.1  # in large shards the smallest difference is significant, but no reason to look
LEVEL = 0.01  # chance that any of the shards is named although all are alike
LEAST_FAILED = 5
MOST = 2000  # shards that the median shard is made of


@dataclass(frozen=True)
class Drift:
    """A shard beside the others: `distance` is Kolmogorov and Smirnov's, `z` the median's shift in robust deviations."""

    shard: ShardFacts
    distance: float
    chance: float
    shift: float
    z: float
    failed_share: float
    reasons: tuple[str, ...]


def find_drift(shards: Sequence[ShardFacts]) -> list[Drift]:
    """All shards, the ones that differ most first; those with `reasons` stand out.

    Each shard's cumulative shares F are held against the median shard's: at every score the median of all F, so that one
    odd shard does not make the others look odd. D = max |F - F_median| over bins of a four-hundredth of the scale; its
    chance is Kolmogorov's bound 2 exp(-2 D² n m / (n + m)), m = 2/π of all other scores (a median is that much less sure
    than a mean), times the number of shards. A shard stands out when that is below 1 % and D at least 0.1, or when at
    least five of its samples failed, three times the share of the others plus two points.
    """
    scored = [shard for shard in shards if shard.quantiles]
    typical = typical_shares([shard.histogram for shard in scored[:: -(-len(scored) // MOST)]]) if scored else None
    total = sum(int(shard.histogram.sum()) for shard in scored)
    rows, failed = sum(shard.rows for shard in shards), sum(shard.failed for shard in shards)
    medians = np.array([shard.quantiles[2] for shard in scored])
    centre = float(np.median(medians)) if scored else 0.0
    spread = 1.4826 * float(np.median(np.abs(medians - centre))) if scored else 0.0
    found = []
    for shard in shards:
        size = int(shard.histogram.sum())
        distance = ks_distance(shard.histogram, typical) if typical is not None and len(scored) > 1 else 0.0
        chance = min(1.0, _chance(distance, size, (total - size) * 2 / np.pi) * len(shards))
        shift = shard.quantiles[2] - centre if shard.quantiles else 0.0
        z = shift / spread if spread > 0 else 0.0
        share = shard.failed / max(shard.rows, 1)
        others = (failed - shard.failed) / max(rows - shard.rows, 1)
        reasons = []
        if chance < LEVEL and distance >= LEAST_DISTANCE:
            reasons.append(f"its scores are {'spread differently' if abs(z) < 3 else 'lower' if z < 0 else 'higher'}")
        if len(shards) > 1 and shard.failed >= LEAST_FAILED and share > 3 * others + 0.02:
            reasons.append("more of its samples failed")
        found.append(Drift(shard, distance, chance, shift, z, share, tuple(reasons)))
    return sorted(found, key=lambda drift: (not drift.reasons, -drift.distance, drift.shard.stem))


def typical_shares(histograms: Sequence[NDArray[np.int64]]) -> NDArray[np.float32]:
    """(B,) cumulative shares of the median shard.

    >>> typical_shares([np.array([1, 1, 2]), np.array([1, 1, 2]), np.array([4, 0, 0])]).tolist()
    [0.25, 0.5, 1.0]
    """
    shares = np.stack([np.cumsum(counts) / max(counts.sum(), 1) for counts in histograms]).astype(np.float32)
    return np.asarray(np.median(shares, axis=0), np.float32)


def ks_distance(counts: NDArray[np.int64], shares: NDArray[np.float32]) -> float:
    """Largest difference between the cumulative shares of `counts` (B,) and `shares` (B,), 0 where nothing was counted.

    >>> ks_distance(np.array([4, 0]), np.array([0.25, 1.0], np.float32))
    0.75
    """
    return float(np.abs(np.cumsum(counts) / counts.sum() - shares).max()) if counts.sum() else 0.0


def _chance(distance: float, one: float, other: float) -> float:
    return float(min(1.0, 2 * np.exp(-2 * distance**2 * one * other / (one + other)))) if one and other else 1.0


WIDE, HALF, NARROW = 1080, 600, 360
LISTED = 12


def score_section(
    found: Collected, lens: Lens, metadata: Mapping[str, Any], mismatched: NDArray[np.float32], why_not: str | None
) -> dict[str, Any] | None:
    """None where nothing has a score."""
    if not found.scored:
        return None
    wrong = np.histogram(np.clip(mismatched, -lens.span, lens.span), lens.edges)[0] if len(mismatched) else None
    bins = merge_bins(lens.edges, found.histogram, wrong, [value for value in (lens.cut,) if value is not None])
    told = _described(bins, lens)
    clean = "Rises from the left to the right."
    if lens.calibration and lens.cut is not None:
        at = float(lens.calibration.clean_probability([lens.cut])[0])
        clean = f"At the {lens.cut_name} of {lens.cut:.3f} the probability is {percent(at)}."
    return {
        "histogram": [
            draw_histogram(bins, lens, f"histogram-{w}", w, 340 if w == WIDE else 240, told) for w in (WIDE, NARROW)
        ],
        "clean": [draw_clean(lens, bins, f"clean-{w}", w, 230 if w == HALF else 190, clean) for w in (HALF, NARROW)]
        if lens.calibration
        else None,
        "told": told,
        "noun": lens.noun,
        "score": lens.score,
        "cut": lens.cut_name if lens.cut is not None else None,
        "interval": lens.interval is not None,
        "mismatched": f"{len(mismatched):,}" if len(mismatched) else None,
        "why_not": why_not,
        "bins": _rows(bins, lens),
        "cost": _cost(found, lens, metadata),
    }


def _described(bins: Bins, lens: Lens) -> str:
    """The chart in two sentences, for those who cannot see it."""
    peak = int(bins.given.argmax())
    total = int(bins.given.sum())
    told = f"{count(total, lens.noun)} between {bins.edges[0]:.3f} and {bins.edges[-1]:.3f}"
    told += f", most of them in a bin around {(bins.edges[peak] + bins.edges[peak + 1]) / 2:.3f}."
    if bins.mismatched is not None:
        middle = int(np.searchsorted(np.cumsum(bins.mismatched), bins.mismatched.sum() / 2))
        told += f" Mismatched pairs have their median near {(bins.edges[middle] + bins.edges[middle + 1]) / 2:.3f}."
    if lens.cut is not None:
        told += f" The {lens.cut_name} is {lens.cut:.4f}"
        told += f", its 95 % interval {lens.interval[0]:.4f} to {lens.interval[1]:.4f}." if lens.interval else "."
    return told


def _rows(bins: Bins, lens: Lens) -> list[tuple[str, ...]]:
    """The chart as a table: from, to, how many, share, share of mismatched, P(clean) in the middle of the bin."""
    middles = (bins.edges[:-1] + bins.edges[1:]) / 2
    clean = lens.calibration.clean_probability(middles) if lens.calibration else None
    given, wrong = bins.shares("given"), bins.shares("mismatched")
    return [
        (
            f"{bins.edges[i]:.3f}",
            f"{bins.edges[i + 1]:.3f}",
            f"{bins.given[i]:,}",
            percent(float(given[i])),
            percent(float(wrong[i])) if bins.mismatched is not None else "–",
            percent(float(clean[i])) if clean is not None else "–",
        )
        for i in range(len(given))
    ]


def _cost(found: Collected, lens: Lens, metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What keeping the samples above the cut is expected to cost."""
    lost = found.scored - found.kept
    both = lens.noun == "pair" and bool(metadata.get("labels"))
    rows = [
        (
            "kept, by caption and label" if both else "kept",
            f"{found.kept:,} of {found.scored:,} ({percent(found.kept / found.scored)})",
        ),
        ("dropped", f"{lost:,} ({percent(lost / found.scored)})"),
    ]
    if found.weighted:
        rows.append(("mean weight", number(found.weight_sum / found.weighted, 4)))
    expected, right = _expected(lens, metadata)
    if expected is None:
        return rows
    rows += [
        (f"of those kept{' by their captions' * both}, expected to be right", percent(expected.clean_precision)),
        ("of the right ones, expected to be kept", percent(expected.clean_recall)),
        ("of the wrong ones, expected to be dropped", percent(expected.noise_recall)),
    ]
    stay = expected.kept * (1 - expected.clean_precision) * found.scored
    lost_right = right * (1 - expected.clean_recall) * found.scored
    if np.isfinite(stay) and np.isfinite(lost_right):
        rows.append(("in numbers", f"about {stay:,.0f} wrong {lens.noun}s stay, {lost_right:,.0f} right ones are lost"))
    return rows


def _expected(lens: Lens, metadata: Mapping[str, Any]) -> tuple[Expected | None, float]:
    """What the cut is expected to give, and the share of all samples that are right."""
    if lens.calibration and lens.cut is not None:
        return lens.calibration.expected(lens.cut), lens.calibration.kept_clean[0]
    labels = metadata.get("labels") or {}
    promise = label_promise(labels)
    if lens.noun == "label" and promise:
        values = {name: np.nan if value is None else value for name, value in promise.items()}
        return Expected(**values), 1 - labels["noise_rate"]
    return None, np.nan


def drift_section(found: Collected, lens: Lens) -> dict[str, Any]:
    """Shards that stand out, in a chart beside all of them together, and in a table."""
    drifts = find_drift(found.shards)
    out = [drift for drift in drifts if drift.reasons]
    shown = (out or drifts)[:LISTED] if len(drifts) > 1 else []
    strips = [
        Strip(printable(drift.shard.stem), drift.shard.quantiles, bool(drift.reasons))
        for drift in shown
        if drift.shard.quantiles
    ]
    charts = None
    if strips:
        everyone = Strip("all shards", _quantiles(found, lens), False)
        rows = [everyone, *strips]
        low, high = min(row.quantiles[0] for row in rows), max(row.quantiles[-1] for row in rows)
        told = f"Boxes hold the middle half of a shard's {lens.score}, whiskers nine tenths; the table below has the numbers."
        charts = [draw_strips(rows, low, high, lens.score, f"shards-{w}", w, told) for w in (WIDE, NARROW)]
    return {
        "shards": len(drifts),
        "out": len(out),
        "listed": len(shown),
        "charts": charts,
        "rows": [_drift_row(drift) for drift in shown],
    }


def _drift_row(drift: Drift) -> tuple[str, ...]:
    shard = drift.shard
    return (
        printable(shard.stem),
        f"{shard.rows:,}",
        number(shard.quantiles[2]) if shard.quantiles else "–",
        f"{drift.shift:+.3f}" if shard.quantiles else "–",
        f"{drift.z:+.1f}" if shard.quantiles else "–",
        number(drift.distance, 2),
        percent(drift.failed_share),
        "; ".join(drift.reasons) or "like the others",
    )


def _quantiles(found: Collected, lens: Lens) -> tuple[float, ...]:
    """Of all scores, from their bins."""
    below = np.cumsum(found.histogram) / found.histogram.sum()
    return tuple(float(np.interp(q, below, lens.edges[1:])) for q in (0.05, 0.25, 0.5, 0.75, 0.95))
