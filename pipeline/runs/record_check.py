"""Check the records of a run before anything uses them: the folder may be damaged, or come from an attacker.

The records are `_run.json` (RECORD) and the metadata of each table (TABLE).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LARGEST = 2**63  # integers in tables and arrays are smaller
LONGEST_NAME = 240  # bytes of a table's name; file systems take 255, with the ending


@dataclass(frozen=True)
class Fields:
    """A JSON object. Names that are not listed may have any value, unless the object is `closed`."""

    required: Mapping[str, Any] = field(default_factory=dict)
    optional: Mapping[str, Any] = field(default_factory=dict)
    closed: bool = False


@dataclass(frozen=True)
class Values:
    """A JSON object with any names and values of one kind."""

    kind: Any


class PlainName:
    """The name of a file in the run's folder: no path that leads elsewhere."""


class Count:
    """A whole number from 0."""


class Range:
    """A list of two numbers."""


NOTHING = type(None)
TEXT, MAYBE_TEXT, NUMBER, TEXTS = (str,), (str, NOTHING), (int, float), [(str,)]
BETA = Fields(
    {"value": NUMBER, "mode": TEXT},
    {"reason": TEXT, "std": (*NUMBER, NOTHING), "count": Count, "seed": Count, "interval": ([NUMBER], NOTHING)},
    closed=True,
)
SCORER = Fields(
    {
        **dict.fromkeys(("model", "weights", "preprocess", "decoder", "dtype"), TEXT),
        "versions": Values(TEXT),
    },
    closed=True,
)
READING = Fields(
    {"tasks": TEXTS},
    {
        **dict.fromkeys(("text_field", "label_field", "image_part"), MAYBE_TEXT),
        "limits": Fields(
            {}, dict.fromkeys(("max_pixels", "max_image_bytes", "max_text_chars", "max_aspect"), NUMBER), closed=True
        ),
        "joint": (bool,),
    },
)
SCORING = Fields(
    {"tasks": TEXTS, "classes": MAYBE_TEXT},
    {
        "beta": TEXT,
        "k": (Count, NOTHING),
        "seed": Count,
        "repair": TEXT,
        "cut": TEXT,
        "neighbourhood": (bool,),
        "joint": (bool,),
    },
)
SHARD = Fields(
    {"url": TEXT, "table": PlainName},
    {"rows": Count, "sha256": TEXT, "modified": (*NUMBER, NOTHING)},
)
RECORD = Fields(
    {
        "scorer": SCORER,
        "scoring": SCORING,
        "reading": READING,
        "shards": [SHARD],
        "beta": (BETA, NOTHING),
        "model": (
            Fields({"model": TEXT, "pretrained": MAYBE_TEXT}, {"dtype": TEXT, "draft": (bool,), "decoder": TEXT}),
            NOTHING,
        ),
    },
    {
        "random_inputs": (BETA, NOTHING),
        "judged_by": MAYBE_TEXT,
        "unreadable": Values(TEXT),
        "notes": TEXTS,
        "class_names": TEXTS,
        "method": Fields({"name": TEXT}),
        "noisegate": TEXT,
        "finished": (bool,),
        "complete": (bool,),
    },
)

_FIGURES = Values((*NUMBER, str, bool, NOTHING, [(*NUMBER, NOTHING)]))
LABELS = Fields(
    {
        "k": Count,
        "classes": Count,
        "noise_rate": NUMBER,
        "noise_interval": Range,
        "source_weights": Values(NUMBER),
        "expected": Fields(dict.fromkeys(("clean_precision", "clean_recall", "noise_recall"), (*NUMBER, NOTHING))),
        "ece": NUMBER,
    },
    {"noise_model": TEXT, "repair": TEXT, "repairs": (bool,), "changed": Count, "changed_wrong": NUMBER},
)
TABLE = Fields(  # metadata of a weight table
    {
        "scorer": SCORER,
        "reading": READING,
        "shard": Fields(
            {"name": TEXT, "sha256": TEXT, "size": Count, "rows": Count, "damage": MAYBE_TEXT}, {"cut": (bool,)}
        ),
    },
    {
        "beta": (BETA, NOTHING),
        "calibration": (_FIGURES, NOTHING),
        "pair_quality": (Fields({"size": Count, "seed": Count, "digest": TEXT, "temperature": NUMBER}), NOTHING),
        "labels": (LABELS, NOTHING),
        "neighbourhood": (Fields({"alone": (bool,), "calibration": (_FIGURES, NOTHING)}), NOTHING),
        "method": Fields({"name": TEXT}),
        "scores": MAYBE_TEXT,
        "cut": MAYBE_TEXT,
        "embeddings": TEXT,
    },
)


def find_damage(value: Any, kind: Any = RECORD, place: str = "") -> str | None:
    """Describe the first part of a record that is not of its kind; None if the record is valid.

    >>> find_damage({"url": "x.tar", "table": "../x"}, SHARD, "shards.0")
    "shards.0.table is '../x', not a plain file name"
    """
    match kind:
        case Fields():
            return _find_in_fields(value, kind, place)
        case Values():
            if not isinstance(value, dict):
                return f"{place} is not an object"
            parts = ((f"{place}.{name}", part, kind.kind) for name, part in value.items())
        case tuple():
            return None if any(_is_of(value, option) for option in kind) else _find_in_options(value, kind, place)
        case [part_kind]:
            if not isinstance(value, list):
                return f"{place} is not a list"
            parts = ((f"{place}.{i}", part, part_kind) for i, part in enumerate(value))
        case _ if kind is Count:
            return None if _is_of(value, int) and value >= 0 else f"{place} is {str(value)[:80]!r}, not a count"
        case _ if kind is Range:
            is_range = isinstance(value, list) and len(value) == 2 and find_damage(value, [NUMBER]) is None
            return None if is_range else f"{place} is {str(value)[:80]!r}, not two numbers"
        case _:
            return None if _is_plain_name(value) else f"{place} is {value!r}, not a plain file name"
    return next((damage for at, part, wanted in parts if (damage := find_damage(part, wanted, at))), None)


def _find_in_fields(value: Any, kind: Fields, place: str) -> str | None:
    prefix = f"{place}." if place else ""
    if not isinstance(value, dict):
        return f"{place or 'the record'} is not an object"
    for name in kind.required:
        if name not in value:
            return f"{prefix}{name} is missing"
    known = {**kind.required, **kind.optional}
    for name, part in value.items():
        if name not in known:
            if kind.closed:
                return f"{prefix}{name} is unknown"
        elif damage := find_damage(part, known[name], f"{prefix}{name}"):
            return damage
    return None


def _is_of(value: Any, option: Any) -> bool:
    if isinstance(option, type) and option is not Count:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        finite = math.isfinite(value) if isinstance(value, float) else not is_number or abs(value) < LARGEST
        return isinstance(value, option) and (is_number or option not in (int, float)) and finite
    return find_damage(value, option) is None


def _find_in_options(value: Any, options: tuple[Any, ...], place: str) -> str:
    """Describe the problem of a value that fits none of the options."""
    if isinstance(value, dict | list):
        for option in options:
            if not isinstance(option, type) and (damage := find_damage(value, option, place)):
                return damage
    return f"{place} is {str(value)[:80]!r}, which it cannot be"


def _is_plain_name(value: Any) -> bool:
    if not isinstance(value, str) or value in ("", ".", "..") or "/" in value or "\0" in value:
        return False
    try:
        return len(value.encode("utf-8", "surrogateescape")) <= LONGEST_NAME
    except UnicodeEncodeError:  # a lone surrogate, which is not valid in a file name
        return False
