"""How commands print: tables on standard output, or one JSON object there and all else on standard error.

`print_summary` prints what a run came to, for the commands that score or show one.
"""

import json
import math
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape as escape
from rich.table import Table
from rich.text import Text

from noisegate.pipeline.system.progress import counted

if TYPE_CHECKING:
    from noisegate.pipeline.scoring import Summary


JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output, everything else on standard error.")
]


class Output:
    """Prints tables and text, or with `as_json` one JSON object."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.console = Console(stderr=as_json, highlight=False, soft_wrap=False)

    def table(self, title: str, rows: Iterable[tuple[str, ...]], columns: tuple[str, ...] = ("", "")) -> None:
        """Print a table; from three columns on, all but the first are right-aligned."""
        headed = any(columns)
        table = Table(
            title=Text(title), title_justify="left", title_style="bold", show_header=headed, box=None, pad_edge=False
        )
        for i, name in enumerate(columns):
            right = i > 0 and len(columns) > 2
            table.add_column(name, justify="right" if right else "left", overflow="fold", style="" if i else "cyan")
        for row in rows:
            table.add_row(*map(Text, row))  # names may have brackets, which are not markup
        self.console.print(table)
        self.console.print()

    def say(self, text: str) -> None:
        """Print one line; rich markup is interpreted, so `escape` names from outside."""
        self.console.print(text, soft_wrap=True)

    def tell(self, text: str) -> None:
        """Print a sentence: wrapped on a terminal, one line elsewhere; markup as in `say`."""
        self.console.print(text, soft_wrap=not self.console.is_terminal)

    def note(self, text: str) -> None:
        """Print progress to standard error."""
        print(text, file=sys.stderr, flush=True)

    @contextmanager
    def working(self, text: str) -> Iterator[None]:
        """Show a spinner on a terminal, or print one line, while the block runs."""
        if sys.stderr.isatty():
            with Console(stderr=True).status(Text(text)):
                yield
        else:
            self.note(text)
            yield

    def result(self, values: Mapping[str, Any]) -> None:
        """Print the JSON object, if `as_json`."""
        if self.as_json:
            json.dump(_finite(values), sys.stdout, ensure_ascii=False)
            sys.stdout.write("\n")


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which are not JSON, by None."""
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def percent(share: float | None) -> str:
    return "–" if share is None or not math.isfinite(share) else f"{100 * share:.1f} %"


def number(value: float | None, digits: int = 4) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def why(reason: str) -> str:
    """The reason for a β in words; tables record `crossing` for the plain case of `intersection`."""
    if reason in ("", "crossing"):
        return "where right and shuffled pairs are equally dense" if reason else "–"
    return reason.removesuffix("; crossing")


def program(*arguments: str) -> str:
    """A command line of noisegate that works in the user's shell: by name if the shell finds it, else by path."""
    script = Path(sys.argv[0])
    by_name = shutil.which(script.name)
    if script.name == "__main__.py":
        start = [sys.executable, "-m", "noisegate"]
    elif len(script.parts) == 1 or (by_name and script.exists() and Path(by_name).samefile(script)):
        start = [script.name]
    else:
        start = [sys.argv[0]]
    return shlex.join([*start, *arguments])


def print_summary(summary: "Summary", output: Output, named: bool = False) -> None:
    """Print the table at the end of a run; unreadable shards by number alone if progress has `named` them."""
    from noisegate.pipeline.scoring.summary import hours_for, tells_nothing, unknown_noise

    beta, calibration = summary.beta, summary.calibration
    rows = _count_rows(summary)
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
        expected = calibration.expected(beta.value)
        rows += [
            ("estimated noise", _rate(calibration.noise_rate, calibration.noise_interval)),
            ("  calibration error", f"{percent(calibration.ece)} on held-out pairs"),
            ("expected of w > 0", _promise(expected.clean_precision, expected.clean_recall)),
        ]
    if summary.neighbourhood and summary.neighbourhood["alone"] and summary.neighbourhood["calibration"]:
        rows += _neighbourhood_rows(summary.neighbourhood)
    if summary.labels:
        rows += _label_rows(summary.labels, summary.repaired, alone=not summary.judges_pairs)
    if summary.labels or summary.neighbourhood:
        both = ", by caption and label" if summary.labels and summary.judges_pairs else ""
        rows += [("kept as clean", f"{summary.kept:,}{both}")]
    rate = "nothing left to encode"
    if summary.pairs_per_second:
        hours = hours_for(1e6, summary.pairs_per_second)
        rate = f"{summary.pairs_per_second:,.0f} samples/s ({summary.encoded:,} encoded; a million take {hours:.1f} h)"
    rows += [("encoder", note) for note in summary.notes]
    rows += [("speed", rate), ("time", f"{summary.seconds:.1f} s")]
    output.table("What came out", rows)
    for warning in summary.warnings:
        output.tell(f"[yellow]note[/]: {escape(warning)}")
    for name, problem in summary.damaged_shards.items():
        output.tell(f"[yellow]damaged[/]: {escape(name)}: {escape(problem)}")
    if named and summary.failed_shards:
        output.tell(f"[red]not read[/]: {counted(len(summary.failed_shards), 'shard')}, named above")
    for problem in () if named else summary.failed_shards.values():
        output.tell(f"[red]not read[/]: {escape(problem)}")
    if summary.waits_for:
        output.tell(
            f"[yellow]not scored yet[/]: waits for {escape(summary.waits_for)}; the last node to finish scores all"
        )
    if summary.shards:
        output.say(f"Tables: [cyan]{escape(summary.out)}[/]/*.parquet")


def _count_rows(summary: "Summary") -> list[tuple[str, str]]:
    """Counts of shards, samples, statuses and flags; a failure with its first reason, a flag with its meaning."""
    from noisegate.pipeline.runs.table import FLAGS

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
    """Facts about pairs that are judged by their neighbourhoods."""
    from noisegate.pipeline.pairs.calibration import PairCalibration
    from noisegate.pipeline.scoring.summary import tells_nothing, unknown_noise

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
    """Facts about the labels; `alone` if only they decide what is clean."""
    from noisegate.pipeline.scoring.summary import changed_labels, label_promise

    expected = facts["expected"]
    sources = ", ".join(f"{name} {weight:.2f}" for name, weight in facts["source_weights"].items())
    promise = _promise(expected["clean_precision"], expected["clean_recall"])
    changed = changed_labels(facts, repaired)
    if facts.get("repair") == "never":
        changed += ": --repair never"
    elif not facts["repairs"]:
        changed += ": noise is not shown surely enough"
    if label_promise(facts) is None:
        promise = f"not known: no noise is shown, up to {percent(facts['noise_interval'][1])} is possible"
    model = f", {facts['noise_model']} model" if "noise_model" in facts else ""
    return [
        ("classes", f"{facts['classes']:,}, {facts['k']} neighbours"),
        ("label noise rate", _rate(facts["noise_rate"], facts["noise_interval"]) + model),
        ("  calibration error", f"{percent(facts['ece'])} in predicting the given labels"),
        ("  sources", sources),
        ("expected of clean" if alone else "expected of labels", promise),
        ("labels changed", changed),
    ]


def _rate(rate: float, interval: Sequence[float]) -> str:
    return f"{percent(rate)} (95 %: {percent(interval[0])} to {percent(interval[1])})"


def _promise(precision: float, recall: float) -> str:
    return f"precision {percent(precision)}, recall {percent(recall)}"
