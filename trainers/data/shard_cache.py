"""Random access to any shard, by a folder of indexes and copies of remote or compressed shards; temporary folders."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO

from noisegate.pipeline.errors import NoisegateError, ShardError
from noisegate.pipeline.runs import folder_lock
from noisegate.pipeline.shards import (
    Shard,
    TarSamples,
    index_samples,
    is_compressed,
    load_index,
    plain_bytes,
    save_index,
)
from noisegate.pipeline.system import whole_path

PREFIX = "noisegate-"


class ShardCache:
    """Open shards for random access; `folder` keeps all indexes (40 bytes per part) and the `copies` last used copies.

    Processes may share a folder: the first one copies and indexes a shard, the others wait. A local shard that has changed is
    indexed again; a remote shard is not compared with its copy.
    """

    def __init__(self, folder: str | Path, copies: int = 18) -> None:
        self.folder, self._copies = Path(folder), copies

    def open(self, shard: Shard) -> TarSamples:
        """Open a shard; raise ShardError if it cannot be read at all."""
        name = PurePosixPath(shard.url).name
        plain = shard.is_local and not is_compressed(shard)
        place = self.folder / f"{shard.stem[:80]}-{_digest(shard, plain)}"
        index = place.with_name(f"{place.name}.index")
        with self._lock(place):
            if plain:
                if not index.exists():
                    save_index(index_samples(Path(shard.url)), index)
                return TarSamples(Path(shard.url), load_index(index), name)
            copy = place.with_name(f"{place.name}.tar")
            while True:
                try:
                    os.utime(copy)  # mark as just used, so that it is not deleted next
                    samples = TarSamples(copy, load_index(index), name)
                    break
                except FileNotFoundError:  # not copied yet, or deleted meanwhile by another process
                    _copy(shard, copy)
                    save_index(index_samples(copy), index)
        self._delete_old_copies()
        return samples

    def _delete_old_copies(self) -> None:
        """Delete the copies used longest ago; a process that has a copy open can still read it."""
        copies = []
        for path in self.folder.glob("*.tar"):
            try:
                copies.append((path.stat().st_mtime_ns, path))
            except FileNotFoundError:  # deleted by another process
                continue
        for _, path in sorted(copies)[: -self._copies]:
            path.unlink(missing_ok=True)

    @contextmanager
    def _lock(self, place: Path) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with place.with_name(f"{place.name}.lock").open("w") as lock:
            _wait_for(lock)
            yield


def _digest(shard: Shard, plain: bool) -> str:
    """Compute a digest of the shard's name and, for a local shard, of its size and time of change."""
    what = shard.url
    if shard.is_local:
        size, changed = shard.size_and_time()
        what = f"{Path(shard.url).resolve()} {size} {changed}"
    return hashlib.blake2b(f"{plain} {what}".encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def _copy(shard: Shard, to: Path) -> None:
    """Write the uncompressed tar; of a damaged gzip stream as much as can be read; the index records where it ends."""
    with (
        whole_path(to, to.with_suffix(".part")) as temporary,
        shard.open() as stream,
        temporary.open("wb") as out,
        suppress(EOFError, zlib.error),
    ):
        try:
            for data in plain_bytes(stream.read):
                out.write(data)
        except OSError as error:
            problem = f"shard {shard.url} cannot be copied to {to.parent}: {error}"
            raise ShardError(problem, "cache", str(to.parent)) from error


if os.name == "nt":

    def _wait_for(lock: IO[str]) -> None:
        """Wait for the lock. Files appear complete by renaming, so without a lock work is only done twice."""
else:
    import fcntl

    def _wait_for(lock: IO[str]) -> None:
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX)


# --- temporary folders that do not pile up: each new one deletes those that killed processes left ---------------------


class ScratchFolder:
    """A new temporary folder, deleted with this object, at the latest when the interpreter exits.

    It is locked while in use. The lock ends when the process ends or is killed, so that others see that it is abandoned.
    """

    def __init__(self, purpose: str = "data", within: Path | None = None) -> None:
        within = within or Path(tempfile.gettempdir())
        clear_abandoned(within)
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{purpose}-", dir=within))
        held = contextlib.ExitStack()
        with contextlib.suppress(NoisegateError):  # a disk without locks: the folder then never counts as abandoned
            held.enter_context(folder_lock(self.path))
        self._end = weakref.finalize(self, _remove, self.path, held)

    def remove(self) -> None:
        self._end()


def clear_abandoned(within: Path) -> None:
    """Delete this user's scratch folders whose process has ended."""
    for folder in within.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, NoisegateError):  # deleted by another process, or locked and therefore in use
            if _is_own(folder) and (folder / "_lock").stat().st_size:  # empty: its process has just made it
                with folder_lock(folder):
                    shutil.rmtree(folder, ignore_errors=True)


def _is_own(folder: Path) -> bool:
    """Return whether it is a folder of this user and not a link: anyone can write to the temporary folder."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and (os.name == "nt" or found.st_uid == os.getuid())


def _remove(folder: Path, held: contextlib.ExitStack) -> None:
    held.close()
    shutil.rmtree(folder, ignore_errors=True)
