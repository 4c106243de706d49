"""The sections of a report on scores (histogram, probability, cost of the cut), on shards that differ, and on labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.pairs.calibration import Expected
from noisegate.pipeline.scoring.summary import changed_labels, label_promise, label_rate, tells_nothing

from .charts import Bins, Strip, draw_clean, draw_confusion, draw_histogram, draw_strips, merge_bins
from .collect import QUANTILES, ReportData, ScoreView, ShardFacts
from .page import card, count, name_of, number, percent
from .pictures import Album, printable

LEAST_DISTANCE = 0.1  # in large shards even tiny differences are significant, but not worth a look
LEVEL = 0.01  # probability that any shard is named although all are alike
LEAST_FAILED = 5  # least number of failed samples for which a shard is named
LISTED = 12  # most shards in the table
WIDE, HALF, NARROW = 1080, 600, 360  # widths of charts in pixels
MOST = 2000  # most shards from which the median shard is computed


@dataclass(frozen=True)
class Drift:
    """A shard compared with the others: `distance` is Kolmogorov and Smirnov's, `z` the median's shift in robust deviations."""

    shard: ShardFacts
    distance: float
    chance: float
    shift: float
    z: float
    failed_share: float
    reasons: tuple[str, ...]


def find_drift(shards: Sequence[ShardFacts]) -> list[Drift]:
    """Compare every shard with the median shard, the most different first; a shard with `reasons` stands out.

    The median shard has at every score the median of all cumulative shares F, so that one odd shard does not make the others
    look odd. D = max |F - F_median| over bins of 1/400 of the scale; its p-value is Kolmogorov's bound 2 exp(-2 D² n m / (n +
    m)), m = 2/π of the number of all other scores (the efficiency of a median), times the number of shards. A shard stands out
    if p < 1 % and D >= 0.1, or if at least five of its samples failed and their share is above three times that of the others
    plus two points.
    """
    scored = [shard for shard in shards if shard.quantiles]
    typical = typical_shares([shard.histogram for shard in scored[:: -(-len(scored) // MOST)]]) if scored else None
    total = sum(int(shard.histogram.sum()) for shard in scored)
    rows, failed = sum(shard.rows for shard in shards), sum(shard.failed for shard in shards)
    medians = np.array([shard.quantiles[2] for shard in scored])
    centre = float(np.median(medians)) if scored else 0.0
    spread = 1.4826 * float(np.median(np.abs(medians - centre))) if scored else 0.0
    drifts = []
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
        drifts.append(Drift(shard, distance, chance, shift, z, share, tuple(reasons)))
    return sorted(drifts, key=lambda drift: (not drift.reasons, -drift.distance, drift.shard.stem))


def typical_shares(histograms: Sequence[NDArray[np.int64]]) -> NDArray[np.float32]:
    """Compute the cumulative shares of the median shard, (B,).

    >>> typical_shares([np.array([1, 1, 2]), np.array([1, 1, 2]), np.array([4, 0, 0])]).tolist()
    [0.25, 0.5, 1.0]
    """
    shares = np.stack([np.cumsum(counts) / max(counts.sum(), 1) for counts in histograms]).astype(np.float32)
    return np.asarray(np.median(shares, axis=0), np.float32)


def ks_distance(counts: NDArray[np.int64], shares: NDArray[np.float32]) -> float:
    """Compute the largest difference between the cumulative shares of `counts` (B,) and `shares` (B,); 0 if all counts are 0.

    >>> ks_distance(np.array([4, 0]), np.array([0.25, 1.0], np.float32))
    0.75
    """
    return float(np.abs(np.cumsum(counts) / counts.sum() - shares).max()) if counts.sum() else 0.0


def _chance(distance: float, n: float, m: float) -> float:
    """Compute Kolmogorov's bound on the probability of such a distance between samples of sizes n and m."""
    return float(min(1.0, 2 * np.exp(-2 * distance**2 * n * m / (n + m)))) if n and m else 1.0


