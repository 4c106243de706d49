"""Read a shard's samples, grouped as in webdataset; from a damaged shard, read what is readable."""

import hashlib
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING

from noisegate.pipeline.errors import ShardError
from noisegate.pipeline.settings import Limits

from .tar import BLOCK, Member, TarMembers, Wanted

if TYPE_CHECKING:  # decode workers need RawSample, not fsspec
    from .locate import Shard

_META = re.compile(r"__[^/]*__($|/)")  # webdataset's
IMAGE_PARTS = ("jpg", "jpeg", "png", "webp")
MISSING = ".missing"  # ending of a part that a folder or table could not provide; its content is the reason
READ_PARTS = frozenset((*IMAGE_PARTS, "txt", "json", "cls"))
MAX_PART_BYTES = 256_000_000  # of a sample's parts together; chosen; parts beyond this are skipped
MAX_JSON_BYTES = 4_000_000  # parsed JSON takes up to 27 times as much memory (lists in lists)
MAX_LABEL_BYTES = 4_096  # also of the reason why a part is missing
MAX_PARTS = 1_000  # of one sample; further parts are neither read nor named


@dataclass
class RawSample:
    """A key with its parts as bytes.

    `names` lists all parts, including parts not read; `oversized` has the sizes of parts too large to read, and `digests` their
    digests if computed. If the shard is damaged at this sample, `broken` says how; parts may be missing.
    """

    key: str
    index: int
    parts: dict[str, bytes] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    oversized: dict[str, int] = field(default_factory=dict)
    digests: dict[str, bytes] = field(default_factory=dict)
    duplicate: bool = False
    broken: str | None = None
    places: dict[str, tuple[int, int]] = field(default_factory=dict)  # offset and size of each part; filled by `index`

    @property
    def image(self) -> bytes | None:
        return next((self.parts[name] for name in IMAGE_PARTS if name in self.parts), None)


def split_name(name: str) -> tuple[str, str] | None:
    """Split a file name of a tar into key and part, as webdataset does, but in linear time; None if it has none.

    >>> split_name("a.b/0001.seg.png")
    ('a.b/0001', 'seg.png')
    """
    slash = name.rfind("/")
    dot = name.find(".", slash + 1)
    start = slash + 1
    if dot == start:  # a name like `.png`: webdataset uses the folder's name as the key, if it has no dot
        start = name.rfind("/", 0, max(slash, 0)) + 1
        if "." in name[start:dot]:
            return None
    return (name[:dot], name[dot + 1 :].lower()) if dot > start else None


def part_limit(part: str, limits: Limits | None) -> int:
    """Return the most bytes of a part to read, for scoring within `limits`, or for other uses (None)."""
    if limits is None:
        return MAX_PART_BYTES
    if part in IMAGE_PARTS:
        return min(limits.max_image_bytes, MAX_PART_BYTES)
    if part == "txt":
        return min(4 * limits.max_text_chars + 3, MAX_PART_BYTES)  # UTF-8, with a byte-order mark
    if part == "cls" or part.endswith(MISSING):
        return MAX_LABEL_BYTES
    return MAX_JSON_BYTES if part == "json" else MAX_PART_BYTES


def is_read(part: str, size: int) -> bool:
    """Return whether scoring reads a part of this name and size."""
    return size <= MAX_PART_BYTES and (part in READ_PARTS or part.endswith(MISSING))


class _Hashed:
    """A stream that hashes the bytes read, so that a shard is read only once."""

    def __init__(self, stream: IO[bytes], url: str) -> None:
        self._stream, self._url = stream, url
        self.sha256 = hashlib.sha256()
        self.size = 0

    def read(self, size: int) -> bytes:
        try:
            data = self._stream.read(size)
        except Exception as error:  # an error of disk or network: the tar is not damaged, and a new try may work
            reason = f"{type(error).__name__}: {error}"
            raise ShardError(
                f"shard {self._url} cannot be read after {self.size:,} bytes: {reason}", "shards", self._url
            ) from error
        self.sha256.update(data)
        self.size += len(data)
        return data


