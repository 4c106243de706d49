"""People's marks on the samples of a run (keep, drop, relabel), in `_reviews.sqlite` beside the tables.

The tables are never touched. Each change is one row of the SQLite table `marks`, and no row is ever changed or removed:

| column | meaning |
| --- | --- |
| id | order of the changes |
| shard, index, key | the sample: stem of its table, position, webdataset key |
| image_sha256, text_sha256 | digests of what was seen; null where the table has none |
| mark | `keep`, `drop` or `relabel`; null takes the sample's mark back |
| label | the right class for `relabel`, else null |
| reviewer | a name, or null |
| at | seconds since 1970 (UTC) |

These five columns identify a sample, and the last row of a sample counts. A sample whose digests have changed is another
sample, so an old mark never applies to it. SQLite's rollback journal makes a change atomic and durable: two reviewers wait for
each other, and the unfinished change of a killed process is undone by the next process.
"""

import hashlib
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any

import numpy as np
import pyarrow as pa

from noisegate.pipeline.errors import ConfigError, TableError
from noisegate.pipeline.system.array_types import Float64
from noisegate.pipeline.system.mirror import is_copy

FILE = "_reviews.sqlite"
VERSION = 1
MARKS = ("keep", "drop", "relabel")
WAIT = 30.0  # seconds for another process to finish writing
SAMPLE = ("shard", "index", "key", "image_sha256", "text_sha256")  # columns that identify a sample
_CREATE = f"""
create table marks (
  id integer primary key, shard text not null, "index" integer not null, key text not null, image_sha256 blob, text_sha256 blob,
  mark text check (mark in {MARKS}), label integer, reviewer text, at real not null
);
create index marks_by_sample on marks (shard, "index");
pragma user_version = {VERSION};
"""


@dataclass(frozen=True)
class Mark:
    """One change: a sample and its mark; `mark` None takes the mark back. Raises ConfigError for an invalid mark."""

    shard: str
    index: int
    key: str
    image_sha256: bytes | None
    text_sha256: bytes | None
    mark: str | None
    label: int | None = None
    reviewer: str | None = None
    at: float = 0.0

    def __post_init__(self) -> None:
        if self.mark is not None and self.mark not in MARKS:
            raise ConfigError.of("mark", self.mark, f"is unknown; use {', '.join(MARKS)}")
        if (self.mark == "relabel") != (self.label is not None):
            problem = "needs the right class as label" if self.mark == "relabel" else "goes without a label"
            raise ConfigError.of("mark", self.mark, f"{problem}; relabel with a label, or keep, or drop")
        if self.label is not None and not 0 <= self.label < 2**31:
            raise ConfigError.of("label", self.label, "is no class number; use 0 or more")

    @classmethod
    def of_row(
        cls,
        row: Mapping[str, Any],
        mark: str | None,
        label: int | None = None,
        reviewer: str | None = None,
        at: float = 0.0,
        classes: int = 0,
    ) -> "Mark":
        """Make the mark of a table's row, which has `shard` too; raise ConfigError for a class that does not exist.

        `classes` is the number of classes if known, else 0.
        """
        if label is not None and row["label"] is None:
            raise ConfigError.of("mark", mark, "needs a sample with a class, and this one has none; keep or drop it")
        if label is not None and classes and label >= classes:
            raise ConfigError.of("label", label, f"is no class of the run; use 0 to {classes - 1}")
        shard, index, key, image, text = (row[name] for name in SAMPLE)
        return cls(shard, index, key, image, text, mark, label, reviewer, at)

    @property
    def sample(self) -> tuple[Any, ...]:
        """The values of SAMPLE, which identify the sample."""
        return tuple(getattr(self, name) for name in SAMPLE)


