"""Read the files of a tar stream in order; unlike tarfile, continue after damage, report it, and be fast per file.

Names and contents are the same as with tarfile (a test compares them): ustar, GNU long names, pax, sizes in base 256. Global
pax headers are skipped: one name or size for all files makes no sense, and would be copied for each file.

`write_shard` writes a tar: the same bytes for the same samples, with tarfile's headers. webdataset's `TarWriter` sorts the
parts of a sample, fails on an empty part name, keeps every member in memory and imports torch.
"""

import hashlib
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from noisegate.pipeline.system.output_files import whole_file

from .gunzip import CHUNK, plain_bytes

BLOCK = 512
_HEADER_CHUNK = 1 << 13  # bytes to read at a time if only headers are read
_EMPTY_TAR = 10_240  # tar's own padding of an archive without files
_ZEROS = bytes(BLOCK)
_FILES = b"0\x007S"  # regular, regular in old tars, contiguous, sparse
_NO_DATA = b"123456"  # links, devices, folders, pipes: no data, even if their size is not 0
_MAX_HEADER_DATA = 1 << 20  # bytes; a longer pax header counts as damage
_MAX_NAME = 4096  # bytes; a longer file name counts as damage too (Linux allows no longer path)
_PAX_KEYS = (b"path", b"size", b"GNU.sparse.name")
_SPARSE = b"GNU.sparse."
_END_BYTES = 2 * BLOCK  # two zero blocks end a tar


Wanted = bool | Literal["digest"]


@dataclass
class Member:
    """A file of the tar. `data` is None if it was not wanted or is incomplete; `broken` says why it is incomplete.

    `sha256` is set if the digest was wanted instead of the data.
    """

    name: str
    size: int
    data: bytes | None = None
    sha256: bytes | None = None
    broken: str | None = None
    after_damage: bool = False  # something unreadable lies between this file and the one before
    offset: int = 0  # of the file's data in the uncompressed tar


