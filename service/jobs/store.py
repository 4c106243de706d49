"""The record of all jobs in one SQLite file, one row per job; every change is on disk before it takes effect."""

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
from noisegate.pipeline.runs import Count, Fields, PlainName, find_damage
from noisegate.service.errors import Unavailable

State = Literal["queued", "running", "done", "failed", "cancelled"]
ENDED: tuple[State, ...] = ("done", "failed", "cancelled")
STATES: tuple[State, ...] = ("queued", "running", *ENDED)
VERSION = 1
MAX_NOTES = 20  # most notes of a job; the last ones are kept
_TABLE = """
create table jobs (
    number integer primary key, id text not null unique, name text not null unique, request text not null,
    state text not null, progress text not null, attempts integer not null, created text not null, started text,
    ended text, error text, summary text
)
"""


@dataclass(frozen=True)
class Note:
    """A message of the job; `number` counts its events."""

    number: int
    text: str


@dataclass(frozen=True)
class JobProgress:
    """Progress of a job. Shards and bytes count this attempt's work; `shards_before` were done already.

    `events` counts the reports, and continues after a restart.
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
        """Fraction of the shards' bytes that is done; None before the total is known."""
        if not self.bytes_todo:
            return None
        return min(1.0, self.bytes_done / self.bytes_todo)


@dataclass(frozen=True)
class Job:
    """One job. `request` holds the settings that its tables depend on, with every shard by name."""

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

    def advance(self, report: Mapping[str, Any]) -> "Job":
        """Return the job after one report of its process."""
        progress = self.progress
        match report["kind"]:
            case "start":
                progress = JobProgress(
                    shards_before=report["done"],
                    shards_todo=report["todo"],
                    bytes_todo=report["size"],
                    shard=progress.shard,
                    events=progress.events,
                    notes=progress.notes,
                )
            case "advance":
                samples, size = progress.samples + report["samples"], progress.bytes_done + report["size"]
                progress = replace(progress, samples=samples, bytes_done=size)
            case "shard":
                done, failed = progress.shards_done + 1, progress.failed_samples + report["failed"]
                progress = replace(progress, shard=report["name"], shards_done=done, failed_samples=failed)
            case "note":
                return self.add_note(report["text"])
        return replace(self, progress=progress)

    def add_note(self, text: str) -> "Job":
        """Return the job with one more note."""
        note = Note(self.progress.events + 1, text)
        return replace(self, progress=replace(self.progress, notes=(*self.progress.notes, note)[-MAX_NOTES:]))


class NoRecord(Unavailable):
    """The file cannot be read or written now: the disk is full, or another program locks it."""

    def __init__(self, error: sqlite3.Error) -> None:
        super().__init__("no_record", f"the record of jobs cannot be used at the moment: {error}", 30)


class JobStore:
    """The table of jobs. Methods are thread-safe, write to disk before they return, and raise NoRecord."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
            self._db.execute("pragma journal_mode=wal")
            self._db.execute("pragma synchronous=full")
            version = self._db.execute("pragma user_version").fetchone()[0]
            if version == 0:
                with self._change():
                    self._db.execute(_TABLE)
                    self._db.execute(f"pragma user_version={VERSION}")
        except NoRecord as error:
            problem = f"jobs_folder: {path} cannot be written ({error.__cause__}); use another folder"
            raise ConfigError(problem, "jobs_folder", path) from error
        except sqlite3.DatabaseError as error:
            problem = f"jobs_folder: {path} is not a record of jobs ({error}); use another folder"
            raise ConfigError(problem, "jobs_folder", path) from error
        if version not in (0, VERSION):
            problem = f"has version {version}, not {VERSION}; use another folder, or the noisegate that made it"
            raise ConfigError.of("jobs_folder", path, problem)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def add(self, name: str, request: Mapping[str, Any]) -> Job:
        """Record a new queued job; raises KeyError if the name is taken."""
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

    def latest(self, limit: int, skip: int = 0) -> list[Job]:
        """Return the newest jobs except the `skip` newest, oldest first."""
        return self._jobs("order by number desc limit ? offset ?", [limit, skip])[::-1]

    def names(self, state: State) -> list[str]:
        """List names of the jobs in a state, oldest first, without damaged names."""
        with self._open():
            rows = self._db.execute("select name from jobs where state = ? order by number", [state]).fetchall()
        return [name for (name,) in rows if find_damage(name, PlainName) is None]

    def in_state(self, *states: State) -> list[Job]:
        """List the jobs in these states, oldest first, without damaged records."""
        jobs = self._jobs(f"where state in ({', '.join('?' * len(states))}) order by number", states)
        return [job for job in jobs if job.state in states]

    def count(self, *states: State) -> int:
        """Count the jobs in these states; without states, count all jobs."""
        where = f"where state in ({', '.join('?' * len(states))})" if states else ""
        with self._open():
            return int(self._db.execute(f"select count(*) from jobs {where}", states).fetchone()[0])

    def update(self, job_id: str, **changes: Any) -> Job:
        """Replace fields of a job; raises KeyError if it was deleted."""
        with self._change():
            jobs = self._select("where id = ?", [job_id])
            if not jobs:
                raise KeyError(job_id)
            job = replace(jobs[0], **changes)
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
                if self._db.in_transaction:  # on a full disk SQLite has already ended the transaction
                    self._db.execute("rollback")

    def _jobs(self, where: str, values: Sequence[Any]) -> list[Job]:
        with self._open():
            return self._select(where, values)

    def _select(self, where: str, values: Sequence[Any]) -> list[Job]:
        rows = self._db.execute(f"select {', '.join(_COLUMNS)} from jobs {where}", [*values]).fetchall()
        return [_job(dict(zip(_COLUMNS, row, strict=True))) for row in rows]


_COLUMNS = tuple(Job.__dataclass_fields__)


def now() -> str:
    """Return the present UTC time in ISO 8601, to the millisecond."""
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
    """Read the job of a row. A damaged row becomes a failed job without a request, so that other jobs can still be listed."""
    try:
        job = _parse(row)
        if damage := find_damage(vars(job), _JOB) or find_damage(vars(job.progress), _PROGRESS, "progress"):
            raise ValueError(damage)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        name = row["name"] if find_damage(row["name"], PlainName) is None else f"damaged-{row['id']}"
        problem = f"the record of this job is damaged: {error}"
        return Job(str(row["id"]), name, {}, "failed", created=str(row["created"]), error=problem)
    return job


_TIME = (str, type(None))
_COUNTS = ("shards_before", "shards_todo", "shards_done", "bytes_todo", "bytes_done", "samples", "failed_samples")
_JOB = Fields(
    {
        "name": PlainName,
        "request": Fields({}, {"shards": [(str,)], "asked": [(str,)]}),
        "attempts": Count,
        "created": (str,),
        **dict.fromkeys(("started", "ended", "error"), _TIME),
        "summary": (Fields(), type(None)),
    }
)
_PROGRESS = Fields({**dict.fromkeys((*_COUNTS, "events"), Count), "shard": (str, type(None))})


def _parse(row: dict[str, Any]) -> Job:
    if row["state"] not in STATES:
        raise ValueError(f"state is {row['state']!r}")
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
