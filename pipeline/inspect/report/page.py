"""Template values of a report's headline, galleries, duplicates, failures and facts, and how numbers are written."""

import math
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from noisegate.pipeline.pairs.beta import Beta
from noisegate.pipeline.pairs.calibration import LIKELY
from noisegate.pipeline.runs.table import FLAGS, RunFolder
from noisegate.pipeline.scoring.summary import (
    UNKNOWN_BY_NEIGHBOURS,
    changed_labels,
    describe_group,
    label_rate,
    labels_unknown,
    poor_cut,
    tells_nothing,
    unknown_data,
    unknown_labels,
    unknown_noise,
)
from noisegate.pipeline.settings import BETA_MODES

from .collect import ReportData, ScoreView, TableRow, original_key
from .pictures import CAPTION, SIDE, Album, Shown, printable


def percent(share: float | None, digits: int = 1) -> str:
    """Format a share in per cent, – for none.

    >>> percent(0.1234), percent(float("nan"))
    ('12.3\xa0%', '–')
    """
    return "–" if share is None or not math.isfinite(share) else f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


def number(value: float | None, digits: int = 3) -> str:
    """Format a number, – for none."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def count(amount: int, noun: str) -> str:
    """Format an amount with its noun.

    >>> count(1, "pair"), count(1200, "pair")
    ('1 pair', '1,200 pairs')
    """
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"


def headline(
    run: RunFolder, data: ReportData, view: ScoreView, metadata: Mapping[str, Any], missing: str | None
) -> dict[str, Any]:
    """Make the title, the one to four most important sentences, and four figures."""
    rate, interval = noise_rate(view, metadata)
    failed = data.rows - data.statuses["ok"]
    labels = metadata.get("labels") if view.noun == "pair" else None  # labels that were scored in addition to the pairs
    lead = []
    if data.scored == 0:
        lead.append("No sample could be scored; see what failed below.")
    elif rate is None:
        few = f"cannot be told from so few {view.noun}s" if interval is None else "cannot be told"
        reason = unknown_noise(view.calibration) if view.calibration else few
        lead.append(f"How many {view.noun}s are wrong {reason}{_within(interval)}.")
    else:
        lead.append(f"About {percent(rate)} of the {view.noun}s look wrong{_within(interval)}.")
    if data.scored and labels:
        about = label_rate(labels)
        wrong = "how many do cannot be told" if about is None else f"about {percent(about)} do"
        lead.append(f"Of the labels, {wrong}{_within(labels['noise_interval'])}.")
    if data.scored:
        both = ", by caption and label" if labels else ""
        lead.append(f"The cut keeps {data.kept:,} of {count(data.scored, f'scored {view.noun}')}{both}.")
    if data.changed:
        lead.append(f"Labels changed: {changed_labels(metadata['labels'], data.changed)}.")
    scorer = metadata.get("scorer") or {}
    return {
        "folder": printable(Path(run.name).resolve().name),
        "model": printable(scorer.get("model") or "an unknown model"),
        "summary": f"{count(data.rows, 'sample')} in {count(len(data.shards), 'shard')}",
        "scored_at": scored_at(run),
        "lead": lead,
        "notices": [text for text in (_labels_notice(metadata), _pairs_notice(view, metadata), missing) if text],
        "tiles": [
            (percent(rate), f"estimated noise{' of captions' if labels else ''}", _range(interval)),
            (percent(data.kept / data.scored if data.scored else None), "kept", f"{data.kept:,}"),
            (number(view.cut), "β, the cut" if view.cut_name == "β" else "the cut", f"on {view.score}")
            if view.rule == "osa"
            else (number(LIKELY), "the cut", "on P(clean)"),
            (f"{failed:,}", "failed", percent(failed / data.rows) if data.rows else ""),
        ],
    }


def _pairs_notice(view: ScoreView, metadata: Mapping[str, Any]) -> str | None:
    """The warning about pairs of which nothing is known, or about right ones that lie apart."""
    if view.calibration is None:
        return None
    model = (metadata.get("scorer") or {}).get("model", "")
    if tells_nothing(view.calibration):
        unknown = unknown_data(model, view.calibration) if view.cut_name == "β" else UNKNOWN_BY_NEIGHBOURS
        return f"Note: {unknown}."
    if group := describe_group(view.calibration, view.cut if view.rule == "osa" else None):
        return group
    poor = poor_cut(model, view.expected) if view.expected and view.cut_name == "β" else None
    return f"Note: {poor}." if poor else None


def _labels_notice(metadata: Mapping[str, Any]) -> str | None:
    """Return the warning that the sources know nothing about the labels."""
    labels = metadata.get("labels") or {}
    return f"Note: {unknown_labels(labels)}." if labels_unknown(labels) else None


def _within(interval: Sequence[float] | None) -> str:
    return f" (95\N{NO-BREAK SPACE}%: {_range(interval)})" if interval else ""


def _range(interval: Sequence[float] | None) -> str:
    return f"{percent(interval[0])} to {percent(interval[1])}" if interval else ""


def noise_rate(view: ScoreView, metadata: Mapping[str, Any]) -> tuple[float | None, tuple[float, float] | None]:
    """Return the estimated share of wrong samples and its 95 % interval, from the pairs' calibration or from label scoring.

    The share is None if the data cannot tell.
    """
    if view.calibration and not tells_nothing(view.calibration):
        return view.calibration.noise_rate, view.calibration.noise_interval
    labels = metadata.get("labels") or {}
    if view.noun == "label" and labels.get("noise_rate") is not None:
        low, high = labels["noise_interval"]
        return label_rate(labels), (low, high)
    return None, None


def galleries(data: ReportData, view: ScoreView, album: Album, names: Sequence[str]) -> list[dict[str, Any]]:
    """Make the galleries of worst, borderline and best samples; empty galleries are left out."""
    quality = "label quality" if view.noun == "label" else view.score
    at = "β" if view.cut_name == "β" else "the cut"
    parts = [
        ("worst", "Worst", f"The {view.noun}s with the lowest {quality}.", data.worst),
        ("borderline", "Borderline", f"Nearest to {at}, on either side.", data.borderline),
        ("best", "Best", f"The {view.noun}s with the highest {quality}.", data.best),
    ]
    return [
        {"id": name, "title": title, "intro": intro, "cards": [card(row, album, names) for row in rows]}
        for name, title, intro, rows in parts
        if rows
    ]


def card(row: TableRow, album: Album, names: Sequence[str]) -> dict[str, Any]:
    """Make the template values of one sample: picture, caption, scores, labels and whether it is kept."""
    values, shown = row.values, album.samples.get(row.place, Shown())
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
    if values["clean_probability"] not in (None, values["label_quality"]):
        figures.append(("P(clean)", percent(values["clean_probability"])))
    given, predicted, refined = (values[name] for name in ("label", "predicted_label", "refined_label"))
    label = None
    if given is not None and predicted is not None:
        label = {
            "given": name_of(names, given),
            "predicted": name_of(names, predicted),
            "confidence": percent(values["predicted_confidence"], 0),
            "changed": None if refined in (None, given) else name_of(names, refined),
        }
    caption = shown.caption
    return {
        "key": printable(row.key, 80),
        "shard": printable(row.stem, 80),
        "shown": shown,
        "caption": caption,
        "alt": printable(caption or f"sample {row.key}", 150),
        "figures": figures,
        "label": label,
        "kept": values["clean"],
    }


def name_of(names: Sequence[str], label: int) -> str:
    """Return the class's name, or its number if it has no name."""
    return printable(names[label], 60) if 0 <= label < len(names) else f"class {label}"