class Reviews:
    """The marks of the run in `folder`. Safe to use from several processes and threads; nothing stays open."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def write(self, marks: Iterable[Mark]) -> None:
        """Add all changes or none, with the present time if `at` is 0; create the file. Raise TableError if that fails."""
        if is_copy(self.path.parent):
            problem = "is a copy of a run in a store, which takes no marks; copy the run to a disk and mark that one"
            raise TableError.of("reviews", self.path.parent, problem)
        now = time.time()
        rows = [(*astuple(mark)[:-1], mark.at or now) for mark in marks]
        with self._open("rwc") as database:
            database.execute("begin immediate")
            if not database.execute("pragma user_version").fetchone()[0]:
                for statement in _CREATE.split(";"):
                    database.execute(statement)
            database.executemany(f"insert into marks ({_NAMES}) values ({', '.join('?' * len(fields(Mark)))})", rows)
            database.execute("commit")

    def read(self, shard: str | None = None) -> list[Mark]:
        """Return the valid marks of one shard or of all, in the order they were made."""
        which = "where shard = ?" if shard is not None else ""
        last = f"select max(id) from marks {which} group by {_SAMPLE_NAMES}"
        return self._select(f"where id in ({last}) and mark is not null", [] if shard is None else [shard])

    def history(self) -> list[Mark]:
        """Return every change, in the order they were made."""
        return self._select("", [])

    def columns(self, shard: str, table: pa.Table) -> dict[str, pa.Array]:
        """Make `review` and `review_label` for the rows of a shard's table, which has the columns of SAMPLE but `shard`."""
        marks: list[str | None] = [None] * len(table)
        labels: list[int | None] = [None] * len(table)
        for mark in self.read(shard):
            if mark.index >= len(table):
                continue
            if mark.sample[1:] == tuple(table[name][mark.index].as_py() for name in SAMPLE[1:]):
                marks[mark.index], labels[mark.index] = mark.mark, mark.label
        words = pa.array(marks, pa.string()).dictionary_encode()
        return {"review": words, "review_label": pa.array(labels, pa.int32())}

    def _select(self, condition: str, values: Sequence[Any]) -> list[Mark]:
        if not self.path.exists():
            return []
        with self._open("rw") as database:  # not "ro": rolling back a killed writer's change needs to write
            if not database.execute("pragma user_version").fetchone()[0]:
                return []  # another process is about to write the first mark
            rows = database.execute(f"select {_NAMES} from marks {condition} order by id", values)
            return [_check_row(row) for row in rows]

    @contextmanager
    def _open(self, mode: str) -> Iterator[sqlite3.Connection]:
        try:
            database = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode={mode}", timeout=WAIT, isolation_level=None, uri=True
            )
            try:
                version = database.execute("pragma user_version").fetchone()[0]
                if version > VERSION:
                    raise TableError.of("reviews", self.path, f"has version {version}, not {VERSION}; update noisegate")
                if database.execute(_FOREIGN).fetchone():
                    raise sqlite3.DataError("it has views, triggers or computed columns")
                yield database
            finally:
                database.close()
        except sqlite3.Error as error:
            advice = "is the folder writable, the disk full, or the file damaged?"
            raise TableError.of("reviews", self.path, f"cannot be used: {error}; {advice}") from error


_NAMES = ", ".join(f'"{field.name}"' for field in fields(Mark))
_FOREIGN = """
select 1 from sqlite_master where coalesce(rootpage, 0) = 0 union all select 1 from pragma_table_xinfo('marks') where hidden
"""  # views, triggers and virtual tables have no page of their own; computed columns are hidden
# not `sqlite_schema`, which SQLite has from 3.33 on: Enterprise Linux 8 has 3.26
_KINDS: tuple[type | UnionType, ...] = (
    *(str, int, str, bytes | None, bytes | None),
    *(str | None, int | None, str | None, int | float),
)
_LATEST = 253402300800.0  # seconds: the end of the year 9999


def _check_row(row: Sequence[Any]) -> Mark:
    """A row as a mark; raises sqlite3.DataError, because the file may come from elsewhere with somebody's run."""
    if not all(map(isinstance, row, _KINDS)) or not 0 <= row[-1] < _LATEST or row[1] < 0:
        raise sqlite3.DataError("a mark has wrong values")
    try:
        return Mark(*row)
    except ConfigError as error:
        raise sqlite3.DataError(str(error)) from error


_SAMPLE_NAMES = ", ".join(f'"{name}"' for name in SAMPLE)


def sample_order(shard: str, count: int) -> Float64:
    """Return a fixed random number in [0, 1) for each row of a shard, (count,), by splitmix64 of stem and row.

    Sorted by it over all shards, rows are in random order, so the first n are a random sample for every n.

    >>> sample_order("x-00", 3).round(3).tolist()
    [0.039, 0.709, 0.822]
    """
    start = int.from_bytes(hashlib.sha256(shard.encode("utf-8", "surrogateescape")).digest()[:8], "big")
    z = np.uint64(start) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53
