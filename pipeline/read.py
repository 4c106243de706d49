"""Tar streams to raw samples, grouped as webdataset groups them. One damaged shard gives what can be read of it."""

import hashlib
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

from .errors import ShardError
from .shards import Shard

__all__ = ["RawSample", "ShardReader"]

_NAME = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$", re.DOTALL)
IMAGE_PARTS = ("jpg", "jpeg", "png", "webp")
READ_PARTS = frozenset((*IMAGE_PARTS, "txt", "json", "cls"))
MAX_PART_BYTES = 256_000_000  # a member beyond this is skipped unread; Limits decide below it


@dataclass
class RawSample:
    """A key with its parts as bytes. `broken` says why its bytes are incomplete, when they are."""

    key: str
    index: int
    parts: dict[str, bytes] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    duplicate: bool = False
    broken: str | None = None

    @property
    def image(self) -> bytes | None:
        return next((self.parts[name] for name in IMAGE_PARTS if name in self.parts), None)


class _Hashed:
    """A stream that hashes what passes through it, so that a shard is read once."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.sha256 = hashlib.sha256()
        self.size = 0
        self.blank = True  # nothing but zero bytes so far
        self.gzipped = False
        self.tail = b""

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        if self.size == 0:
            self.gzipped = data[:2] == b"\x1f\x8b"
        self.sha256.update(data)
        self.size += len(data)
        self.blank = self.blank and not data.strip(b"\0")
        self.tail = (self.tail + data)[-512:] if len(data) < 512 else data[-512:]
        return data

    def drain(self) -> None:
        while self.read(1 << 20):
            pass


class ShardReader:
    """Iterates over one shard's samples; afterwards `sha256`, `size` and `damage` tell about the shard itself.

    A sample is a run of members whose names agree up to the first dot of the file name; a repeated part, or a key seen
    before, starts another sample that is marked as a duplicate. A tar that breaks off gives all whole samples, then the
    cut one with `broken` set, and `damage` says where. Parts that scoring never needs are named but not read, unless
    `all_parts`. Raises ShardError when nothing can be read at all.
    """

    def __init__(self, shard: Shard, all_parts: bool = False) -> None:
        self.shard = shard
        self._all_parts = all_parts
        self.sha256 = ""
        self.size = 0
        self.damage: str | None = None
        self._stream: _Hashed | None = None

    @property
    def position(self) -> int:
        """Bytes of the shard read so far."""
        return self._stream.size if self._stream else 0

    def __iter__(self) -> Iterator[RawSample]:
        with self.shard.open() as stream:
            hashed = self._stream = _Hashed(stream)
            yield from self._samples(hashed)
            try:
                hashed.drain()
            except OSError as error:
                raise ShardError(f"shard {self.shard.url} broke off while reading: {error}") from error
            self.sha256, self.size = hashed.sha256.hexdigest(), hashed.size
        if self.size == 0:
            self.damage = "the file is empty (0 bytes)"

    def _samples(self, stream: _Hashed) -> Iterator[RawSample]:
        seen: set[bytes] = set()
        current: RawSample | None = None
        count = 0
        for name, data, broken in self._members(stream):
            match = _NAME.match(name)
            if not match or (name.startswith("__") and name.endswith("__")):
                continue
            key, part = match.group(1), match.group(2).lower()
            if current is None or current.key != key or part in current.names:
                if current is not None:
                    yield current
                digest = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=12).digest()
                current = RawSample(key, count, duplicate=digest in seen)
                seen.add(digest)
                count += 1
            current.names.append(part)
            if data is not None:
                current.parts[part] = data
            current.broken = current.broken or broken
        if current is not None:
            yield current

    def _members(self, stream: _Hashed) -> Iterator[tuple[str, bytes | None, str | None]]:
        """Names with their bytes (None for parts nobody needs) and, for a member that is cut off, the reason."""
        found, end = False, 0
        member: tarfile.TarInfo | None = None
        try:
            # ignore_zeros looks for the next whole header after damage, where tarfile would end without a word
            with tarfile.open(fileobj=stream, mode="r|*", ignore_zeros=True) as tar:  # type: ignore[call-overload]
                while True:
                    member = None
                    member = tar.next()
                    tar.members = []  # tarfile would keep every header
                    if member is None:
                        break
                    if member.offset > end and found:
                        self.damage = f"unreadable bytes between {end:,} and {member.offset:,}"
                    found, end = True, member.offset_data + -(-member.size // 512) * 512
                    if not member.isfile():
                        continue
                    if not self._all_parts and member.name.rsplit(".", 1)[-1].lower() not in READ_PARTS:
                        yield member.name, None, None
                    elif member.size > MAX_PART_BYTES:
                        yield member.name, None, f"part of {member.size:,} bytes; at most {MAX_PART_BYTES:,} are read"
                    else:
                        file = tar.extractfile(member)
                        yield member.name, file.read() if file else b"", None
        except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
            if found or member is not None:
                self.damage = f"the tar breaks off after {stream.size:,} bytes: {error}"
            elif stream.size and not stream.blank:
                raise ShardError(f"shard {self.shard.url} is not a tar: no readable header") from error
            if member is not None:
                yield member.name, None, self.damage
            return
        if not found and not stream.blank:
            raise ShardError(f"shard {self.shard.url} is not a tar: no readable header")
        if found and not stream.gzipped and stream.tail.strip(b"\0"):
            self.damage = self.damage or "the tar ends without its end marker; it may have been cut off"
