"""A folder that makes any shard one that can be read at any place: indexes, and copies of remote or compressed shards."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO

from noisegate.pipeline.errors import ShardError
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.samples import TarSamples, index_samples, is_compressed, load_index, save_index
from noisegate.pipeline.shards.tar import plain_bytes

__all__ = ["ShardCache"]


class ShardCache:
    """Opens shards, with at most `copies` copies in `folder`, the ones used last; indexes stay (40 bytes for each part).

    Any number of processes may share a folder: whoever comes first copies and indexes a shard, the others wait for it. A
    local shard that has changed is indexed again; a remote one is taken to be what was copied.
    """

    def __init__(self, folder: str | Path, copies: int = 18) -> None:
        self.folder, self._copies = Path(folder), copies

    def open(self, shard: Shard) -> TarSamples:
        """Raises ShardError where the shard cannot be read at all."""
        name = PurePosixPath(shard.url).name
        plain = shard.is_local and not is_compressed(shard)
        place = self.folder / f"{shard.stem[:80]}-{_digest(shard, plain)}"
        index = place.with_name(f"{place.name}.index")
        with self._alone(place):
            if plain:
                if not index.exists():
                    save_index(index_samples(Path(shard.url)), index)
                return TarSamples(Path(shard.url), load_index(index), name)
            copy = place.with_name(f"{place.name}.tar")
            while True:
                try:
                    os.utime(copy)  # used just now, so not the next to be deleted
                    samples = TarSamples(copy, load_index(index), name)
                    break
                except FileNotFoundError:  # not here yet, or deleted by another process in between
                    _copy(shard, copy)
                    save_index(index_samples(copy), index)
        self._forget()
        return samples

    def _forget(self) -> None:
        """Delete the copies that were used longest ago; processes that have one open keep it until they close it."""
        found = []
        for path in self.folder.glob("*.tar"):
            try:
                found.append((path.stat().st_mtime_ns, path))
            except FileNotFoundError:  # another process was faster
                continue
        for _, path in sorted(found)[: -self._copies]:
            path.unlink(missing_ok=True)

    @contextmanager
    def _alone(self, place: Path) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with place.with_name(f"{place.name}.lock").open("w") as lock:
            _wait_for(lock)
            yield


def _digest(shard: Shard, plain: bool) -> str:
    """Changes with the shard's name, and for a local one with its bytes as far as size and time tell."""
    what = shard.url
    if shard.is_local:
        size, changed = shard.size_and_time()
        what = f"{Path(shard.url).resolve()} {size} {changed}"
    return hashlib.blake2b(f"{plain} {what}".encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def _copy(shard: Shard, to: Path) -> None:
    """The uncompressed tar; of a damaged gzip stream as much as can be read, and the index will say where it breaks off."""
    temporary = to.with_suffix(".part")
    with shard.open() as stream, temporary.open("wb") as out, suppress(EOFError, zlib.error):
        try:
            for data in plain_bytes(stream.read):
                out.write(data)
        except OSError as error:
            raise ShardError(f"shard {shard.url} cannot be copied to {to.parent}: {error}") from error
    temporary.replace(to)


if os.name == "nt":

    def _wait_for(lock: IO[str]) -> None:
        """Files appear whole by renaming, so without a lock only work is done twice."""
else:
    import fcntl

    def _wait_for(lock: IO[str]) -> None:
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX)
