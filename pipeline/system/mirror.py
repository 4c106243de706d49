"""A run in a store and its copy on this machine: download differences, upload changes, delete removed files."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.system.progress import counted

from .machine import format_size
from .stores import Listed, Store

RUN = "_run.json"
_MARKS = "_reviews.sqlite"
_RUN_FILES = re.compile(r"_run\.json|_reviews\.sqlite|[^/]+\.(parquet|safetensors)|embeddings/[^/]+\.safetensors")
_GRAPHS = ("neighbours.safetensors", "text_neighbours.safetensors")
_INDEX = ".store.jsonl"  # the store's tag of each local file, one line per copy


def copy_folder(url: str, use: str) -> Path:
    """Make the folder for this machine's copy of a run in a store; jobs and readers (`use`) have separate copies."""
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", url.split("://")[1])[-40:].strip("-.")
    digest = hashlib.sha256(url.encode()).hexdigest()[:12]
    folder = _copies() / f"{name}-{digest}" / use
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot be made: {error.strerror}; name a folder that can be written by XDG_CACHE_HOME"
        raise ConfigError.of("cache", folder, problem) from error
    return folder


def is_copy(folder: Path) -> bool:
    """Return whether the folder is such a copy, from which changes do not reach the store."""
    return folder.absolute().is_relative_to(_copies().absolute())


def _copies() -> Path:
    return user_cache_path("noisegate") / "stores"


def is_large(name: str) -> bool:
    """Return whether a file is only needed to compute with embeddings."""
    return name.startswith("embeddings/") or name in _GRAPHS


class Mirror:
    """The files of a run below a store's URL, and their copies in `folder`.

    A copy counts as unchanged if the store's tag and the copy's size and time are the same as after the last transfer.
    """

    def __init__(self, store: Store, folder: Path, note: Callable[[str], None] = lambda text: None) -> None:
        self.store, self.folder, self._note = store, folder, note
        self._held: set[str] = set()  # all names that were in the folder at any time since it was opened
        self.listed: dict[str, Listed] = {}  # the store's last listing

    def list_files(self) -> dict[str, Listed]:
        """List the run's files in the store, by two requests, however many files there are."""
        files = self.store.list_files() | self.store.list_files("embeddings")
        self.listed = {name: listed for name, listed in files.items() if _RUN_FILES.fullmatch(name)}
        return self.listed

    def pull(self, wanted: Callable[[str], bool] = lambda name: True, prune: bool = False) -> None:
        """Copy the wanted files that differ; `prune` removes local files that the store does not have.

        The file of people's marks stays if marks were added here since it was copied.
        """
        listed, index = self.list_files(), self._read_index()
        if _MARKS in listed and self._has_changed(_MARKS, index):
            del listed[_MARKS]
        if prune:
            for name in self._local() - {*listed, _MARKS}:
                (self.folder / name).unlink(missing_ok=True)
        differ = [name for name, file in listed.items() if wanted(name) and not self._is_same(name, file, index)]
        self._tell("copying", [listed[name].size for name in differ], "from")
        self.store.each(lambda name: self.get(name, listed[name]), differ)
        self._held |= self._local()

    def publish(self) -> None:
        """Upload changed local files, `_run.json` last, then delete in the store the files that were removed here."""
        listed, index = self.list_files(), self._read_index()
        local = self._local()
        new = sorted(name for name in local if name not in listed or not self._is_same(name, listed[name], index))
        self._tell("writing", [(self.folder / name).stat().st_size for name in new if name != RUN], "to")
        self.store.each(self.put, [name for name in new if name.endswith(".safetensors")])
        self.store.each(self.put, [name for name in new if name.endswith(".parquet")])
        self.store.each(self.put, [name for name in new if name == RUN])
        gone = {name for name in listed if name not in local and name in self._held}
        if RUN not in local:  # the run was cleared: delete its large files too, although they were never copied here
            stems = {Path(name).stem for name in gone}
            gone |= {name for name in listed if is_large(name) and (Path(name).stem in stems or name in _GRAPHS)}
        self.store.each(self.store.delete, sorted(gone - {RUN}))
        self.store.each(self.store.delete, gone & {RUN})
        self._held |= local

    def get(self, name: str, listed: Listed | None = None) -> None:
        """Download one file; raise FileNotFoundError."""
        self.store.get(name, self.folder / name, listed)
        if listed is not None:
            self._remember(name, listed)

    def put(self, name: str) -> None:
        """Upload one file."""
        self._remember(name, self.store.put(name, self.folder / name))

    def get_shard(self, stem: str) -> None:
        """Copy the two files of a shard here, if both are there."""
        try:
            for name in shard_files(stem):
                self.get(name)
        except FileNotFoundError:
            return

    def put_shard(self, stem: str, keep: bool = True) -> None:
        """Upload the two files of a shard, the table last, because a table marks its shard as done."""
        for name in shard_files(stem):
            self.put(name)
        for name in () if keep else shard_files(stem):
            (self.folder / name).unlink()

    def remove_copies(self) -> None:
        """Remove the local files, except files that the store does not have."""
        for name in (*self._local(), _INDEX):
            (self.folder / name).unlink(missing_ok=True)

    def _tell(self, verb: str, sizes: list[int], preposition: str) -> None:
        if sizes:
            self._note(
                f"{verb} {counted(len(sizes), 'file')}, {format_size(sum(sizes))}, {preposition} {self.store.url}"
            )

    def _local(self) -> set[str]:
        paths: Iterable[Path] = (*self.folder.glob("*"), *self.folder.glob("embeddings/*"))
        names = (path.relative_to(self.folder).as_posix() for path in paths)
        return {name for name in names if _RUN_FILES.fullmatch(name)}

    def _is_same(self, name: str, listed: Listed, index: dict[str, list[Any]]) -> bool:
        try:
            stat = (self.folder / name).stat()
        except FileNotFoundError:
            return False
        return index.get(name) == [listed.tag, listed.size, stat.st_mtime_ns] and stat.st_size == listed.size

    def _has_changed(self, name: str, index: dict[str, list[Any]]) -> bool:
        """Return whether the copy was written since the last transfer."""
        path = self.folder / name
        return path.exists() and index.get(name, [])[2:] != [path.stat().st_mtime_ns]

    def _remember(self, name: str, listed: Listed) -> None:
        """Append a line by a single write, because several processes may share the folder."""
        time = (self.folder / name).stat().st_mtime_ns
        with (self.folder / _INDEX).open("a", encoding="utf-8") as file:
            file.write(json.dumps([name, [listed.tag, listed.size, time]]) + "\n")

    def _read_index(self) -> dict[str, list[Any]]:
        """Read the last line of each file; ignore a line that a killed process left unfinished."""
        index: dict[str, list[Any]] = {}
        if (self.folder / _INDEX).exists():
            for line in (self.folder / _INDEX).read_text(encoding="utf-8").splitlines():
                if line.endswith("]]"):
                    name, facts = json.loads(line)
                    index[name] = facts
        return index


def shard_files(stem: str) -> tuple[str, str]:
    """Return the names of a shard's embeddings and table."""
    return f"embeddings/{stem}.safetensors", f"{stem}.parquet"
