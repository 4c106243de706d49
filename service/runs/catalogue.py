"""Finished runs by name: those the server was started with, and the outputs of jobs that are done."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

from noisegate.service.errors import ApiError

from .against import FinishedRun

__all__ = ["RunRegistry"]

LOADED = 4  # runs held in memory
Stamp = tuple[tuple[int, int] | None, ...]


class RunRegistry:
    """Names to folders, and the last few runs in memory. All of it may be used from any thread.

    `of_jobs` gives the folders of finished jobs by name; a run that the server was started with keeps its name.
    """

    def __init__(
        self,
        settings_runs: Mapping[str, Path],
        of_jobs: Callable[[], Mapping[str, Path]] = dict,
        *,
        most: int = LOADED,
        load: Callable[[Path], FinishedRun] = FinishedRun.load,
    ) -> None:
        self._configured = dict(settings_runs)
        self._of_jobs, self._most, self._load = of_jobs, most, load
        self._loaded: OrderedDict[Path, tuple[Stamp, FinishedRun]] = OrderedDict()
        self._loading: dict[Path, threading.Lock] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Configured runs first, then those of jobs."""
        return list(self._folders())

    def path(self, name: str) -> Path:
        """The run's folder; raises ApiError 404 `unknown_run`."""
        folders = self._folders()
        if name not in folders:
            known = ", ".join(list(folders)[:10]) or "none; start the server with --run DIR, or finish a job"
            raise ApiError(404, "unknown_run", f"there is no run {name[:100]!r}; known are: {known}")
        return folders[name]

    def load(self, name: str) -> FinishedRun:
        """The run in memory; read again where its folder has changed. Slow the first time: call it from a thread."""
        path = self.path(name)
        with self._lock:
            loading = self._loading.setdefault(path, threading.Lock())
        with loading:  # two requests for one run read it once, and nobody else waits for them
            stamp = _stamp(path)
            with self._lock:
                if path in self._loaded and self._loaded[path][0] == stamp:
                    self._loaded.move_to_end(path)
                    return self._loaded[path][1]
            found = self._load(path)
            with self._lock:
                self._loaded[path] = stamp, found
                self._loaded.move_to_end(path)
                while len(self._loaded) > self._most:
                    self._loading.pop(self._loaded.popitem(last=False)[0], None)
            return found

    def _folders(self) -> dict[str, Path]:
        return {**self._configured, **{n: p for n, p in self._of_jobs().items() if n not in self._configured}}


def _stamp(path: Path) -> Stamp:
    """Changes whenever a file of the run is put into place: files are renamed into their folder, which notes the time."""
    found: list[tuple[int, int] | None] = []
    for part in (path, path / "_run.json", path / "embeddings"):
        try:
            stat = part.stat()
        except OSError:
            found.append(None)
        else:
            found.append((stat.st_mtime_ns, stat.st_ino))
    return tuple(found)
