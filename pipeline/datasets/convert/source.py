"""What a reader of a data set gives to the writer: samples by number, and what the record must say about them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .kinds import Kind

__all__ = ["Request", "Sample", "Source"]


@dataclass(frozen=True)
class Request:
    """What is asked for: one split of a download, and the settings that the kind may take."""

    kind: Kind
    folder: Path
    split: str
    check: str = "header"
    layout: str | None = None
    rows: str | None = None
    images: Path | None = None
    float16: bool = False
    noise_file: Path | None = None
    labels: str | None = None
    label_file: Path | None = None
    classes: int | None = None


@dataclass(frozen=True)
class Sample:
    """A key, the file or row it comes from, and how its parts are made; `parts` may raise BadSample."""

    key: str
    origin: str
    parts: Callable[[], dict[str, bytes]]


@dataclass(frozen=True)
class Source:
    """Samples by number, so that a job which was stopped goes on anywhere.

    classes: their names by id, where there are labels. files: those that the samples follow from, which must be the same
    when a job goes on. facts: more for the record, such as how many captions were moved.
    """

    count: int
    sample: Callable[[int], Sample]
    files: tuple[Path, ...]
    classes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
