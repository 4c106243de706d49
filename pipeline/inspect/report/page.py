"""What a page says in words and cards: headline, galleries, duplicates, failures."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from noisegate.pipeline.runs.table import RunFolder

from .collect import Collected, original_key
from .lens import Lens
from .picks import Pick
from .pictures import Album, Shown, printable

__all__ = [
    "card",
    "count",
    "duplicate_section",
    "failure_section",
    "galleries",
    "headline",
    "number",
    "percent",
    "without_secrets",
]

FLAGS = {
    "duplicate": "nearly the same picture as another sample",
    "duplicate_key": "a key that occurred before in the same shard",
    "no_neighbours": "no labelled neighbour to ask",
    "indegree0": "nobody's neighbour",
    "unpicked": "no class's text picked it",
    "no_text": "no caption, scored by its label alone",
    "no_label": "no label, scored as a pair alone",
}


def percent(share: float | None, digits: int = 1) -> str:
    """A share in per cent, – for none.

    >>> percent(0.1234), percent(float("nan"))
    ('12.3\xa0%', '–')
    """
    return "–" if share is None or not math.isfinite(share) else f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


def number(value: float | None, digits: int = 3) -> str:
    """A number, – for none."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def count(amount: int, noun: str) -> str:
    """An amount of something.

    >>> count(1, "pair"), count(1200, "pair")
    ('1 pair', '1,200 pairs')
    """
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"


def headline(
    run: RunFolder, found: Collected, lens: Lens, metadata: Mapping[str, Any], missing: str | None
) -> dict[str, Any]:
    """Title, the sentences that matter most, and four figures."""
    rate, interval = noise_rate(lens, metadata)
    failed = found.rows - found.statuses["ok"]
    labels = metadata.get("labels") if lens.noun == "pair" else None  # scored beside the pairs
    lead = []
    if found.scored == 0:
        lead.append("No sample could be scored; see what failed below.")
    elif rate is None:
        lead.append(f"There are too few {lens.noun}s to estimate how many are wrong.")
    else:
        lead.append(f"About {percent(rate)} of the {lens.noun}s look wrong{_within(interval)}.")
    if found.scored and labels:
        lead.append(f"Of the labels, about {percent(labels['noise_rate'])} do{_within(labels['noise_interval'])}.")
    if found.scored:
        both = ", by caption and label" if labels else ""
        lead.append(f"The default cut keeps {found.kept:,} of {count(found.scored, f'scored {lens.noun}')}{both}.")
    scorer = metadata.get("scorer") or {}
    return {
        "folder": printable(run.path.resolve().name),
        "model": printable(scorer.get("model") or "an unknown model"),
        "summary": f"{count(found.rows, 'sample')} in {count(len(found.shards), 'shard')}",
        "lead": lead,
        "missing": missing,
        "tiles": [
            (percent(rate), f"estimated noise{' of captions' if labels else ''}", _range(interval)),
            (percent(found.kept / found.scored if found.scored else None), "kept by default", f"{found.kept:,}"),
            (number(lens.cut), "β, the cut" if lens.cut_name == "β" else "the cut", f"on {lens.score}"),
            (f"{failed:,}", "failed", percent(failed / found.rows) if found.rows else ""),
        ],
    }


def _within(interval: Sequence[float] | None) -> str:
    return f" (95\N{NO-BREAK SPACE}%: {_range(interval)})" if interval else ""


def _range(interval: Sequence[float] | None) -> str:
    return f"{percent(interval[0])} to {percent(interval[1])}" if interval else ""


def noise_rate(lens: Lens, metadata: Mapping[str, Any]) -> tuple[float | None, tuple[float, float] | None]:
    """Of the lens: the pairs' calibration, or what label scoring recorded."""
    if lens.calibration:
        return lens.calibration.noise_rate, lens.calibration.noise_interval
    labels = metadata.get("labels") or {}
    if lens.noun == "label" and labels.get("noise_rate") is not None:
        low, high = labels["noise_interval"]
        return labels["noise_rate"], (low, high)
    return None, None


