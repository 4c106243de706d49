"""Read a shard's samples, grouped as webdataset groups them; of a damaged shard, what can be read."""

import hashlib
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

from noisegate.pipeline.errors import ShardError

from .tar import BLOCK, TarMembers

if TYPE_CHECKING:  # decode workers need RawSample, not fsspec
    from .locate import Shard

_NAME = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")  # this and _META are webdataset's
_META = re.compile(r"__[^/]*__($|/)")
IMAGE_PARTS = ("jpg", "jpeg", "png", "webp")
MISSING = ".missing"  # after the name of a part that a folder or table lacks; its content is the reason
READ_PARTS = frozenset((*IMAGE_PARTS, "txt", "json", "cls", MISSING[1:]))
MAX_PART_BYTES = 256_000_000  # chosen; a larger part is skipped unread, smaller ones are left to Limits


@dataclass
class RawSample:
    """A key with its parts as bytes.

    `names` lists all parts, also those not read, and `oversized` the sizes of parts too large to read. Where the shard is
    damaged at this sample, `broken` says how; parts may be missing.
    """

    key: str
    index: int
    parts: dict[str, bytes] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    oversized: dict[str, int] = field(default_factory=dict)
    duplicate: bool = False
    broken: str | None = None
    places: dict[str, tuple[int, int]] = field(default_factory=dict)  # offset and size of each part; filled by `index`

    @property
    def image(self) -> bytes | None:
        return next((self.parts[name] for name in IMAGE_PARTS if name in self.parts), None)


def is_read(name: str, size: int) -> bool:
    """Whether scoring reads a part of this name and size."""
    return size <= MAX_PART_BYTES and name.rpartition(".")[2].lower() in READ_PARTS


class _Hashed:
    """A stream that hashes what is read, so that a shard is read once."""

    def __init__(self, stream: IO[bytes], url: str) -> None:
        self._stream, self._url = stream, url
        self.sha256 = hashlib.sha256()
        self.size = 0

    def read(self, size: int) -> bytes:
        try:
            data = self._stream.read(size)
        except Exception as error:  # a failing disk or network is not a damaged tar, and may work the next time
            reason = f"{type(error).__name__}: {error}"
            raise ShardError(
                f"shard {self._url} cannot be read after {self.size:,} bytes: {reason}", "shards", self._url
            ) from error
        self.sha256.update(data)
        self.size += len(data)
        return data


class ShardReader:
    """Iterates over one shard's samples; afterwards `sha256`, `size` and `damage` describe the shard itself.

    A sample is a run of members whose names agree up to the first dot of the file name; a repeated part, or a key seen
    before, starts another sample that is marked as a duplicate. Bytes of a name that are not UTF-8 appear in the key as
    `\\xNN`. A tar that breaks off gives all whole samples, then the cut one with `broken` set, and `damage` says where.
    Parts that scoring never needs are named but not read, unless `all_parts`. Raises ShardError when nothing can be read
    at all, or when reading itself fails.
    """

    def __init__(self, shard: "Shard", all_parts: bool = False) -> None:
        self.shard = shard
        self._all_parts = all_parts
        self.sha256 = ""
        self.size = 0
        self.damage: str | None = None
        self.passed = 0  # bytes of the uncompressed tar up to the end of the last yielded sample; `position` is ahead
        self._stream: _Hashed | None = None

    @property
    def position(self) -> int:
        """Bytes of the shard read so far."""
        return self._stream.size if self._stream else 0

    def __iter__(self) -> Generator[RawSample, None, None]:
        with self.shard.open() as stream:
            hashed = self._stream = _Hashed(stream, self.shard.url)
            members = TarMembers(hashed.read, self._wanted)
            yield from self._samples(members)
            while hashed.read(1 << 20):
                pass
        self.sha256, self.size = hashed.sha256.hexdigest(), hashed.size
        self.passed = max(self.passed, self.size)
        self._check_whole(members)
        self._finish(members)

    def index(self) -> Generator[RawSample, None, None]:
        """Read only the headers of a local uncompressed tar: the same samples with `places` instead of `parts`.

        Hashes nothing; afterwards `size` and `damage` are set.
        """
        with self.shard.open() as stream:
            self.size = stream.seek(0, 2)
            stream.seek(0)

            def skip(count: int) -> int:
                passed = min(count, self.size - stream.tell())
                stream.seek(passed, 1)
                return passed

            members = TarMembers(stream.read, lambda name, size: False, skip)
            yield from self._samples(members, places=True)
        self._finish(members)

    def _check_whole(self, members: TarMembers) -> None:
        """Raise ShardError where the store has more bytes: a connection that ended early looks like a tar that breaks off."""
        if not self.shard.is_remote and not members.damage:
            return
        stored, _ = self.shard.size_and_time()
        if stored is not None and stored > self.size:
            raise ShardError(
                f"shard {self.shard.url} ended after {self.size:,} of its {stored:,} bytes", "shards", self.shard.url
            )

    def _finish(self, members: TarMembers) -> None:
        if members.damage and not members.found:
            what = f"it begins with {members.beginning!r}" if members.beginning else members.damage
            raise ShardError(
                f"shard {self.shard.url} is not a tar or tar.gz: no readable header; {what}", "shards", self.shard.url
            )
        self.damage = members.damage if self.size else "the file is empty (0 bytes)"

    def _wanted(self, name: str, size: int) -> bool:
        return size <= MAX_PART_BYTES if self._all_parts else is_read(name, size)

    def _samples(self, members: TarMembers, places: bool = False) -> Iterator[RawSample]:
        seen: set[bytes] = set()
        current: RawSample | None = None
        prefix, count = "", 0
        for member in members:
            if member.after_damage and current is not None:
                current.broken = current.broken or members.damage
            match = _NAME.match(member.name)
            if not match or _META.match(member.name):
                continue
            part = match.group(2).lower()
            if current is None or prefix != match.group(1) or part in current.names:
                if current is not None:
                    self.passed = member.offset - BLOCK
                    yield current
                prefix = match.group(1)
                key = prefix.encode("utf-8", "surrogateescape")
                digest = hashlib.blake2b(key, digest_size=12).digest()
                current = RawSample(key.decode("utf-8", "backslashreplace"), count, duplicate=digest in seen)
                seen.add(digest)
                count += 1
            current.names.append(part)
            if places and not member.broken:
                current.places[part] = (member.offset, member.size)
            if member.data is not None:
                current.parts[part] = member.data
            elif member.size > MAX_PART_BYTES:
                current.oversized[part] = member.size
            if member.broken or member.after_damage:
                current.broken = current.broken or member.broken or members.damage
        if current is not None:
            if members.cut:
                current.broken = current.broken or members.damage
            yield current
