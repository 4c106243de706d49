"""The labels' part of a report: what became of each class, and its most suspicious samples."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from noisegate.pipeline.errors import TableError
from noisegate.pipeline.labels.anchors import Anchors
from noisegate.pipeline.runs.table import RunFolder
from noisegate.pipeline.score_run import anchors_file
from noisegate.pipeline.summary import label_promise

from .charts import draw_confusion
from .collect import Collected
from .page import card, name_of, number, percent
from .pictures import Album

__all__ = ["class_names", "label_section"]

TOP = 15
MAPPED = 40


def class_names(run: RunFolder) -> tuple[str, ...]:
    """Names of the classes as the run keeps them with its anchors; none where there are no anchors."""
    try:
        return Anchors.load(anchors_file(run)).names if anchors_file(run).exists() else ()
    except TableError:
        return ()


def label_section(
    found: Collected, metadata: Mapping[str, Any], album: Album, names: Sequence[str], shown: Sequence[int]
) -> dict[str, Any] | None:
    """None for a run without label scores."""
    facts = metadata.get("labels")
    if not facts or not found.label_counts:
        return None
    entries = found.confusion.entries
    moved = [(given, refined, amount) for given, refined, amount in entries if given != refined]
    total = sum(found.label_counts.values())
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
            (name_of(names, given), name_of(names, refined), f"{amount:,}", percent(amount / found.label_counts[given]))
            for given, refined, amount in moved[:TOP]
        ],
        "confusions_left": max(0, len(moved) - TOP),
        "map": _map(found, entries, names),
        "classes": [
            {
                "name": name_of(names, label),
                "count": f"{found.label_counts[label]:,}",
                "doubts": f"{found.label_doubts[label]:,}",
                "share": percent(found.label_doubts[label] / found.label_counts[label]),
                "cards": [card(pick, album, names) for pick in found.suspects[label]],
            }
            for label in shown
        ],
        "classes_left": max(0, len(found.suspects) - len(shown)),
    }


def _map(found: Collected, entries: Sequence[tuple[int, int, int]], names: Sequence[str]) -> dict[str, Any] | None:
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
            shares[place[given], place[refined]] = amount / found.label_counts[given]
    description = (
        f"{len(chosen)} classes. Rows are given, columns refined; the darker a cell, the larger the share of the given "
        "class that moves there. The table of confusions holds the largest."
    )
    drawn = draw_confusion([name_of(names, label) for label in chosen], shares, "confusion", description)
    return {"svg": drawn, "classes": len(chosen), "left": max(0, len(involved) - len(chosen))}