def score_section(
    data: ReportData, view: ScoreView, metadata: Mapping[str, Any], mismatched: NDArray[np.float32], why_not: str | None
) -> dict[str, Any] | None:
    """Make the template values of the section on scores; None if no sample has a score."""
    if not data.scored:
        return None
    wrong = np.histogram(np.clip(mismatched, -view.span, view.span), view.edges)[0] if len(mismatched) else None
    bins = merge_bins(view.edges, data.histogram, wrong, [value for value in (view.cut,) if value is not None])
    description = describe_histogram(bins, view)
    clean = "Rises from the left to the right."
    if view.calibration and view.cut is not None:
        at = float(view.calibration.clean_at([view.cut])[0])
        clean = f"At the {view.cut_name} of {view.cut:.3f} the probability is {percent(at)}."
    return {
        "histogram": [
            draw_histogram(bins, view, f"histogram-{w}", w, 340 if w == WIDE else 240, description)
            for w in (WIDE, NARROW)
        ],
        "clean": [draw_clean(view, bins, f"clean-{w}", w, 230 if w == HALF else 190, clean) for w in (HALF, NARROW)]
        if view.calibration and not tells_nothing(view.calibration)
        else None,
        "description": description,
        "noun": view.noun,
        "score": view.score,
        "cut": view.cut_name if view.cut is not None else None,
        "interval": view.interval is not None,
        "mismatched": f"{len(mismatched):,}" if len(mismatched) else None,
        "why_not": why_not,
        "bins": _histogram_rows(bins, view),
        "cost": _cost(data, view, metadata),
        "two_rules": _compare_rules(data, view),
        "thresholds": _threshold_rows(view),
        "judged": view.calibration.score if view.calibration else None,
    }


def describe_histogram(bins: Bins, view: ScoreView) -> str:
    """Describe the chart in two or three sentences, for screen readers."""
    peak = int(bins.given.argmax())
    total = int(bins.given.sum())
    description = f"{count(total, view.noun)} between {bins.edges[0]:.3f} and {bins.edges[-1]:.3f}"
    description += f", most of them in a bin around {(bins.edges[peak] + bins.edges[peak + 1]) / 2:.3f}."
    if bins.mismatched is not None:
        middle = int(np.searchsorted(np.cumsum(bins.mismatched), bins.mismatched.sum() / 2))
        description += (
            f" Mismatched pairs have their median near {(bins.edges[middle] + bins.edges[middle + 1]) / 2:.3f}."
        )
    if view.cut is not None:
        description += f" The {view.cut_name} is {view.cut:.4f}"
        description += (
            f", its 95 % interval {view.interval[0]:.4f} to {view.interval[1]:.4f}." if view.interval else "."
        )
    return description


def _histogram_rows(bins: Bins, view: ScoreView) -> list[tuple[str, ...]]:
    """Make the chart as a table: from, to, count, share, share of mismatched, P(clean) in the middle of the bin."""
    middles = (bins.edges[:-1] + bins.edges[1:]) / 2
    clean = view.calibration.clean_at(middles) if view.calibration else None
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


def _compare_rules(data: ReportData, view: ScoreView) -> str | None:
    """Explain why a pair that is likely right can be dropped, and how to use the other rule; None if there is no P(clean)."""
    calibration = view.calibration
    if calibration is None or view.cut is None or view.cut_name != "β" or tells_nothing(calibration):
        return None
    source = "" if calibration.score == view.column else f", learned from {calibration.score}"
    if view.rule != "osa":
        return (
            f"This run keeps pairs whose P(clean) is above 50\N{NO-BREAK SPACE}%{source}. OSA's rule keeps those whose "
            "similarity is above β: noisegate rescore --cut osa."
        )
    chance = percent(float(calibration.clean_at([view.cut])[0]))
    return (
        "OSA's rule keeps a pair whose similarity is above β, which the model gives to unrelated things whatever the data. "
        f"P(clean) is the chance that a pair of this data is right{source}: {chance} at β, the higher the fewer pairs are "
        f"wrong. So {count(data.dropped_likely, 'pair')} with P(clean) above 50\N{NO-BREAK SPACE}% "
        f"{'is' if data.dropped_likely == 1 else 'are'} dropped, and {data.kept_unlikely:,} below it kept. To cut by the "
        'chance instead: noisegate rescore --cut probability, or export with --where "clean_probability > 0.5".'
    )