class TarMembers:
    """Iterate over the files of a tar or tar.gz, given `read(n)`, which returns at most n bytes and none at the end.

    `wanted(name, size)` decides whether a file's data is kept, or only its digest. Afterwards `damage` is None or describes the
    damage; `cut` is true if the tar ends too early, `found` if it has at least one readable header; `beginning` has the first
    unreadable bytes. `skip(n)` skips at most n bytes of an uncompressed source and returns how many, so that unwanted data is
    not read.
    """

    def __init__(
        self,
        read: Callable[[int], bytes],
        wanted: Callable[[str, int], Wanted],
        skip: Callable[[int], int] | None = None,
    ) -> None:
        self._wanted = wanted
        self._skip_source = skip
        self._source = plain_bytes(read, _HEADER_CHUNK if skip else CHUNK, self._note)
        self._buffer = b""
        self._start = 0  # start of the unread part of the buffer
        self._offset = 0  # position of that start in the tar
        self._failure: str | None = None
        self.beginning = b""
        self.found = False
        self.cut = False
        self.damage: str | None = None

    def __iter__(self) -> Iterator[Member]:
        records: dict[bytes, bytes] = {}  # records of pax headers and long names, for the next file
        ended: int | None = None  # where an end marker began
        bad: int | None = None  # where unreadable bytes began
        skipped = False
        while len(block := self._take(BLOCK)) == BLOCK:
            at = self._offset - BLOCK
            if block == _ZEROS:
                ended = at if ended is None else ended
                continue
            header = _header(block)
            if header is None:
                self.beginning = self.beginning or block[:40]
                bad = at if bad is None else bad
                continue
            if bad is not None:
                self._note(f"unreadable bytes from {bad:,} to {at:,}")
            elif ended is not None:
                self._note(f"an end marker at {ended:,}, with more behind it; other readers stop there")
            skipped = skipped or bad is not None or ended is not None
            self.found, ended, bad = True, None, None
            name, size, kind = header
            if kind in b"LKxXg":
                data = self._take(size) if size <= _MAX_HEADER_DATA else b""
                if len(data) == size:
                    self._pad(size)
                    records |= {b"path": data.rstrip(b"\0")} if kind == b"L" else _pax(data) if kind in b"xX" else {}
                if len(data) < size or _has_long_name(records):
                    bad, records = at, {}
                continue
            if kind in _NO_DATA or (kind == b"\0" and name.endswith(b"/")):
                records = {}
                continue
            name = records.get(b"GNU.sparse.name") or records.get(b"path") or name
            size = _digits(records.get(b"size", b"")) or size
            sparse = kind == b"S" or _SPARSE in records
            records = {}
            if kind == b"S":
                self._skip_sparse_map(block)
            member = Member(name.decode("utf-8", "surrogateescape"), size, after_damage=skipped, offset=self._offset)
            skipped = False
            if self._contents(member, kind, sparse):
                yield member
            if self.cut:
                return
        self._end(block, ended, bad)

    def _contents(self, member: Member, kind: bytes, sparse: bool) -> bool:
        """Read or skip a member's data; return whether it is a file."""
        is_file = kind in _FILES
        wanted = is_file and not sparse and self._wanted(member.name, member.size)
        if wanted is True:
            member.data = self._take(member.size)
            missing = member.size - len(member.data)
        elif wanted == "digest":
            digest = hashlib.sha256()
            missing = member.size - self._skip(member.size, digest.update)
            member.sha256 = None if missing else digest.digest()
        else:
            missing = member.size - self._skip(member.size)
        if sparse:
            member.broken = "a sparse file; pack the tar without --sparse"
        if missing:
            self._cut_off()
            member.data, member.broken = None, self.damage
        else:
            self._pad(member.size)
        return is_file

    def _end(self, rest: bytes, ended: int | None, bad: int | None) -> None:
        if bad is not None:
            self._note(f"unreadable bytes from {bad:,} to the end at {self._offset:,}")
            self.cut = True
        elif self._failure or rest.strip(b"\0"):
            self._cut_off()
        elif self.found and ended is None:
            self._note(f"the tar ends after {self._offset:,} bytes without its end marker; it may have been cut off")
            self.cut = True
        elif not self.found and self._offset > _EMPTY_TAR:
            self._note(f"{self._offset:,} zero bytes and nothing else")

    def _cut_off(self) -> None:
        self.cut = True
        reason = f": {self._failure}" if self._failure else ""
        self._note(f"the tar breaks off after {self._offset:,} bytes{reason}")

    def _note(self, damage: str) -> None:
        self.damage = f"{self.damage}; {damage}" if self.damage and len(self.damage) < 200 else self.damage or damage

    def _more(self) -> bool:
        """Refill the empty buffer from the source; false at the end."""
        try:
            self._buffer, self._start = next(self._source, b""), 0
        except (zlib.error, EOFError) as error:
            self._buffer, self._start, self._failure = b"", 0, str(error)
        return bool(self._buffer)

    def _take(self, size: int) -> bytes:
        """Read the next `size` bytes, fewer at the end."""
        start, stop = self._start, self._start + size
        if stop <= len(self._buffer):
            self._start = stop
            self._offset += size
            return self._buffer[start:stop]
        parts = [self._buffer[start:]]
        missing = stop - len(self._buffer)
        self._start = len(self._buffer)
        while missing and self._more():
            parts.append(self._buffer[:missing])
            self._start = len(parts[-1])
            missing -= self._start
        self._offset += size - missing
        return b"".join(parts)

    def _skip(self, size: int, see: Callable[[bytes], object] = len) -> int:
        """Skip `size` bytes, fewer at the end, and return how many; `see` gets the bytes that had to be read."""
        left = size
        buffered = len(self._buffer) - self._start
        if self._skip_source is not None and size > buffered:
            self._take(buffered)
            passed = self._skip_source(size - buffered)
            self._offset += passed
            return buffered + passed
        while left:
            data = self._take(min(left, CHUNK))
            if not data:
                break
            see(data)
            left -= len(data)
        return size - left

    def _pad(self, size: int) -> None:
        self._take(-size % BLOCK)

    def _skip_sparse_map(self, block: bytes) -> None:
        more = block[482:483]
        while more.strip(b"\0"):
            more = self._take(BLOCK)[504:505]


