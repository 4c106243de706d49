"""How commands print: tables on standard output, or one JSON object there and all else on standard error."""

import json
import math
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape as escape
from rich.table import Table
from rich.text import Text

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
