"""The figures of a summary as rows of text: what the command prints and a notebook shows."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from noisegate.pipeline.pairs.calibration import PairCalibration
from noisegate.pipeline.runs.table import FLAGS
from noisegate.pipeline.system.numbers import number, percent, why

from .summary import Summary, changed_labels, hours_for, label_promise, label_rate, tells_nothing, unknown_noise

_CELL = "text-align: left; vertical-align: top; padding: .2em 1.2em .2em 0; white-space: pre-wrap"


def summary_rows(summary: Summary) -> list[tuple[str, str]]:
    """List the run's results as (name, value)."""
    beta, calibration = summary.beta, summary.calibration
    rows = [("model", f"{summary.model}{', for drawn scenes only' if summary.model == 'embedded' else ''}")]
    rows += _count_rows(summary)
    if beta and summary.scored:
        rows += [("β", str(beta)), ("  why", why(beta.reason))]
        rows += [("weight 0", percent(summary.zero_share)), ("mean weight", f"{summary.mean_weight or 0.0:.4g}")]
    if summary.similarity_quantiles:
        quantiles = summary.similarity_quantiles.items()
        rows += [("similarity", "  ".join(f"{f'{100 * float(share):g} %':>6}" for share, _ in quantiles))]
        rows += [("", "  ".join(f"{value:6.3f}" for _, value in quantiles))]
    if calibration and beta and tells_nothing(calibration):
        rows += [("estimated noise", unknown_noise(calibration))]
    elif calibration and beta:
        expected = calibration.expected_of(summary.cut, beta.value)
        rule = "w > 0" if summary.cut == "osa" else "P > 0.5"
        apart = calibration.apart_share
        rows += [
            (
                "estimated noise",
                _rate(calibration.noise_rate, calibration.noise_interval)
                + (f", not counting {percent(apart)} that lie apart" if apart else ""),
            ),
            ("  judged by", f"{calibration.score}, error {percent(calibration.ece)} on held-out pairs"),
            (f"expected of {rule}", _promise(expected.clean_precision, expected.clean_recall)),
        ]
    if summary.neighbourhood and summary.neighbourhood["alone"] and summary.neighbourhood["calibration"]:
        rows += _neighbourhood_rows(summary.neighbourhood)
    if summary.labels:
        rows += _label_rows(summary.labels, summary.repaired, alone=not summary.judges_pairs)
    if summary.labels or summary.neighbourhood or summary.cut == "probability":
        rows += [("kept as clean", f"{summary.kept:,} of {summary.judged:,}{_basis(summary)}")]
    rate = "nothing left to encode"
    if summary.pairs_per_second:
        hours = hours_for(1e6, summary.pairs_per_second)
        rate = f"{summary.pairs_per_second:,.0f} samples/s ({summary.encoded:,} encoded; a million take {hours:.1f} h)"
    rows += [("encoder", note) for note in summary.notes]
    rows += [("speed", rate), ("time", f"{summary.seconds:.1f} s")]
    return rows


def summary_text(summary: Summary) -> str:
    """Format the rows as text, with warnings below."""
    lines = [f"{name:<21}  {value}".rstrip() for name, value in summary_rows(summary)]
    return "\n".join([*lines, *(f"note: {warning}" for warning in summary.warnings), f"tables: {summary.out}"])


def summary_html(summary: Summary) -> str:
    """Format the rows as an HTML table without colours, for light and dark notebooks."""
    rows = "".join(
        f'<tr><th style="{_CELL}; font-weight: 400; opacity: .75">{escape(name)}</th>'
        f'<td style="{_CELL}">{escape(value)}</td></tr>'
        for name, value in [*summary_rows(summary), ("tables", summary.out)]
    )
    notes = "".join(f"<p>note: {escape(warning)}</p>" for warning in summary.warnings)
    return f'<table style="font-variant-numeric: tabular-nums">{rows}</table>{notes}'


def _count_rows(summary: Summary) -> list[tuple[str, str]]:
    """Counts of shards, samples, statuses and flags; a failure with its first reason, a flag with its meaning."""
    counts = [summary.shards, summary.samples, *summary.statuses.values(), *summary.flags.values()]
    width = max(len(f"{count:,}") for count in counts)
    rows = [("shards", f"{summary.shards:{width},}"), ("samples", f"{summary.samples:{width},}")]
    for status, count in summary.statuses.items():
        share = f"{count:{width},}  {percent(count / summary.samples):>7}"
        reason = summary.errors.get(status)
        rows.append(
            (f"  {status}", f"{share}  {reason if len(reason) <= 80 else reason[:79] + '…'}" if reason else share)
        )
    for flag, count in summary.flags.items():
        rows.append(
            (f"  flag {flag}", f"{count:{width},}  {percent(count / summary.samples):>7}  {FLAGS.get(flag, '')}")
        )
    return rows


def _neighbourhood_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """List facts about pairs that are judged by their neighbourhoods."""
    calibration, expected = facts["calibration"], facts["expected"]
    if tells_nothing(fitted := PairCalibration.from_dict(calibration)):
        return [("estimated noise", f"{unknown_noise(fitted)}, by neighbourhoods")]
    return [
        ("estimated noise", f"{_rate(calibration['noise_rate'], calibration['noise_interval'])} by neighbourhoods"),
        ("  calibration error", f"{percent(calibration['ece'])} on held-out pairs"),
        ("cut", f"neighbourhood > {number(facts['cut'], 2)}"),
        ("  why", why(facts["cut_reason"])),
        ("expected of the cut", _promise(expected["clean_precision"], expected["clean_recall"])),
    ]


def _label_rows(facts: Mapping[str, Any], repaired: int, *, alone: bool) -> list[tuple[str, str]]:
    """List facts about the labels; `alone` if only they decide what is clean."""
    expected = facts["expected"]
    sources = ", ".join(f"{name} {weight:.2f}" for name, weight in facts["source_weights"].items())
    promise = _promise(expected["clean_precision"], expected["clean_recall"])
    if label_promise(facts) is None:
        promise = f"not known: no noise is shown, up to {percent(facts['noise_interval'][1])} is possible"
    model = f", {facts['noise_model']} model" if "noise_model" in facts else ""
    return [
        ("classes", f"{facts['classes']:,}, {facts['k']} neighbours"),
        ("label noise rate", _rate(label_rate(facts), facts["noise_interval"]) + model),
        ("  calibration error", f"{percent(facts['ece'])} in predicting the given labels"),
        ("  sources", sources),
        ("expected of clean" if alone else "expected of labels", promise),
        ("labels changed", changed_labels(facts, repaired)),
    ]


def _basis(summary: Summary) -> str:
    """What decided which samples are clean, or how many could not be judged because they have no label."""
    if summary.labels and summary.judges_pairs:
        return ", by caption and label"
    unlabelled = summary.statuses.get("ok", 0) - summary.judged if summary.labels else 0
    return f"; {unlabelled:,} have no label" if unlabelled else ""


def _rate(rate: float | None, interval: Sequence[float]) -> str:
    return f"{'cannot be told' if rate is None else percent(rate)} (95 %: {percent(interval[0])} to {percent(interval[1])})"


def _promise(precision: float, recall: float) -> str:
    return f"precision {percent(precision)}, recall {percent(recall)}"
