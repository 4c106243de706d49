"""A run's folder on this machine, or in a store with a copy here: open it to read or write, lock it, upload changes."""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from noisegate.pipeline.errors import TableError
from noisegate.pipeline.system.mirror import RUN, Mirror, copy_folder, is_large, shard_files
from noisegate.pipeline.system.stores import Store, store_url

from .lease import Lease, hold_lease
from .lock import folder_lock


class StoredFolder:
    """A run in a store has a `mirror`, and `path` is its copy on this machine. `name` is the user's name for the run."""

    def __init__(self, path: Path, mirror: Mirror | None = None) -> None:
        self.path, self.mirror = path, mirror
        self.name: Path | str = mirror.store.url if mirror else path
        self._lease: Lease | None = None

    @classmethod
    def to_write(cls, out: str | Path, setting: str = "out", note: Callable[[str], None] = lambda text: None) -> Self:
        """Open the run at a path or URL that a job will write, under `lock`; raise ConfigError for an unusable store."""
        url = store_url(out)
        if url is None:
            return cls(Path(out))
        store = Store(url, setting)
        store.check()
        return cls(folder := copy_folder(url, "job"), Mirror(store, folder, note))

    @classmethod
    def to_read(cls, folder: str | Path, embeddings: bool = False) -> Self:
        """Open the run at a path or URL; files that are only in a store are copied first.

        Embeddings are copied only on request, here or by `fetch_embeddings`. Raises TableError for a URL without a run.
        """
        url = store_url(folder)
        if url is None:
            return cls(Path(folder))
        store = Store(url, "run")
        store.check()
        copy = copy_folder(url, "read")
        mirror = Mirror(store, copy)
        mirror.pull(lambda name: embeddings or not is_large(name), prune=True)
        if not (copy / RUN).exists():
            raise TableError.of("run", url, f"holds no run; use noisegate annotate SHARDS --out {url}")
        return cls(copy, mirror)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run for writing; raise LockedError if another job does.

        A run in a store is copied here without its large files (`fetch_embeddings`). Changes are uploaded when the block ends
        without an error, and the copy is removed.
        """
        with ExitStack() as held:
            held.enter_context(folder_lock(self.path, name=self.name))
            if self.mirror is not None:
                self._lease = held.enter_context(hold_lease(self.mirror.store, self.path))
                self.mirror.pull(lambda name: not is_large(name), prune=True)
            yield
            self.publish()
            if self.mirror is not None:
                self.mirror.remove_copies()

    def publish(self) -> None:
        """Upload changed files to the run's store, if it has one, and delete there the files that were removed here."""
        if self.mirror is not None:
            self.check_lease()
            self.mirror.publish()

    def check_lease(self) -> None:
        """Raise LockedError if another job has taken over the run's store meanwhile."""
        if self._lease is not None:
            self._lease.check()

    def fetch_embeddings(self, stems: Collection[str] | None = None) -> None:
        """Copy the embeddings of all or the named shards from the run's store, and all other files that have changed there."""
        if self.mirror is not None:
            wanted = None if stems is None else {shard_files(stem)[0] for stem in stems}
            self.mirror.pull(lambda name: wanted is None or name in wanted)

    def has_embeddings(self, stem: str) -> bool:
        """Return whether the embeddings of a shard exist, on this machine or in the run's store."""
        name = shard_files(stem)[0]
        return (self.path / name).exists() or (self.mirror is not None and name in self.mirror.listed)
