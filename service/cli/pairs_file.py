"""Lists of pairs in files: CSV with a header, or one JSON object a line."""

import csv
import io
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from noisegate.pipeline.errors import ConfigError

__all__ = ["read_pairs"]

IMAGE_NAMES = ("image", "path", "file")
TEXT_NAMES = ("text", "caption")


def read_pairs(source: str) -> list[tuple[str, str]]:
    """(image, text) of each row. `-` is standard input; what begins with `{` is JSON lines, whatever its name.

    Columns are image (or path, file) and text (or caption); others are left alone. Raises ConfigError with the line.
    """
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError(f"pairs {source} cannot be read: {error}; give a .csv or .jsonl file, or -") from error
    rows = _json_lines(source, text) if text.lstrip().startswith("{") else _csv(source, text)
    found = [(_one_of(row, IMAGE_NAMES, source, line), _one_of(row, TEXT_NAMES, source, line)) for line, row in rows]
    if not found:
        raise ConfigError(f"pairs {source} holds none; write a header `image,text` and a pair on each line")
    return found


def _json_lines(source: str, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"pairs {source}, line {number}: {error}; each line is one JSON object") from error
        if not isinstance(row, dict):
            raise ConfigError(f'pairs {source}, line {number}: no object; write {{"image": "a.jpg", "text": "a cat"}}')
        yield number, row


def _csv(source: str, text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise ConfigError(f"pairs {source}, line {reader.line_num}: {error}; quote texts with commas") from error


def _one_of(row: Mapping[str, Any], names: tuple[str, ...], source: str, line: int) -> str:
    for name in names:
        value = row.get(name)
        if isinstance(value, str):
            return value
    raise ConfigError(f"pairs {source}, line {line}: no {names[0]}; columns are image and text, such as `a.jpg,a cat`")
