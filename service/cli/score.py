"""`noisegate score`: score pictures and captions from the command line, in this process or by a running service."""

import csv
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noisegate.pipeline.cli.options import Device, Dtype
from noisegate.pipeline.cli.output import JsonOption, Output
from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system import require_extra

if TYPE_CHECKING:
    from noisegate.pipeline.pairs import Scorer

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
            scorer = load_scorer(run, model=model, pretrained=pretrained, device=device, dtype=dtype, beta=beta)
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
    _print(answer, output, image if pairs is None else None)
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
    """Paths of the pictures, or the bytes of standard input; raises ConfigError for a URL."""
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


def _print(answer: dict[str, Any], output: Output, image: str | None) -> None:
    from .score_output import print_scores

    title = f"{len(answer['results']):,} pairs" if image is None else image
    print_scores(answer, output, title=title, with_image=image is None)
    output.result(answer)


def read_pairs(source: str) -> list[tuple[str, str]]:
    """Read (image, text) rows from a CSV file, JSON lines (text that begins with `{`), or standard input (`-`).

    Columns are image (or path, file) and text (or caption); others are ignored. Raises ConfigError with the line.
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
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            problem = f"pairs {source}, line {number}: {error}; each line is one JSON object"
            raise ConfigError(problem, "pairs", source) from error
        if not isinstance(row, dict):
            problem = f'pairs {source}, line {number}: not an object; write {{"image": "a.jpg", "text": "a cat"}}'
            raise ConfigError(problem, "pairs", source)
        yield number, row


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