class ShardReader:
    """Iterate over one shard's samples; afterwards `sha256`, `size` and `damage` describe the shard itself.

    A sample is a run of members whose names agree up to the first dot of the file name; a repeated part, or a repeated key,
    starts another sample that is marked as a duplicate. Bytes of a name that are not UTF-8 appear in the key as `\\xNN`. A tar
    that breaks off gives all complete samples, then the incomplete one with `broken` set, and `damage` says where. Parts that
    scoring never needs are named but not read, unless `all_parts`; of parts beyond `limits` only the digest is computed. `cut`
    is true if the shard ends too early. Raises ShardError when nothing can be read at all, or when reading itself fails.
    """

    def __init__(self, shard: "Shard", all_parts: bool = False, limits: Limits | None = None) -> None:
        self.shard = shard
        self._all_parts, self._limits = all_parts, limits
        self._current: RawSample | None = None
        self._prefix = ""  # common prefix of the names of the current sample's parts
        self._known: set[str] = set()  # parts of the current sample
        self._room = 0  # bytes left for further parts of the current sample
        self.cut = False
        self.sha256 = ""
        self.size = 0
        self.damage: str | None = None
        self.passed = 0  # bytes of the uncompressed tar up to the end of the last yielded sample; `position` is ahead
        self._stream: _Hashed | None = None

    @property
    def position(self) -> int:
        """Number of bytes of the shard read so far."""
        return self._stream.size if self._stream else 0

    def __iter__(self) -> Generator[RawSample, None, None]:
        self._current = None
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

        Nothing is hashed; afterwards `size` and `damage` are set.
        """
        self._current = None
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
        """Raise ShardError if the store has more bytes: a lost connection looks like a tar that breaks off."""
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
        self.cut = members.cut or not self.size

    def _wanted(self, name: str, size: int) -> Wanted:
        names = split_name(name)
        if names is None:
            return False
        prefix, part = names
        if not self._all_parts and not is_read(part, size):
            return False
        room = self._room if self._is_of_current(prefix, part) else MAX_PART_BYTES
        if size <= min(room, part_limit(part, self._limits)):
            return True
        has_digest = self._limits is not None and (part in IMAGE_PARTS or part == "txt")
        return "digest" if has_digest and size <= MAX_PART_BYTES else False

    def _is_of_current(self, prefix: str, part: str) -> bool:
        """Return whether a part belongs to the same sample as the part before."""
        return self._current is not None and prefix == self._prefix and part not in self._known

    def _samples(self, members: TarMembers, places: bool = False) -> Iterator[RawSample]:
        seen: set[bytes] = set()
        for member in members:
            if member.after_damage and self._current is not None:
                self._current.broken = self._current.broken or members.damage
            names = split_name(member.name)
            if names is None or _META.match(member.name):
                continue
            prefix, part = names
            if not self._is_of_current(prefix, part):
                if self._current is not None:
                    self.passed = member.offset - BLOCK
                    yield self._current
                self._begin(prefix, seen)
            self._add(part, member, members.damage, places)
        if self._current is not None:
            if members.cut:
                self._current.broken = self._current.broken or members.damage
            yield self._current

    def _begin(self, prefix: str, seen: set[bytes]) -> None:
        key = prefix.encode("utf-8", "surrogateescape")
        digest = hashlib.blake2b(key, digest_size=12).digest()
        index = 0 if self._current is None else self._current.index + 1
        self._current = RawSample(key.decode("utf-8", "backslashreplace"), index, duplicate=digest in seen)
        self._prefix, self._known, self._room = prefix, set(), MAX_PART_BYTES
        seen.add(digest)

    def _add(self, part: str, member: Member, damage: str | None, places: bool) -> None:
        sample = self._current
        assert sample is not None
        if len(self._known) == MAX_PARTS:
            sample.broken = sample.broken or f"more than {MAX_PARTS:,} parts; the others are not read"
            return
        self._known.add(part)
        sample.names.append(part)
        if places and not member.broken:
            sample.places[part] = (member.offset, member.size)
        if member.data is not None:
            sample.parts[part] = member.data
            self._room -= member.size
        elif member.sha256 is not None or member.size > min(self._room, part_limit(part, self._limits)):
            sample.oversized[part] = member.size
            if member.sha256 is not None:
                sample.digests[part] = member.sha256
        if member.broken or member.after_damage:
            sample.broken = sample.broken or member.broken or damage
