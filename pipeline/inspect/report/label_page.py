"""The labels' section of a report: changes per class, confusions, and the most suspicious samples of each class."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from noisegate.pipeline.scoring.summary import label_promise

from .charts import draw_confusion
from .collect import ReportData
from .page import card, name_of, number, percent
from .pictures import Album

TOP = 15  # confusions listed
MAPPED = 40  # classes in the heat map, which stays readable at that size


def label_section(
    data: ReportData, metadata: Mapping[str, Any], album: Album, names: Sequence[str], shown: Sequence[int]
) -> dict[str, Any] | None:
    """Template values of the labels' section, None for a run without label scores."""
    facts = metadata.get("labels")
    if not facts or not data.label_counts:
        return None
    entries = data.confusion.entries
    moved = [(given, refined, amount) for given, refined, amount in entries if given != refined]
    total = sum(data.label_counts.values())
    expected = label_promise(facts) or {}
    low, high = facts["noise_interval"]
    return {
        "rows": [
            ("estimated label noise", f"{percent(facts['noise_rate'])} (95 %: {percent(low)} to {percent(high)})"),
            ("labels that would change", f"{sum(m[2] for m in moved):,} of {total:,}"),
            ("kept as clean: expected to be right", percent(expected.get("clean_precision"))),
            ("right labels: expected to be kept", percent(expected.get("clean_recall"))),
            ("wrong labels: expected to be found", percent(expected.get("noise_recall"))),
        ],
        "sources": [(name, number(weight, 2)) for name, weight in sorted((facts.get("source_weights") or {}).items())],
        "confusions": [
            (name_of(names, given), name_of(names, refined), f"{amount:,}", percent(amount / data.label_counts[given]))
            for given, refined, amount in moved[:TOP]
        ],
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
    """The heat map of the classes with the most changes, in class order; None where nothing changes."""
    involved: dict[int, int] = {}
    for given, refined, amount in entries:
        if given != refined:
            involved[given] = involved.get(given, 0) + amount
            involved[refined] = involved.get(refined, 0) + amount
    chosen = sorted(sorted(involved, key=lambda label: (-involved[label], label))[:MAPPED])
    if not chosen:
        return None
    place = {label: i for i, label in enumerate(chosen)}
    shares = np.zeros((len(chosen), len(chosen)))
    for given, refined, amount in entries:
        if given in place and refined in place:
            shares[place[given], place[refined]] = amount / data.label_counts[given]
    description = (
        f"{len(chosen)} classes. Rows are given, columns refined; the darker a cell, the larger the share of the given "
        "class that moves there. The table of confusions holds the largest."
    )
    drawn = draw_confusion([name_of(names, label) for label in chosen], shares, "confusion", description)
    return {"svg": drawn, "classes": len(chosen), "left": max(0, len(involved) - len(chosen))}
