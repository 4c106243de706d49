"""Runs of the job with the fake model, and what they left behind."""

from pathlib import Path
from typing import Any

from noisegate import Summary, annotate
from noisegate.pipeline.system.progress import Progress
from tests.fakes import estimator


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below a run's folder by name, but for the lock."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "_lock"
    }


BETA = "fixed:0.4"


class Notes(Progress):
    """Remembers what was said, and stops the job as Ctrl-C would when asked to."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.said: list[str] = []
        self.started: tuple[int, int, int] | None = None
        self.size = 0
        self._left = stop_after

    def _step(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise KeyboardInterrupt

    def start(self, todo: int, size: int, done: int) -> None:
        self.started = (todo, size, done)
        self._step()

    def advance(self, samples: int, size: int) -> None:
        self.size += size
        self._step()

    def shard(self, name: str, samples: int, failed: int) -> None:
        self._step()

    def note(self, text: str) -> None:
        self.said.append(text)


def score(shards: Any, out: Path, **settings: Any) -> Summary:
    """Annotate all tars of a folder, or the shards named, in this process with the fake model and a fixed β."""
    source = shards if not isinstance(shards, Path) else sorted(shards.glob("*.tar"))
    return annotate(source, out, **{"estimator": estimator(), "beta": BETA, "workers": 0, **settings})


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of every table and embedding file: both stay only where nobody wrote."""
    found = [*folder.glob("*.parquet"), *folder.glob("embeddings/*")]
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in found}


def said(progress: Notes) -> str:
    return "\n".join(progress.said)


def table_facts(rows: int, **facts: Any) -> dict[str, Any]:
    """Metadata of a table of that many rows, for tests that write tables by hand."""
    shard = {"name": "x.tar", "sha256": "", "size": 0, "rows": rows, "damage": None}
    record = run_record([])
    return {"table_version": 1, "scorer": record["scorer"], "reading": record["reading"], "shard": shard, **facts}


def run_record(shards: list[dict[str, Any]], **facts: Any) -> dict[str, Any]:
    """What `_run.json` of a small run holds, for tests that write tables by hand."""
    identity = estimator().identity.to_dict()
    settings = {"tasks": ["pairs"], "classes": None}
    facts = {"scorer": identity, "scoring": settings, "reading": {"tasks": ["pairs"]}, "beta": None, **facts}
    return {"table_version": 1, "model": None, "shards": shards, **facts}
