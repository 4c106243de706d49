"""The record of all jobs: one SQLite file, one row per job, written before anything happens so that nothing is lost."""

import json
import sqlite3
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from noisegate.pipeline.errors import ConfigError
from noisegate.service.errors import Unavailable

__all__ = ["ENDED", "STATES", "Job", "JobProgress", "JobStore", "NoRecord", "Note", "State"]

State = Literal["queued", "running", "done", "failed", "cancelled"]
ENDED: tuple[State, ...] = ("done", "failed", "cancelled")
STATES: tuple[State, ...] = ("queued", "running", *ENDED)
VERSION = 1
_TABLE = """
create table jobs (
    number integer primary key, id text not null unique, name text not null unique, request text not null,
    state text not null, progress text not null, attempts integer not null, created text not null, started text,
    ended text, error text, summary text
)
"""


@dataclass(frozen=True)
class Note:
    """Something the job said; `number` counts its events."""

    number: int
    text: str


@dataclass(frozen=True)
class JobProgress:
    """How far a job is. Shards and bytes are of this attempt's work; `shards_before` were done already.

    `events` numbers what was reported, and goes on after a restart.
    """

    shards_before: int = 0
    shards_todo: int = 0
    shards_done: int = 0
    bytes_todo: int = 0
    bytes_done: int = 0
    samples: int = 0
    failed_samples: int = 0
    shard: str | None = None
    events: int = 0
    notes: tuple[Note, ...] = ()

    @property
    def share(self) -> float | None:
        """Of the shards' bytes, those that are done; None before it is known what there is to do."""
        if not self.bytes_todo:
            return None
        return min(1.0, self.bytes_done / self.bytes_todo)


@dataclass(frozen=True)
class Job:
    """One job as it is recorded. `request` holds the settings that its tables depend on, with every shard by name."""

    id: str
    name: str
    request: Mapping[str, Any]
    state: State = "queued"
    progress: JobProgress = field(default_factory=JobProgress)
    attempts: int = 0
    created: str = ""
    started: str | None = None
    ended: str | None = None
    error: str | None = None
    summary: Mapping[str, Any] | None = None

    @property
    def is_over(self) -> bool:
        return self.state in ENDED


class NoRecord(Unavailable):
    """The file cannot be read or written at the moment: the disk is full, or another program holds the file."""

    def __init__(self, error: sqlite3.Error) -> None:
        super().__init__("no_record", f"the record of jobs cannot be used at the moment: {error}", 30)


class JobStore:
    """All methods may be called from any thread; every change is on disk when it returns. All raise NoRecord."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
            self._db.execute("pragma journal_mode=wal")
            self._db.execute("pragma synchronous=full")
            found = self._db.execute("pragma user_version").fetchone()[0]
            if found == 0:
                with self._change():
                    self._db.execute(_TABLE)
                    self._db.execute(f"pragma user_version={VERSION}")
        except NoRecord as error:
            raise ConfigError(
                f"jobs_folder: {path} cannot be written ({error.__cause__}); use another folder"
            ) from error
        except sqlite3.DatabaseError as error:
            raise ConfigError(f"jobs_folder: {path} is no record of jobs ({error}); use another folder") from error
        if found not in (0, VERSION):
            raise ConfigError(
                f"jobs_folder: {path} is of version {found}, not {VERSION}; use another folder, or the noisegate that made it"
            )

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def add(self, name: str, request: Mapping[str, Any]) -> Job:
        """A new job in the queue; raises KeyError where the name is taken."""
        job = Job(uuid.uuid4().hex[:12], name, json.loads(json.dumps(request)), created=now())
        row = _row(job)
        with self._change():
            try:
                self._db.execute(
                    f"insert into jobs ({', '.join(row)}) values ({', '.join('?' * len(row))})", [*row.values()]
                )
            except sqlite3.IntegrityError as error:
                raise KeyError(name) from error
        return job

    def get(self, job_id: str) -> Job | None:
        return next(iter(self._jobs("where id = ?", [job_id])), None)

    def named(self, name: str) -> Job | None:
        return next(iter(self._jobs("where name = ?", [name])), None)

    def all(self) -> list[Job]:
        """Oldest first."""
        return self._jobs("order by number", [])

    def in_state(self, *states: State) -> list[Job]:
        """Oldest first."""
        return self._jobs(f"where state in ({', '.join('?' * len(states))}) order by number", states)

    def count(self, state: State) -> int:
        with self._open():
            return int(self._db.execute("select count(*) from jobs where state = ?", [state]).fetchone()[0])

    def update(self, job_id: str, **changes: Any) -> Job:
        """Replace fields of a job; raises KeyError where it is gone."""
        with self._change():
            found = self._select("where id = ?", [job_id])
            if not found:
                raise KeyError(job_id)
            job = replace(found[0], **changes)
            row = _row(job)
            self._db.execute(
                f"update jobs set {', '.join(f'{name} = ?' for name in row)} where id = ?", [*row.values(), job_id]
            )
        return job

    def delete(self, job_id: str) -> None:
        with self._change():
            self._db.execute("delete from jobs where id = ?", [job_id])

    @contextmanager
    def _open(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except sqlite3.Error as error:
                raise NoRecord(error) from error

    @contextmanager
    def _change(self) -> Iterator[None]:
        with self._open():
            self._db.execute("begin immediate")
            try:
                yield
                self._db.execute("commit")
            finally:
                if self._db.in_transaction:  # a full disk ends it by itself
                    self._db.execute("rollback")

    def _jobs(self, where: str, values: Sequence[Any]) -> list[Job]:
        with self._open():
            return self._select(where, values)

    def _select(self, where: str, values: Sequence[Any]) -> list[Job]:
        rows = self._db.execute(f"select {', '.join(_COLUMNS)} from jobs {where}", [*values]).fetchall()
        return [_job(dict(zip(_COLUMNS, row, strict=True))) for row in rows]


_COLUMNS = tuple(Job.__dataclass_fields__)


def now() -> str:
    """UTC, to the millisecond, as ISO 8601 has it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _row(job: Job) -> dict[str, Any]:
    values = {name: getattr(job, name) for name in _COLUMNS}
    summary = None if job.summary is None else json.dumps(dict(job.summary))
    return {
        **values,
        "request": json.dumps(dict(job.request)),
        "progress": json.dumps(asdict(job.progress)),
        "summary": summary,
    }


def _job(row: dict[str, Any]) -> Job:
    progress = json.loads(row["progress"])
    notes = tuple(Note(**note) for note in progress.pop("notes"))
    summary = None if row["summary"] is None else json.loads(row["summary"])
    return Job(
        **{
            **row,
            "request": json.loads(row["request"]),
            "progress": JobProgress(**progress, notes=notes),
            "summary": summary,
        }
    )
