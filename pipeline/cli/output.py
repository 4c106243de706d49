"""How commands print: tables on standard output, or one JSON object there and all else on standard error.

`print_summary` prints a run's summary, for the commands that score or show a run.
"""

import json
import math
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape as escape_markup
from rich.table import Table
from rich.text import Text

from noisegate.pipeline.system.controls import show_controls, show_line
from noisegate.pipeline.system.numbers import number as number
from noisegate.pipeline.system.numbers import percent as percent
from noisegate.pipeline.system.numbers import why as why
from noisegate.pipeline.system.progress import counted

if TYPE_CHECKING:
    from noisegate.pipeline.scoring import Summary


JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output, everything else on standard error.")
]


_C1 = re.compile("[\x7f-\x9f]")  # control characters that JSON may hold as they are


def escape(text: str) -> str:
    """Escape text from outside for `Output.say`: neither markup nor control characters have an effect."""
    return escape_markup(show_controls(text))


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
            table.add_row(*(Text(show_line(cell)) for cell in row))  # names may have brackets, which are not markup
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
        print(show_controls(text), file=sys.stderr, flush=True)

    @contextmanager
    def working(self, text: str) -> Iterator[None]:
        """Show a spinner on a terminal, or print one line, while the block runs."""
        if sys.stderr.isatty():
            with Console(stderr=True).status(Text(show_controls(text))):
                yield
        else:
            self.note(text)
            yield

    def result(self, values: Mapping[str, Any]) -> None:
        """Print the JSON object, if `as_json`."""
        if self.as_json:
            text = json.dumps(_finite(values), ensure_ascii=False)
            sys.stdout.write(_C1.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which are not JSON, by None."""
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def program(*arguments: str) -> str:
    """Format a noisegate command that works in the user's shell: by name if the shell finds it, else by path."""
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
    """Print the table at the end of a run; unreadable shards are only counted if the progress output has `named` them."""
    from noisegate.pipeline.scoring.summary_rows import summary_rows

    output.table("What came out", summary_rows(summary))
    for warning in summary.warnings:
        output.tell(f"[yellow]note[/]: {escape(warning)}")
    for name, problem in summary.damaged_shards.items():
        kind = "[red]cut off[/]" if name in summary.cut_shards else "[yellow]damaged[/]"
        output.tell(f"{kind}: {escape(name)}: {escape(problem)}")
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
