"""The last section of a report: the data, the scorer, the settings and how the report was made; "not recorded" if unknown."""

from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from noisegate.pipeline.pairs.beta import Beta
from noisegate.pipeline.runs.table import RunFolder
from noisegate.pipeline.settings import BETA_MODES

from .collect import ReportData
from .page import count, number, percent, without_secrets
from .pictures import CAPTION, SIDE, printable

UNKNOWN = "not recorded"

Rows = list[tuple[str, str]]


def run_facts(
    run: RunFolder,
    recorded: Mapping[str, Any],
    metadata: Mapping[str, Any],
    data: ReportData,
    sampling: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Groups of (name, value) rows for the template."""
    groups = [
        ("Data", _data(run, recorded, data)),
        ("Scorer", _scorer(recorded, metadata)),
        ("Scoring", _scoring(recorded, metadata)),
        ("This report", _report(data, sampling)),
    ]
    return [
        {"title": title, "rows": [(name, printable(value)) for name, value in rows]} for title, rows in groups if rows
    ]


def _data(run: RunFolder, recorded: Mapping[str, Any], data: ReportData) -> Rows:
    entries = recorded["shards"]
    places = sorted({without_secrets(entry["url"]).rpartition("/")[0] or "." for entry in entries})
    written = datetime.fromtimestamp(run.run_file.stat().st_mtime, UTC).strftime("%Y-%m-%d %H:%M UTC")
    reading = recorded.get("reading") or {}
    without = len(entries) - len(data.shards)
    return [
        ("samples", f"{data.rows:,}, of which {data.statuses['ok']:,} could be read"),
        ("shards", f"{len(data.shards):,}" + (f", {without:,} more have no table" if without else "")),
        ("from", ", ".join(places[:3]) + (f" and {len(places) - 3} more places" if len(places) > 3 else "")),
        ("tasks", " and ".join(reading.get("tasks") or [UNKNOWN])),
        ("scored at", f"{UNKNOWN}; the run's record was last written {written}"),
        ("complete", "yes" if recorded.get("complete") else "no: some shards could not be read"),
    ]


def _scorer(recorded: Mapping[str, Any], metadata: Mapping[str, Any]) -> Rows:
    scorer = recorded.get("scorer") or metadata.get("scorer") or {}
    model, weights = (
        recorded.get("model") or {},
        str(scorer.get("weights") or ""),
    )  # a user's own estimator names its own
    versions = ", ".join(f"{name} {number}" for name, number in (scorer.get("versions") or {}).items())
    return [
        ("model", scorer.get("model") or UNKNOWN),
        ("pretrained", model.get("pretrained") or ("none named" if model else UNKNOWN)),
        ("weights (SHA-256)" if len(weights) == 64 else "weights", weights or UNKNOWN),
        ("number type", scorer.get("dtype") or UNKNOWN),
        ("preprocessing", scorer.get("preprocess") or UNKNOWN),
        ("decoder", scorer.get("decoder") or UNKNOWN),
        ("versions", f"noisegate {recorded.get('noisegate') or UNKNOWN}" + (f", {versions}" if versions else "")),
    ]


def _scoring(recorded: Mapping[str, Any], metadata: Mapping[str, Any]) -> Rows:
    rows: Rows = []
    if metadata.get("beta"):
        beta = Beta.from_dict(metadata["beta"])
        rows += [
            ("β", f"{beta}, asked for as {(recorded.get('scoring') or {}).get('beta', UNKNOWN)}"),
            ("meaning of the mode", BETA_MODES.get(beta.mode, "a number of the user's own")),
            ("why this β", beta.reason or UNKNOWN),
        ]
    calibration = metadata.get("calibration")
    if calibration:
        error = percent(calibration["ece"])
        rows.append(("calibration", f"{calibration['method']}, error {error} on held-out pairs"))
        rows.append(("learned from", f"{calibration['pairs']:,} given, {calibration['mismatched']:,} mismatched pairs"))
    elif metadata.get("beta"):
        rows.append(("calibration", "none: too few pairs"))
    near = metadata.get("neighbourhood")
    if near:
        role = "in place of a cosine" if near["alone"] else f"weight {number(near['weight'])} beside the cosine"
        rows.append(("neighbourhood", f"{near['k']} neighbours, {role}"))
    labels = metadata.get("labels")
    if labels:
        rows.append(("labels", f"{labels['classes']:,} classes, {labels['k']:,} neighbours each"))
        rows.append(("calibration of labels", f"error {percent(labels.get('ece'))} in predicting the given label"))
    return rows


def _report(data: ReportData, sampling: Mapping[str, Any]) -> Rows:
    album = sampling["album"]
    rows = [
        ("read", "every row of every table counts in all figures; only galleries and examples are a choice"),
        ("made by", f"noisegate {version('noisegate')}"),
    ]
    if sampling["mismatched"]:
        drawn = f"{sampling['mismatched']:,} pairs mismatched on purpose, from at most 10,000 given pairs of at most 200 shards"
        rows.append(("mismatched pairs", drawn))
    elif sampling["why_not"]:
        rows.append(("mismatched pairs", sampling["why_not"]))
    pictures = f"{album.pictures:,}, at most {SIDE} pixels wide and high, from {count(album.shards_read, 'shard')}"
    rows.append(("pictures", pictures if sampling["missing"] is None else f"{pictures}. {sampling['missing']}"))
    rows.append(("captions", f"cut after {CAPTION} characters"))
    return rows
