"""Pictures with class labels, from lists of files or from arrays of pixels, as samples."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.shards.decode import BadSample

from .parts import json_part, key_of, picture_file
from .source import Request, Sample, Source

__all__ = ["check_classes", "label_parts", "listed_pictures"]


def label_parts(picture: Mapping[str, bytes], image_id: str, label: int, known: Mapping[str, Any]) -> dict[str, bytes]:
    """The picture with its class in `cls` and in the json; `known` is more about it, such as clean_label and noisy."""
    record = {"image_id": image_id, "label": label, **known}
    return {**picture, "cls": str(label).encode(), "json": json_part(record)}


def listed_pictures(
    request: Request,
    folder: Path,
    names: Sequence[str],
    labels: Sequence[int],
    files: tuple[Path, ...],
    classes: tuple[str, ...] = (),
    known: Callable[[int], Mapping[str, Any]] = lambda number: {},
    facts: Mapping[str, Any] | None = None,
) -> Source:
    """Files below `folder` with their labels, in this order."""
    if not names:
        raise ConfigError(f"source {request.folder}: --split {request.split} lists no pictures; check its files")
    check_classes(labels, classes, request.folder)

    def sample(number: int) -> Sample:
        name, label = names[number], int(labels[number])

        def parts() -> dict[str, bytes]:
            if label < 0:
                raise BadSample("bad_label", "the label is no class number")
            return label_parts(picture_file(folder / name, request.check), name, label, known(number))

        return Sample(key_of(request.split, number), name, parts)

    return Source(len(names), sample, files, classes, facts or {})


def check_classes(labels: Sequence[int], classes: Sequence[str], place: Path) -> None:
    """Raises ConfigError where a label has no class."""
    largest = max(labels, default=-1)
    if classes and largest >= len(classes):
        raise ConfigError(
            f"source {place}: a label is {largest}, and there are {len(classes)} classes; check its lists"
        )
