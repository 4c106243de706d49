"""Find finished runs by name, from the settings and from finished jobs; keep the last few in memory."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

from noisegate.service.errors import ApiError

from .against import FinishedRun

MAX_LOADED = 4  # runs held in memory
Stamp = tuple[tuple[int, int] | None, ...]


class RunRegistry:
    """Runs by name, with the last few in memory. Thread-safe.

    `of_jobs` returns the folders of finished jobs by name; on a clash the run of the settings wins.
    """

    def __init__(
        self,
        settings_runs: Mapping[str, Path],
        of_jobs: Callable[[], Mapping[str, Path]] = dict,
        *,
        most: int = MAX_LOADED,
        load: Callable[[Path], FinishedRun] = FinishedRun.load,
    ) -> None:
        self._configured = dict(settings_runs)
        self._of_jobs, self._most, self._load = of_jobs, most, load
        self._loaded: OrderedDict[Path, tuple[Stamp, FinishedRun]] = OrderedDict()
        self._loading: dict[Path, threading.Lock] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """List the names: runs of the settings first, then runs of jobs."""
        return list(self._folders())

    def path(self, name: str) -> Path:
        """Return the run's folder; raise ApiError 404 `unknown_run`."""
        folders = self._folders()
        if name not in folders:
            known = ", ".join(list(folders)[:10]) or "none; start the server with --run DIR, or finish a job"
            raise ApiError(404, "unknown_run", f"there is no run {name[:100]!r}; known are: {known}")
        return folders[name]

    def load(self, name: str) -> FinishedRun:
        """Load the run, from memory unless its folder has changed. Slow the first time: call it from a thread."""
        path = self.path(name)
        with self._lock:
            loading = self._loading.setdefault(path, threading.Lock())
        with loading:  # two requests for one run load it once; requests for other runs do not wait
            stamp = _stamp(path)
            with self._lock:
                if path in self._loaded and self._loaded[path][0] == stamp:
                    self._loaded.move_to_end(path)
                    return self._loaded[path][1]
            run = self._load(path)
            with self._lock:
                self._loaded[path] = stamp, run
                self._loaded.move_to_end(path)
                while len(self._loaded) > self._most:
                    self._loading.pop(self._loaded.popitem(last=False)[0], None)
            return run

    def _folders(self) -> dict[str, Path]:
        return {**self._configured, **{n: p for n, p in self._of_jobs().items() if n not in self._configured}}


def _stamp(path: Path) -> Stamp:
    """Return a value that changes with every file of the run: files are renamed into place, which updates the folder's time."""
    stamps: list[tuple[int, int] | None] = []
    for part in (path, path / "_run.json", path / "embeddings"):
        try:
            stat = part.stat()
        except OSError:
            stamps.append(None)
        else:
            stamps.append((stat.st_mtime_ns, stat.st_ino))
    return tuple(stamps)