def galleries(found: Collected, lens: Lens, album: Album, names: Sequence[str]) -> list[dict[str, Any]]:
    """Worst, borderline and best; empty ones are left out."""
    quality = "label quality" if lens.noun == "label" else lens.score
    at = "β" if lens.cut_name == "β" else "the cut"
    parts = [
        ("worst", "Worst", f"The {lens.noun}s with the lowest {quality}.", found.worst),
        ("borderline", "Borderline", f"Nearest to {at}: what the cut decides by a hair.", found.borderline),
        ("best", "Best", f"The {lens.noun}s with the highest {quality}.", found.best),
    ]
    return [
        {"id": name, "title": title, "intro": intro, "cards": [card(pick, album, names) for pick in picks]}
        for name, title, intro, picks in parts
        if picks
    ]


def card(pick: Pick, album: Album, names: Sequence[str]) -> dict[str, Any]:
    """A sample with its picture, caption, figures and what becomes of it."""
    values, shown = pick.values, album.samples.get(pick.place, Shown())
    figures = [
        (name, number(values[column], digits))
        for name, column, digits in (
            ("similarity", "similarity", 3),
            ("weight", "osa_weight", 4),
            ("neighbourhood", "neighbourhood", 2),
            ("label quality", "label_quality", 3),
        )
        if values[column] is not None
    ]
    if values["clean_probability"] is not None:
        figures.append(("P(clean)", percent(values["clean_probability"])))
    given, refined = values["label"], values["refined_label"]
    label = None
    if given is not None and refined is not None:
        label = {
            "given": name_of(names, given),
            "refined": name_of(names, refined),
            "moved": given != refined,
            "confidence": percent(values["refined_confidence"], 0),
        }
    caption = shown.caption
    return {
        "key": printable(pick.key, 80),
        "shard": printable(pick.stem, 80),
        "shown": shown,
        "caption": caption,
        "alt": printable(caption or f"sample {pick.key}", 150),
        "figures": figures,
        "label": label,
        "kept": values["clean"],
    }


def name_of(names: Sequence[str], label: int) -> str:
    """The class's name, or its number where there is none."""
    return printable(names[label], 60) if 0 <= label < len(names) else f"class {label}"


def duplicate_section(found: Collected, album: Album, names: Sequence[str]) -> dict[str, Any]:
    """Near duplicates side by side with what they repeat."""
    pairs = [
        {
            "first": card(original, album, names) if (original := found.originals.get(pick.place)) else None,
            "second": card(pick, album, names),
            "key": printable(original_key(pick) or "", 80),
        }
        for pick in found.duplicates
    ]
    total = found.flags["duplicate"]
    told = f"{count(total, 'sample')} {'has' if total == 1 else 'have'} nearly the same picture as another one."
    return {"total": total, "told": told, "pairs": pairs}


def failure_section(found: Collected, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Failures by status with examples, flags, and shards that are damaged or were never read."""
    statuses = [
        {
            "status": status,
            "count": count(amount, "sample"),
            "share": percent(amount / found.rows),
            "examples": [
                (printable(pick.key, 80), printable(pick.stem, 80), printable(pick.values["error"] or "–", 300))
                for pick in found.failures[status]
            ],
        }
        for status, amount in found.statuses.most_common()
        if status != "ok"
    ]
    damaged = [(printable(shard.stem), printable(shard.damage)) for shard in found.shards if shard.damage]
    unreadable = [
        (printable(without_secrets(url)), printable(reason.replace(url, without_secrets(url))))
        for url, reason in (recorded.get("unreadable") or {}).items()
    ]
    flags = [
        (flag, f"{amount:,}", percent(amount / found.rows), FLAGS.get(flag, ""))
        for flag, amount in found.flags.most_common()
    ]
    most = 20
    return {
        "statuses": statuses,
        "damaged": damaged[:most],
        "unreadable": unreadable[:most],
        "more": max(0, len(damaged) - most) + max(0, len(unreadable) - most),
        "flags": flags,
    }


def without_secrets(url: str) -> str:
    """A URL without its query and user, which may be keys to the data."""
    if "://" not in url:
        return url
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.split("?")[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