def duplicate_section(
    data: ReportData, metadata: Mapping[str, Any], album: Album, names: Sequence[str]
) -> dict[str, Any]:
    """List near duplicates, each beside the sample that it repeats."""
    pairs = [
        {
            "first": card(original, album, names) if (original := data.originals.get(row.place)) else None,
            "second": card(row, album, names),
            "key": printable(original_key(row) or "", 80),
        }
        for row in data.duplicates
    ]
    total, looked = data.flags["duplicate"], bool(metadata.get("labels") or metadata.get("neighbourhood"))
    description = f"{count(total, 'sample')} {'has' if total == 1 else 'have'} nearly the same picture as another one."
    return {"total": total, "looked": looked, "description": description, "pairs": pairs}


def next_commands(
    run: RunFolder, view: ScoreView, recorded: Mapping[str, Any], metadata: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """What to do after reading the report, as (purpose, command). Nothing that drops samples of which nothing is known."""
    folder = shlex.quote(str(run.path))
    arrays = "limits" not in (recorded.get("reading") or {})  # a run that was scored from embeddings has no shards
    kind = "csv" if arrays else "shards"
    rule = "clean" if view.noun == "label" else "clean_probability > 0.5"
    look = ("look at more samples and mark them by hand", shlex.join(["noisegate", *run.browse_words()]))
    no_labels_known = view.noun == "label" and labels_unknown(metadata.get("labels") or {})
    if no_labels_known or (view.calibration and tells_nothing(view.calibration)):
        return [look]
    export = f'noisegate export {folder} --as {kind} --where "{rule}" --out cleaned'
    commands = [(f"write the {view.noun}s worth keeping", export)]
    if (metadata.get("labels") or {}).get("changed"):
        columns = "--columns shard,key,label,refined_label" if arrays else "--add-columns refined_label"
        out = "refined.csv" if arrays else "refined"
        repair = f"noisegate export {folder} --as {kind} {columns} --out {out}"
        commands.append(("write all samples with their labels after the repair", repair))
    train = ("train with the scores", f"noisegate train --method select --table {folder}")
    return [*commands, look, *([] if arrays else [train])]


def failure_section(data: ReportData, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """List failures by status with examples, flags, and shards that are damaged or were never read."""
    statuses = [
        {
            "status": status,
            "count": count(amount, "sample"),
            "share": percent(amount / data.rows),
            "examples": [
                (printable(row.key, 80), printable(row.stem, 80), printable(row.values["error"] or "–", 300))
                for row in data.failures[status]
            ],
        }
        for status, amount in data.statuses.most_common()
        if status != "ok"
    ]
    damaged = [(printable(shard.stem), printable(shard.damage)) for shard in data.shards if shard.damage]
    unreadable = [
        (printable(without_secrets(url)), printable(reason.replace(url, without_secrets(url))))
        for url, reason in (recorded.get("unreadable") or {}).items()
    ]
    flags = [
        (flag, f"{amount:,}", percent(amount / data.rows), FLAGS.get(flag, ""))
        for flag, amount in data.flags.most_common()
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
    """Remove query and user from a URL: they may be credentials."""
    if "://" not in url:
        return url
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.split("?")[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


UNKNOWN = "not recorded"
CUTS = {"osa": "OSA's rule: similarity above β", "probability": "clean_probability above 0.5"}

Rows = list[tuple[str, str]]


def run_facts(
    run: RunFolder,
    recorded: Mapping[str, Any],
    metadata: Mapping[str, Any],
    data: ReportData,
    sampling: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Make groups of (name, value) rows for the template."""
    groups = [
        ("Data", _data(run, recorded, data)),
        ("Scorer", _scorer(recorded, metadata)),
        ("Scoring", _scoring(recorded, metadata)),
        ("This report", _report(data, sampling)),
    ]
    return [
        {"title": title, "rows": [(name, printable(value)) for name, value in rows]} for title, rows in groups if rows
    ]


def scored_at(run: RunFolder) -> str:
    """Return the time when the run's record was last changed: the record is written when a run is scored."""
    return datetime.fromtimestamp(run.run_file.stat().st_mtime, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _data(run: RunFolder, recorded: Mapping[str, Any], data: ReportData) -> Rows:
    entries = recorded["shards"]
    places = sorted({without_secrets(entry["url"]).rpartition("/")[0] or "." for entry in entries})
    reading = recorded.get("reading") or {}
    without = len(entries) - len(data.shards)
    return [
        ("samples", f"{data.rows:,}, of which {data.statuses['ok']:,} could be read"),
        ("shards", f"{len(data.shards):,}" + (f", {without:,} more have no table" if without else "")),
        ("from", ", ".join(places[:3]) + (f" and {len(places) - 3} more places" if len(places) > 3 else "")),
        ("tasks", " and ".join(reading.get("tasks") or [UNKNOWN])),
        ("scored", f"{scored_at(run)}, when the run's record was last written"),
        ("complete", "yes" if recorded.get("complete") else "no: some shards could not be read"),
    ]


def _scorer(recorded: Mapping[str, Any], metadata: Mapping[str, Any]) -> Rows:
    scorer = recorded.get("scorer") or metadata.get("scorer") or {}
    model, weights = (
        recorded.get("model") or {},
        str(scorer.get("weights") or ""),
    )  # a user's own estimator has its own identity string
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
            ("clean follows", CUTS.get(metadata.get("cut") or "osa", UNKNOWN)),
            ("meaning of the mode", BETA_MODES.get(beta.mode, "a number of the user's own")),
            ("why this β", beta.reason or UNKNOWN),
        ]
    calibration = metadata.get("calibration")
    if calibration:
        error = percent(calibration["ece"])
        rows.append(("P(clean) comes from", calibration.get("score", "similarity")))
        rows.append(("calibration", f"{calibration['method']}, error {error} on held-out pairs"))
        rows.append(("learned from", f"{calibration['pairs']:,} given, {calibration['mismatched']:,} mismatched pairs"))
    elif metadata.get("beta"):
        rows.append(("calibration", "none: too few pairs"))
    pool = metadata.get("pair_quality")
    if pool:
        source = f", {pool['temperature_source']}" if "temperature_source" in pool else ""
        rows.append(("pair_quality", f"against {pool['pairs']:,} pairs of the run, τ {pool['temperature']:g}{source}"))
        if shares := pool["above_mismatched"]:
            quality, cosine = percent(shares[f"{pool['temperature']:g}"]), percent(shares["cosine"])
            rows.append(("pairs above 99 % of mismatched ones", f"{quality} by pair_quality, {cosine} by the cosine"))
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
