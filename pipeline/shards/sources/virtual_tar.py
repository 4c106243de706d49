"""A tar of some samples that is made while it is read."""

import io
import os
import stat
import tarfile
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from noisegate.pipeline.shards.read import MISSING

from .samples import FilePart, SampleParts

_BLOCK = 512
_EMPTY = tarfile.TarInfo().tobuf(tarfile.GNU_FORMAT)  # the header of an empty file without a name
_EMPTY_SUM = int(_EMPTY[148:154], 8)  # sum of its bytes


@dataclass(frozen=True)
class _FileMember:
    """A file in the tar, with the size that it had when the tar was opened."""

    member: str
    file: FilePart
    size: int
    header: bytes

    @property
    def padded(self) -> int:
        return self.size + -self.size % _BLOCK


class _Unreadable(Exception):
    """A file that has changed since the tar was opened; the text is for the sample's row."""


class VirtualTar(io.RawIOBase):
    """Headers and file contents in tar order; `size` is the whole tar's, `changed` the time of its files' latest change.

    A file that cannot be read becomes a member whose name ends in `.missing` and whose content is the reason. A file is opened
    when its header is read, so its content can be read even if it is deleted afterwards.
    """

    def __init__(self, samples: Sequence[SampleParts]) -> None:
        self._pieces: list[bytes | _FileMember] = []  # a file appears twice: its header, then its content
        self._starts: list[int] = []
        self.size, self.changed, self._position = 0, 0.0, 0
        self._current: tuple[int, BinaryIO | bytes] = (-1, b"")  # position of a content, and its file or bytes
        for sample in samples:
            for part, content in sample.parts.items():
                self._add(f"{sample.key}.{part}", content)
        self._append(bytes(2 * _BLOCK), 2 * _BLOCK)

    def _add(self, member: str, content: bytes | FilePart) -> None:
        if isinstance(content, FilePart):
            try:
                facts = _check_file(Path(content.path).stat(), content)
            except (OSError, ValueError, _Unreadable) as error:  # ValueError: a NUL in the name
                member, content = member + MISSING, _reason(content, error).encode("utf-8", "backslashreplace")
            else:
                self.changed = max(self.changed, facts.st_mtime)
                piece = _FileMember(member, content, facts.st_size, make_header(member, facts.st_size))
                self._append(piece, len(piece.header))
                self._append(piece, piece.padded)
                return
        header = make_header(member, len(content))
        self._append(header, len(header))
        self._append(content, len(content))
        self._append(bytes(-len(content) % _BLOCK), -len(content) % _BLOCK)

    def _append(self, piece: bytes | _FileMember, size: int) -> None:
        if size:
            self._pieces.append(piece)
            self._starts.append(self.size)
            self.size += size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + {0: 0, 1: self._position, 2: self.size}[whence]
        return self._position

    def close(self) -> None:
        self._hold(-1, b"")
        super().close()

    def read(self, size: int = -1) -> bytes:
        """Read `size` bytes, fewer only at the end; raise OSError if a file has changed since its header was read."""
        end = self.size if size < 0 else min(self._position + size, self.size)
        parts = []
        while self._position < end:
            place = bisect_right(self._starts, self._position) - 1
            inside = self._position - self._starts[place]
            parts.append(self._read_piece(place)[inside : inside + end - self._position])
            self._position += len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_piece(self, place: int) -> bytes:
        piece = self._pieces[place]
        if isinstance(piece, bytes):
            return piece
        if piece is not self._pieces[place - 1]:
            return self._read_header(place, piece)
        if self._current[0] != place:
            try:
                self._hold(place, _open(piece))
            except _Unreadable as error:
                raise OSError(str(error)) from error
        content = self._current[1]
        if not isinstance(content, bytes):
            content = content.read(piece.size).ljust(piece.padded, b"\0")
            self._hold(place, content)
        return content

    def _read_header(self, place: int, piece: _FileMember) -> bytes:
        """Open a file for its content and return its header; for an unreadable file, the header of a `.missing` member."""
        if not piece.size:
            return piece.header
        try:
            self._hold(place + 1, _open(piece))
            return piece.header
        except _Unreadable as error:
            header = make_header(piece.member + MISSING, piece.padded)
            if len(header) != len(piece.header):  # the longer name needs another block, which would shift the rest
                raise OSError(str(error)) from error
            reason = str(error).encode("utf-8", "backslashreplace")[: piece.padded]
            self._hold(place + 1, reason.ljust(piece.padded, b"\0"))
            return header

    def _hold(self, place: int, content: BinaryIO | bytes) -> None:
        if not isinstance(self._current[1], bytes):
            self._current[1].close()
        self._current = place, content


def make_header(member: str, size: int) -> bytes:
    """Make tarfile's header in a tenth of its time: write name, size and checksum into an empty header."""
    name = member.encode("utf-8", "surrogateescape")
    if len(name) > tarfile.LENGTH_NAME or size >= 8**11:
        header = tarfile.TarInfo(member)
        header.size = size
        return header.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
    digits = b"%011o" % size
    total = _EMPTY_SUM + sum(name) + sum(digits) - sum(b"0" * 11)
    return b"".join((name.ljust(100, b"\0"), _EMPTY[100:124], digits, _EMPTY[135:148], b"%06o" % total, _EMPTY[154:]))


def _check_file(facts: os.stat_result, file: FilePart) -> os.stat_result:
    if not stat.S_ISREG(facts.st_mode):
        raise _Unreadable(f"{file.name} is no file")
    return facts


def _open(piece: _FileMember) -> BinaryIO:
    """Open a file; raise _Unreadable if its size has changed."""
    try:
        opened = open(piece.file.path, "rb", buffering=0)  # noqa: PTH123, SIM115 (paths are strings; _hold closes it)
    except OSError as error:
        raise _Unreadable(_reason(piece.file, error)) from error
    if os.fstat(opened.fileno()).st_size != piece.size:
        opened.close()
        raise _Unreadable(f"{piece.file.name} changed while it was read")
    return opened


def _reason(file: FilePart, error: Exception) -> str:
    if isinstance(error, _Unreadable):
        return str(error)
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return f"{file.name} is not there"
    return f"{file.name} cannot be read: {error.strerror if isinstance(error, OSError) else error}"