def _threshold_rows(view: ScoreView) -> list[tuple[str, ...]]:
    """List common fixed thresholds and β with what each keeps and loses here; empty if the data cannot tell."""
    if view.calibration is None or view.cut_name != "β" or tells_nothing(view.calibration):
        return []
    return [
        (
            f"{cut:.3f} {name}".strip(),
            *map(percent, (e.kept, e.clean_precision, e.clean_recall, e.noise_recall)),
        )
        for cut, name, e in view.calibration.field_cuts(view.cut)
    ]


def _cost(data: ReportData, view: ScoreView, metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    """List the expected cost of keeping only the samples above the cut."""
    lost = data.scored - data.kept
    both = view.noun == "pair" and bool(metadata.get("labels"))
    rows = [
        (
            "kept, by caption and label" if both else "kept",
            f"{data.kept:,} of {data.scored:,} ({percent(data.kept / data.scored)})",
        ),
        ("dropped", f"{lost:,} ({percent(lost / data.scored)})"),
    ]
    if data.weighted:
        rows.append(("mean weight", number(data.weight_sum / data.weighted, 4)))
    expected, right = _expected(view, metadata)
    if expected is None:
        return rows
    rows += [
        (f"of those kept{' by their captions' * both}, expected to be right", percent(expected.clean_precision)),
        ("of the right ones, expected to be kept", percent(expected.clean_recall)),
        ("of the wrong ones, expected to be dropped", percent(expected.noise_recall)),
    ]
    stay = expected.kept * (1 - expected.clean_precision) * data.scored
    lost_right = right * (1 - expected.clean_recall) * data.scored
    if np.isfinite(stay) and np.isfinite(lost_right):
        rows.append(("in numbers", f"about {stay:,.0f} wrong {view.noun}s stay, {lost_right:,.0f} right ones are lost"))
    return rows


def _expected(view: ScoreView, metadata: Mapping[str, Any]) -> tuple[Expected | None, float]:
    """Return the cut's expected figures, and the share of all samples that are right."""
    if view.calibration and view.cut is not None:
        if tells_nothing(view.calibration):
            return None, np.nan
        return view.expected, view.calibration.kept_clean[0]
    labels = metadata.get("labels") or {}
    promise = label_promise(labels)
    if view.noun == "label" and promise:
        values = {name: np.nan if value is None else value for name, value in promise.items()}
        return Expected(**values), 1 - labels["noise_rate"]
    return None, np.nan


def drift_section(data: ReportData, view: ScoreView) -> dict[str, Any]:
    """Make the section on shards that stand out: a chart beside all shards together, and a table."""
    drifts = find_drift(data.shards)
    out = [drift for drift in drifts if drift.reasons]
    shown = (out or drifts)[:LISTED] if len(drifts) > 1 else []
    strips = [
        Strip(printable(drift.shard.stem), drift.shard.quantiles, bool(drift.reasons))
        for drift in shown
        if drift.shard.quantiles
    ]
    charts = None
    if strips:
        all_shards = Strip("all shards", _quantiles(data, view), False)
        rows = [all_shards, *strips]
        low, high = min(row.quantiles[0] for row in rows), max(row.quantiles[-1] for row in rows)
        description = (
            f"Boxes hold the middle half of a shard's {view.score}, whiskers nine tenths; the table has the numbers."
        )
        charts = [draw_strips(rows, low, high, view.score, f"shards-{w}", w, description) for w in (WIDE, NARROW)]
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


def _quantiles(data: ReportData, view: ScoreView) -> tuple[float, ...]:
    """Compute the quantiles .05, .25, .5, .75, .95 of all scores from their bins."""
    below = np.cumsum(data.histogram) / data.histogram.sum()
    return tuple(float(np.interp(q, below, view.edges[1:])) for q in QUANTILES)


TOP = 15  # most confusions listed
MAPPED = 40  # most classes in the heat map; chosen: it stays readable


def label_section(
    data: ReportData, metadata: Mapping[str, Any], album: Album, names: Sequence[str], shown: Sequence[int]
) -> dict[str, Any] | None:
    """Make the template values of the section on labels; None for a run without label scores."""
    facts = metadata.get("labels")
    if not facts or not data.label_counts:
        return None
    entries = data.confusion.entries
    moved = [(given, predicted, amount) for given, predicted, amount in entries if given != predicted]
    total, doubts = sum(data.label_counts.values()), sum(data.label_doubts.values())
    expected = label_promise(facts) or {}
    low, high = facts["noise_interval"]
    return {
        "rows": [
            ("estimated label noise", f"{percent(label_rate(facts))} (95 %: {percent(low)} to {percent(high)})"),
            ("more likely wrong than right", f"{doubts:,} of {total:,} labels"),
            ("changed", changed_labels(facts, data.changed)),
            ("kept as clean: expected to be right", percent(expected.get("clean_precision"))),
            ("right labels: expected to be kept", percent(expected.get("clean_recall"))),
            ("wrong labels: expected to be found", percent(expected.get("noise_recall"))),
        ],
        "sources": [(name, number(weight, 2)) for name, weight in sorted((facts.get("source_weights") or {}).items())],
        "confusions": [
            (
                name_of(names, given),
                name_of(names, predicted),
                f"{amount:,}",
                percent(amount / data.label_counts[given]),
            )
            for given, predicted, amount in moved[:TOP]
        ],
        "doubts": doubts,
        "confusions_left": max(0, len(moved) - TOP),
        "map": _confusion_map(data, entries, names),
        "classes": [
            {
                "name": name_of(names, label),
                "count": f"{data.label_counts[label]:,}",
                "doubts": f"{data.label_doubts[label]:,}",
                "share": percent(data.label_doubts[label] / data.label_counts[label]),
                "cards": [card(row, album, names) for row in data.suspects[label]],
            }
            for label in shown
        ],
        "classes_left": max(0, len(data.suspects) - len(shown)),
    }


def _confusion_map(
    data: ReportData, entries: Sequence[tuple[int, int, int]], names: Sequence[str]
) -> dict[str, Any] | None:
    """Draw the heat map of the classes with the most doubtful labels, in class order; None if there are none."""
    involved: dict[int, int] = {}
    for given, predicted, amount in entries:
        if given != predicted:
            involved[given] = involved.get(given, 0) + amount
            involved[predicted] = involved.get(predicted, 0) + amount
    chosen = sorted(sorted(involved, key=lambda label: (-involved[label], label))[:MAPPED])
    if not chosen:
        return None
    place = {label: i for i, label in enumerate(chosen)}
    shares = np.zeros((len(chosen), len(chosen)))
    for given, predicted, amount in entries:
        if given in place and predicted in place:
            shares[place[given], place[predicted]] = amount / data.label_counts[given]
    description = (
        f"{len(chosen)} classes. Rows are given, columns what it looks like; the darker a cell, the larger the share of "
        "the given class. The table of confusions holds the largest."
    )
    drawn = draw_confusion([name_of(names, label) for label in chosen], shares, "confusion", description)
    return {"svg": drawn, "classes": len(chosen), "left": max(0, len(involved) - len(chosen))}
