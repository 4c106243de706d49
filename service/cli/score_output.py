"""Print scores in the terminal: each similarity as a point on a scale that also shows β."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from noisegate.pipeline.cli.output import Output, escape, number, percent

WIDTH, LIST_WIDTH = 25, 15  # of the scale: alone, and beside the names of many images
IMAGE_WIDTH = 32
POINT, BETA, LINE = "●", "β", "─"


def scale_ends(values: Sequence[float]) -> tuple[float, float]:
    """Ends of the scale: tenths, with a little room around all values.

    >>> scale_ends([0.215, 0.31]), scale_ends([-0.98, 1.0])
    ((0.1, 0.4), (-1.0, 1.0))
    """
    low, high = math.floor(10 * (min(values) - 0.05)), math.ceil(10 * (max(values) + 0.05))
    return max(-1.0, low / 10), min(1.0, high / 10)


def scale(similarity: float, beta: float | None, low: float, high: float, width: int = WIDTH) -> str:
    """Draw a line from `low` to `high` with a point at the similarity and a β; the point wins where both fall together.

    >>> scale(0.31, 0.215, 0.1, 0.4, 13)
    '─────β──●────'
    """

    def place(value: float) -> int:
        return min(width - 1, max(0, round((value - low) / (high - low) * (width - 1))))

    line = [LINE] * width
    if beta is not None:
        line[place(beta)] = BETA
    line[place(similarity)] = POINT
    return "".join(line)


def print_scores(answer: Mapping[str, Any], output: Output, *, title: str, with_image: bool) -> None:
    """Print one line per result, then β and the notes; `answer` is what --json prints."""
    results: Sequence[Mapping[str, Any]] = answer["results"]
    value = (answer["beta"] or {}).get("value")
    known = [r["similarity"] for r in results if r["similarity"] is not None]
    ends = scale_ends([*known, *([] if value is None else [value])]) if known else (0.0, 1.0)
    table = Table(title=Text(title), title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("similarity", justify="right", style="cyan")
    table.add_column(f"{ends[0]:g} to {ends[1]:g}", no_wrap=True)
    table.add_column("weight", justify="right")
    table.add_column("clean", justify="right")
    if with_image:
        table.add_column("image", no_wrap=True, overflow="ellipsis", max_width=IMAGE_WIDTH)
    table.add_column("text", overflow="fold")
    for result in results:
        table.add_row(*_cells(result, value, ends, with_image))
    output.console.print(table)
    output.console.print()
    if answer["beta"]:
        output.say(f"β {_describe_beta(answer['beta'])}: a pair at or below it has weight 0.")
    for note in answer.get("notes", ()):
        output.tell(f"[yellow]note[/]: {escape(note)}")


def _cells(result: Mapping[str, Any], beta: float | None, ends: tuple[float, float], with_image: bool) -> list[Text]:
    image = [Text(str(result["image"]))] if with_image else []
    similarity = result["similarity"]
    if similarity is None:
        reason = f"{result['status']}: {result['error']}"
        return [Text("–"), Text(), Text(), Text(), *image, Text(result["text"]) + Text(f"  {reason}", style="red")]
    line = Text(scale(similarity, beta, *ends, LIST_WIDTH if with_image else WIDTH), style="dim")
    line.highlight_regex(POINT, "bold green" if result["clean"] else "bold red")
    line.highlight_regex(BETA, "bold yellow")
    figures = [number(result["osa_weight"]), percent(result["clean_probability"])]
    return [Text(number(similarity)), line, *map(Text, figures), *image, Text(result["text"])]


def _describe_beta(beta: Mapping[str, Any]) -> str:
    interval = beta.get("interval")
    spread = f", 95 %: {interval[0]:.4f} to {interval[1]:.4f}" if interval else ""
    return f"{beta['value']:.4f} ({beta['mode']}{spread})"
