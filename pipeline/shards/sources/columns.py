"""Choose the columns of picture, caption and class in a table, and read its labels."""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from noisegate.pipeline.errors import ConfigError

from .samples import TableColumns

_IMAGE = (
    *("image", "image_path", "image_file", "img", "path", "file_path", "filepath"),
    *("file_name", "filename", "file", "jpg", "image_name"),
)
_TEXT = ("caption", "text", "txt", "title", "sentence", "description", "prompt", "comment")
_LABEL = ("label", "cls", "class", "class_id", "target")
_ADDRESS = ("url", "image_url")
_NUMBER = re.compile(r"([+-]?\d+)(\.0*)?")


def choose_columns(path: Path, schema: pa.Schema, wanted: TableColumns) -> TableColumns:
    """Choose the columns to read; raise ConfigError for columns that are missing, cannot be guessed or cannot be used."""
    names = schema.names
    for setting, name in vars(wanted).items():
        if name is not None and name not in names:
            raise ConfigError.of(f"{setting}_column", name, f"is not in {path}, which has {', '.join(names)}")
    by_name = {name.strip().lower(): name for name in reversed(names)}

    def guess(known: Sequence[str]) -> str | None:
        return next((by_name[name] for name in known if name in by_name), None)

    chosen = TableColumns(
        wanted.image or guess(_IMAGE) or guess(_ADDRESS), wanted.text or guess(_TEXT), wanted.label or guess(_LABEL)
    )
    missing = "image" if chosen.image is None else "text" if chosen.text is chosen.label is None else None
    if missing:
        flags = "--image-column" if missing == "image" else "--text-column, or --label-column"
        setting = f"{missing}_column"
        raise ConfigError(f"{setting} cannot be guessed: {path} has {', '.join(names)}; use {flags}", setting)
    for setting, usable, what in (
        ("image", _is_picture, "paths, bytes or pictures of Hugging Face datasets"),
        ("text", _is_word, "one caption in each row"),
        ("label", _is_word, "class numbers or names"),
    ):
        name = getattr(chosen, setting)
        if name is not None and not usable(schema.field(name).type):
            raise ConfigError.of(
                f"{setting}_column", name, f"of {path} holds {schema.field(name).type}; it must hold {what}"
            )
    return chosen


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds text."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Whether a column of this type holds bytes."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _is_picture(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(kind.field(place).name in ("bytes", "path") for place in range(kind.num_fields))
    return is_text(kind) or is_bytes(kind) or bool(pa.types.is_null(kind))


def _is_word(kind: pa.DataType) -> bool:
    return not (pa.types.is_nested(kind) or is_bytes(kind) or pa.types.is_fixed_size_binary(kind))


def refuse_addresses(path: Path, columns: TableColumns, values: Iterable[Any]) -> None:
    """Raise ConfigError for pictures given as URLs; for web addresses it names the img2dataset command to run."""
    first = next((value for value in values if isinstance(value, str) and "://" in value), None)
    if first is None:
        return
    problem = f"shards {path}: the column {columns.image} holds addresses"
    if not first.startswith(("http://", "https://")):
        raise ConfigError(f"{problem}, such as {first[:80]}; copy the pictures to this machine first", "shards", path)
    caption = f" --caption_col {columns.text}" if columns.text else ""
    raise ConfigError(
        f"{problem}; fetch the pictures first: img2dataset --url_list {path} --input_format {path.suffix[1:]} "
        f"--url_col {columns.image}{caption} --output_format webdataset --output_folder data",
        "shards",
        path,
    )


def read_label(value: Any) -> str | None:
    """Convert a label to text: whole numbers without a fraction, None for an empty cell.

    >>> [read_label(value) for value in (3.0, "4.0", True, " cat ", "", None, float("nan"), 0.5)]
    ['3', '4', '1', 'cat', None, None, None, '0.5']
    """
    if value is None or value != value:
        return None
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    text = str(int(value) if isinstance(value, bool) else value).strip()
    number = _NUMBER.fullmatch(text)
    return (number[1] if number else text) or None


def name_classes(labels: Iterable[str | None]) -> tuple[str, ...]:
    """Return the sorted classes of labels that are names; none if any label is a number.

    >>> name_classes(["dog", "cat", None, "dog"]), name_classes(["3", "cat"])
    (('cat', 'dog'), ())
    """
    names = {label for label in labels if label is not None}
    return () if any(_NUMBER.fullmatch(name) for name in names) else tuple(sorted(names))


def named_by_datasets(schema: pa.Schema, column: str) -> tuple[str, ...]:
    """Read the class names that Hugging Face `datasets` stores for a column of class numbers."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(map(str, features[column]["names"]))
    except (KeyError, TypeError, ValueError):
        return ()