def _header(block: bytes) -> tuple[bytes, int, bytes] | None:
    """Parse name, size and type of a header block; None if its checksum is wrong."""
    given = _number(block[148:156])
    if given is None:
        return None
    # the sum treats the eight checksum bytes as spaces; some old writers added signed bytes
    if given != sum(block) - sum(block[148:156]) + 256:
        signed = sum(byte - 256 if byte > 127 else byte for byte in block[:148] + block[156:]) + 256
        if given != signed:
            return None
    size = _number(block[124:136])
    if size is None or size < 0:
        return None
    name, kind, prefix = block[:100].split(b"\0", 1)[0], block[156:157], block[345:500].split(b"\0", 1)[0]
    return prefix + b"/" + name if prefix and kind not in b"LKS" else name, size, kind


def _number(field: bytes) -> int | None:
    """Parse a number of a header: octal digits, or base 256 if the first byte is 0x80 or 0xFF."""
    if field[0] in (0x80, 0xFF):
        return int.from_bytes(field[1:], "big") - (256 ** (len(field) - 1) if field[0] == 0xFF else 0)
    try:
        return int(field.split(b"\0", 1)[0].strip() or b"0", 8)
    except ValueError:
        return None


def _pax(data: bytes) -> dict[bytes, bytes]:
    """Parse the pax header records that are needed here; `GNU.sparse.` stands for all keys that begin so.

    Each record is `LENGTH KEY=VALUE` and a line feed; everything after a malformed record is ignored.
    """
    records, at = {}, 0
    while at < len(data):
        space = data.find(b" ", at, at + 20)
        length = _digits(data[at:space]) if space > at else 0
        if not 0 < space - at < length <= len(data) - at:
            break
        key, _, value = data[space + 1 : at + length - 1].partition(b"=")
        if key in _PAX_KEYS:
            records[key] = value
        if key.startswith(_SPARSE):
            records[_SPARSE] = b""
        at += length
    return records


def _has_long_name(records: Mapping[bytes, bytes]) -> bool:
    return any(len(records.get(key, b"")) > _MAX_NAME for key in (b"path", b"GNU.sparse.name"))


def _digits(text: bytes) -> int:
    """Parse a decimal number; 0 for anything else, and for numbers of 20 digits or more."""
    return int(text) if text.isdigit() and len(text) < 20 else 0


class ShardWriter:
    """Append samples to a tar; `samples` and `size` count what was written so far.

    After `write_shard` has ended, `size` and `sha256` describe the whole file.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.samples = 0
        self.size = 0

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def add(self, key: str, parts: Mapping[str, bytes]) -> None:
        """Append one sample with its parts in the given order; times and owners are 0, so equal samples give equal bytes."""
        for part, data in parts.items():
            member = tarfile.TarInfo(f"{key}.{part}")
            member.size = len(data)
            self._write(member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
            self._write(data)
            self._write(bytes(-len(data) % BLOCK))
        self.samples += 1

    def finish(self) -> None:
        """Write the end marker, padded to a full record as tar does."""
        self._write(bytes(_END_BYTES + -(self.size + _END_BYTES) % tarfile.RECORDSIZE))

    def _write(self, data: bytes) -> None:
        self._hash.update(data)
        self.size += len(data)
        self._file.write(data)


@contextmanager
def write_shard(path: Path) -> Iterator[ShardWriter]:
    """Open a shard for writing; it appears at `path` once it is complete, and not at all after an error."""
    with whole_file(path) as file:
        writer = ShardWriter(file)
        yield writer
        writer.finish()
