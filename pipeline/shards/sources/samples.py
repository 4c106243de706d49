"""The interface of sources: samples by row number, each a key with its parts."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

ROWS = 1000  # samples in a virtual shard


class FilePart(NamedTuple):
    """A part stored as a separate file; `name` is its name in messages."""

    path: str
    name: str


class SampleParts(NamedTuple):
    """A key, and its parts as bytes or as files."""

    key: str
    parts: dict[str, bytes | FilePart]


class RowSource(Protocol):
    """A data set that is read by row number. Any process makes the same one from its URL.

    tasks: which of pairs and labels its samples can be scored for. classes: class names in the order of their numbers, if
    labels are names. changed: time of the last change of its lists or tables. file_bytes: size of the file that contains the
    pictures, None if each picture is a file.
    """

    @property
    def tasks(self) -> tuple[str, ...]: ...

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def changed(self) -> float: ...

    @property
    def file_bytes(self) -> int | None: ...

    def __len__(self) -> int: ...

    def read(self, rows: slice) -> list[SampleParts]:
        """Read the samples of these rows, fewer at the end; raise OSError or pyarrow's errors if they cannot be read."""
        ...


@dataclass(frozen=True)
class TableColumns:
    """The names of a table's columns of picture, caption and class; None: guess by common names."""

    image: str | None = None
    text: str | None = None
    label: str | None = None
