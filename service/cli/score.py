"""`noisegate score`: score pictures and captions from the command line, in this process or by a running service."""

import csv
import io
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from noisegate.pipeline.cli.options import Device, Dtype, TrustRun
from noisegate.pipeline.cli.output import JsonOption, Output, escape, number, percent
from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system import counted, require_extra, show_line

if TYPE_CHECKING:
    from noisegate.pipeline.pairs import Scorer

POINT, BETA, LINE = "●", "β", "─"
URLS = ("http://", "https://")
IMAGE_NAMES = ("image", "path", "file")
TEXT_NAMES = ("text", "caption")


def register(app: typer.Typer) -> None:
    app.command("score", no_args_is_help=True)(score)


def score(
    image: Annotated[
        str | None,
        typer.Argument(
            help="An image file, or - for standard input; with --url also an image's URL.", show_default=False
        ),
    ] = None,
    captions: Annotated[
        list[str] | None, typer.Argument(help="One caption, or several to be ranked.", show_default=False)
    ] = None,
    pairs: Annotated[
        str | None,
        typer.Option(
            "--pairs",
            help="Many pairs: a .csv with columns image and text, .jsonl with the same names, or - for standard input.",
            show_default=False,
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option("--run", "-r", help="Take model, β and calibration from this finished run.", show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="As in annotate (default: the run's, else embedded, which knows drawn scenes only).",
            show_default=False,
            rich_help_panel="Model",
        ),
    ] = None,
    pretrained: Annotated[
        str | None,
        typer.Option("--pretrained", "-p", help="As in annotate.", show_default=False, rich_help_panel="Model"),
    ] = None,
    trust_run: TrustRun = False,
    beta: Annotated[
        str,
        typer.Option("--beta", "-b", help="auto (the run's, else random_inputs), random_inputs or fixed:VALUE."),
    ] = "auto",
    device: Device = "auto",
    dtype: Dtype = "auto",
    url: Annotated[
        str | None,
        typer.Option(
            "--url", "-u", help="Ask the service there instead.", show_default=False, rich_help_panel="Service"
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            envvar="NOISEGATE_API_KEY",
            help="The service's key; better in the environment.",
            show_default=False,
            rich_help_panel="Service",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say how well an image and its caption belong together; several captions are ranked.

    [cyan]noisegate score image.jpg "a red circle on the left"[/]

    [cyan]noisegate score image.jpg "a red circle" "a blue square" --run tables[/]

    [cyan]noisegate score image.jpg "a cat on a mat" --model ViT-B-32 --pretrained laion2b_s34b_b79k[/]

    [cyan]noisegate score --pairs pairs.csv --json[/]

    [cyan]noisegate score --url http://127.0.0.1:8765 image.jpg "a red circle"[/]

    Exit code 1: no pair could be scored. 2: a file is missing, or a setting is wrong.
    """
    wanted = _collect_pairs(image, captions or [], pairs)
    output = Output(as_json)
    if url is not None:
        given = {"run": run, "model": model, "pretrained": pretrained, "beta": beta if beta != "auto" else None}
        local = [name for name, value in given.items() if value is not None]
        if local:
            problem = f"--{local[0]} is for scoring here; the service at {url} has its own, so leave one of them out"
            raise ConfigError(problem, local[0], given[local[0]])
        answer = _ask(url, api_key, wanted, output)
    else:
        from noisegate.pipeline.pairs import load_scorer

        if pretrained is not None and model is None:
            raise ConfigError.of("pretrained", pretrained, "belongs to a model; give --model too, or leave it out")
        pictures = _read_images(wanted)
        with output.working(f"loading {model or (f'the model of {run}' if run else 'embedded')}"):
            scorer = load_scorer(
                run, model=model, pretrained=pretrained, device=device, dtype=dtype, beta=beta, trust=trust_run
            )
        answer = {
            "results": list(scorer.score(pictures, [text for _, text in wanted])),
            "beta": scorer.beta.to_dict(),
            "scorer": scorer.estimator.identity.digest,
            "notes": [*scorer.notes, *_hints(scorer, run, beta)],
        }
    results = [{"image": i, "text": t, **r} for (i, t), r in zip(wanted, answer["results"], strict=True)]
    if pairs is None:
        results.sort(key=lambda r: -2.0 if r["similarity"] is None else r["similarity"], reverse=True)
    answer["results"] = results
    title = str(image) if pairs is None else counted(len(results), "pair")
    print_scores(answer, output, title=title, with_image=pairs is not None)
    output.result(answer)
    if not any(result["status"] == "ok" for result in results):
        raise typer.Exit(1)


def _collect_pairs(image: str | None, captions: Sequence[str], source: str | None) -> list[tuple[str, str]]:
    if source is not None:
        if image is not None:
            problem = f"image {image!r} and --pairs {source!r} exclude one another; leave one of them out"
            raise ConfigError(problem, "pairs", source)
        return read_pairs(source)
    if image is None or not captions:
        problem = 'a caption is missing; use: noisegate score image.jpg "a caption", or --pairs FILE'
        raise ConfigError(problem, "captions")
    if image != "-" and not image.lower().startswith(URLS) and not Path(image).is_file():
        raise ConfigError.of("image", image, "is not a file; give one such as image.jpg")
    return [(image, caption) for caption in captions]


def _read_images(pairs: Sequence[tuple[str, str]]) -> list[bytes | Path]:
    """Return paths of the pictures, or the bytes of standard input; raise ConfigError for a URL."""
    for image, _ in pairs:
        if image.lower().startswith(URLS):
            raise ConfigError.of("image", image, "is a URL, which only a service fetches; give --url, or a file")
    stdin = sys.stdin.buffer.read() if any(image == "-" for image, _ in pairs) else b""
    return [stdin if image == "-" else Path(image) for image, _ in pairs]


def _hints(scorer: "Scorer", run: Path | None, beta: str) -> list[str]:
    if run is not None or beta != "auto":
        return []
    hint = "β comes from random inputs; --run DIR takes it, and the probability of being clean, from annotated data"
    only = scorer.estimator.identity.model == "embedded"
    return [hint, "embedded understands drawn scenes only; name another --model for photos"] if only else [hint]


def _ask(url: str, api_key: str | None, pairs: Sequence[tuple[str, str]], output: Output) -> dict[str, Any]:
    require_extra("service", "noisegate score --url")
    from noisegate.service.client import Client, ServiceError

    stdin = sys.stdin.buffer.read() if any(image == "-" for image, _ in pairs) else b""
    try:
        with Client(url, api_key) as client, output.working(f"asking {url}"):
            scores = client.score([(stdin if image == "-" else image, text) for image, text in pairs])
    except ServiceError as error:
        if error.status != 401:
            raise
        wrong = "is wrong" if api_key else "is missing"
        problem = f"the key of the service at {url} {wrong}; use --api-key KEY or NOISEGATE_API_KEY"
        raise ConfigError(problem, "api-key") from error
    return {"results": [asdict(score) for score in scores], "beta": scores.beta, "scorer": scores.scorer}


def read_pairs(source: str) -> list[tuple[str, str]]:
    """Read (image, text) rows from a CSV file, JSON lines (text that begins with `{`), or standard input (`-`).

    Columns are image (or path, file) and text (or caption); other columns are ignored. Raises ConfigError with the line number.
    """
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        problem = f"pairs {source} cannot be read: {error}; give a .csv or .jsonl file, or -"
        raise ConfigError(problem, "pairs", source) from error
    rows = _json_lines(source, text) if text.lstrip().startswith("{") else _csv(source, text)
    pairs = [
        (_find_column(row, IMAGE_NAMES, source, line), _find_column(row, TEXT_NAMES, source, line))
        for line, row in rows
    ]
    if not pairs:
        raise ConfigError.of("pairs", source, "is empty; write a header `image,text` and a pair on each line")
    return pairs


def _json_lines(source: str, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for line_number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            problem = f"pairs {source}, line {line_number}: {error}; each line is one JSON object"
            raise ConfigError(problem, "pairs", source) from error
        if not isinstance(row, dict):
            problem = f'pairs {source}, line {line_number}: not an object; write {{"image": "a.jpg", "text": "a cat"}}'
            raise ConfigError(problem, "pairs", source)
        yield line_number, row


def _csv(source: str, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        problem = f"pairs {source}, line {reader.line_num}: {error}; quote texts with commas"
        raise ConfigError(problem, "pairs", source) from error


def _find_column(row: Mapping[str, Any], names: tuple[str, ...], source: str, line: int) -> str:
    for name in names:
        value = row.get(name)
        if isinstance(value, str):
            return value
    problem = f"pairs {source}, line {line}: no {names[0]}; columns are image and text, such as `a.jpg,a cat`"
    raise ConfigError(problem, "pairs", source)


# --- output: each similarity as a point on a scale that also shows β ---------------------------------------------------


def scale_ends(values: Sequence[float]) -> tuple[float, float]:
    """Choose the ends of the scale: tenths, with a little room around all values.

    >>> scale_ends([0.215, 0.31]), scale_ends([-0.98, 1.0])
    ((0.1, 0.4), (-1.0, 1.0))
    """
    low, high = math.floor(10 * (min(values) - 0.05)), math.ceil(10 * (max(values) + 0.05))
    return max(-1.0, low / 10), min(1.0, high / 10)


def scale(similarity: float, beta: float | None, low: float, high: float, width: int) -> str:
    """Draw a line from `low` to `high` with a point at the similarity and a β; if both coincide, only the point is drawn.

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
    wide = output.console.width  # the scale takes a fifth of the width, or a tenth beside image names
    width = max(13, min(60, wide // 5)) // (2 if with_image else 1)
    table = Table(title=Text(title), title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("similarity", justify="right", style="cyan")
    table.add_column(f"{ends[0]:g} to {ends[1]:g}", no_wrap=True)
    table.add_column("weight", justify="right")
    table.add_column("clean", justify="right")
    if with_image:
        table.add_column("image", no_wrap=True, overflow="ellipsis", max_width=wide // 4)
    table.add_column("text", overflow="fold")
    for result in results:
        table.add_row(*_cells(result, value, ends, width, with_image))
    output.console.print(table)
    output.console.print()
    if answer["beta"]:
        output.say(f"β {_describe_beta(answer['beta'])}: a pair at or below it has weight 0.")
    for note in answer.get("notes", ()):
        output.tell(f"[yellow]note[/]: {escape(note)}")


def _cells(
    result: Mapping[str, Any], beta: float | None, ends: tuple[float, float], width: int, with_image: bool
) -> list[Text]:
    image = [Text(show_line(str(result["image"])))] if with_image else []
    text, similarity = Text(show_line(result["text"])), result["similarity"]
    if similarity is None:
        reason = f"{result['status']}: {result['error']}"
        return [Text("–"), Text(), Text(), Text(), *image, text + Text(show_line(f"  {reason}"), style="red")]
    line = Text(scale(similarity, beta, *ends, width), style="dim")
    line.highlight_regex(POINT, "bold green" if result["clean"] else "bold red")
    line.highlight_regex(BETA, "bold yellow")
    figures = [number(result["osa_weight"]), percent(result["clean_probability"])]
    return [Text(number(similarity)), line, *map(Text, figures), *image, text]


def _describe_beta(beta: Mapping[str, Any]) -> str:
    interval = beta.get("interval")
    spread = f", 95 %: {interval[0]:.4f} to {interval[1]:.4f}" if interval else ""
    return f"{beta['value']:.4f} ({beta['mode']}{spread})"
