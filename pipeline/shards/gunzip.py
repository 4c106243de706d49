"""Uncompress a tar.gz while it is read, in pieces of bounded size; a wrong checksum does not discard what was read."""

import zlib
from collections.abc import Callable, Generator, Iterator

CHUNK = 1 << 17  # bytes read at a time
PIECE = 1 << 20  # most uncompressed bytes at a time
MAX_HEADER = 1 << 16  # bytes of a gzip header, which may hold a name and a comment
FREE_BYTES = 1 << 30  # any file may become this large
MAX_EXPANSION = 100  # times the compressed size; chosen: pictures compress by little, flat drawings by 30
_MAGIC = b"\x1f\x8b\x08"
_EXTRA, _NAME, _COMMENT, _CHECKSUM, _UNKNOWN = 4, 8, 16, 2, 0xE0  # flags of the header (RFC 1952)


def plain_bytes(
    read: Callable[[int], bytes], chunk: int = CHUNK, note: Callable[[str], None] = lambda text: None
) -> Iterator[bytes]:
    """Yield the bytes of `read(n)`, uncompressed if they are gzip, or several gzip files in a row.

    Raises EOFError if a gzip stream is cut off, zlib.error if it is damaged or expands too far. A wrong checksum is reported to
    `note` after the bytes that it covers.
    """
    data = read(chunk)
    if not data.startswith(_MAGIC[:2]):
        while data:
            yield data
            data = read(chunk)
        return
    counted = _Counted(read, len(data))
    while data:
        data = yield from _one_file(data, counted, note)
        data = data.lstrip(b"\0")
        while not data and (more := counted.read()):
            data = more.lstrip(b"\0")


class _Counted:
    """Count bytes in and out, and refuse to expand too far."""

    def __init__(self, read: Callable[[int], bytes], taken: int) -> None:
        self._read, self._taken, self._made = read, taken, 0

    def read(self) -> bytes:
        data = self._read(CHUNK)
        self._taken += len(data)
        return data

    def made(self, count: int) -> None:
        self._made += count
        if self._made > max(FREE_BYTES, MAX_EXPANSION * self._taken):
            raise zlib.error(f"gzip that expands more than {MAX_EXPANSION} times is not read on")


def _one_file(data: bytes, source: _Counted, note: Callable[[str], None]) -> Generator[bytes, None, bytes]:
    """Yield the contents of one gzip file that begins with `data`; return what was read beyond its end."""
    while (start := _find_body(data)) is None:
        more = source.read() if len(data) < MAX_HEADER else b""
        if not more:
            raise EOFError("the gzip stream is cut off")
        data += more
    data = data[start:]
    stream = zlib.decompressobj(-zlib.MAX_WBITS)  # raw: else zlib drops a piece whose checksum is wrong
    checksum = size = 0
    while not stream.eof:
        data = data or source.read()
        plain = stream.decompress(data, PIECE)
        if not data and not plain and not stream.eof:
            raise EOFError("the gzip stream is cut off")
        data = stream.unconsumed_tail
        checksum, size = zlib.crc32(plain, checksum), size + len(plain)
        source.made(len(plain))
        if plain:
            yield plain
    data = stream.unused_data
    while len(data) < 8:
        more = source.read()
        if not more:
            raise EOFError("the gzip stream is cut off")
        data += more
    if data[:8] != checksum.to_bytes(4, "little") + (size % (1 << 32)).to_bytes(4, "little"):
        note("the checksum of its gzip is wrong: some bytes have changed, perhaps on the way here")
    return data[8:]


def _find_body(data: bytes) -> int | None:
    """Find where the compressed stream begins; None if the header is incomplete. Raise zlib.error for another format."""
    if not data.startswith(_MAGIC[: len(data)]):
        raise zlib.error("what follows is not gzip")
    if len(data) < 10:
        return None
    flags, at = data[3], 10
    if flags & _UNKNOWN:
        raise zlib.error("the gzip header has unknown flags")
    if flags & _EXTRA:
        at += 2 + int.from_bytes(data[10:12], "little")
    for flag in (_NAME, _COMMENT):
        if flags & flag:
            end = data.find(b"\0", at)
            if end < 0:
                return None
            at = end + 1
    at += 2 if flags & _CHECKSUM else 0
    return at if at <= len(data) else None
