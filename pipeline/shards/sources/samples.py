"""What every source gives: samples by row number, each a key with its parts."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

ROWS = 1000  # samples in a virtual shard


class FilePart(NamedTuple):
    """A part that is a file of its own; `name` is how messages call it."""

    path: str
    name: str


class SampleParts(NamedTuple):
    """A key, and its parts as bytes or as files."""

    key: str
    parts: dict[str, bytes | FilePart]


class RowSource(Protocol):
    """A data set that is read by row number. Any process makes the same one from its URL.

    tasks: which of pairs and labels its samples can serve. classes: names of the classes where labels are names, in the
    order of their numbers. changed: time of the last change of its lists or tables. file_bytes: size of the file that holds
    the pictures, None where they are files of their own.
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
        """The samples of these rows, fewer at the end; raises OSError or pyarrow's errors where they cannot be read."""
        ...


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table that hold picture, caption and class; None: guess them by their names."""

    image: str | None = None
    text: str | None = None
    label: str | None = None
