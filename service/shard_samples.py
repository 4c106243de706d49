"""One sample of a local shard, found without reading all that lies before it: its caption, and its picture made small.

A position is only served while it still holds what was scored: the key and the picture's digest must be the table's.
"""

import hashlib
import io
import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pipeline.decode import FORMATS, BadSample, Limits, decode_image, decode_text
from pipeline.errors import NoisegateError, ShardError
from pipeline.read import RawSample, ShardReader, split_name
from pipeline.report.pictures import thumbnail
from pipeline.shards import Shard
from pipeline.tar_members import TarMembers

__all__ = ["NoPicture", "SampleGone", "ShardSamples", "caption_of", "original", "small_picture"]

SHARDS_REMEMBERED = 256
_TYPES = {"JPEG": "image/jpeg", "MPO": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp", "GIF": "image/gif"}


class SampleGone(NoisegateError):
    """The shard is not where it was, or holds another sample there now; `changed` tells which."""

    def __init__(self, message: str, changed: bool = False) -> None:
        super().__init__(message)
        self.changed = changed


class NoPicture(NoisegateError):
    """The sample has no picture, or none that can be shown."""


@dataclass(frozen=True)
class _ShardFrom(Shard):
    """A shard from one of its samples on."""

    offset: int = 0

    def open(self) -> IO[bytes]:
        stream = super().open()
        stream.seek(self.offset)
        return stream


class ShardSamples:
    """Raw samples by shard and position; remembers where the samples of the shards asked for last begin."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, int, int], NDArray[np.int64]] = OrderedDict()

    def read(self, folder: Path, url: str, row: Mapping[str, Any]) -> RawSample:
        """The sample of a table's row; raises SampleGone. Relative paths count from here, or from beside the run."""
        stem, index = row["shard"], int(row["index"])
        path = _local(folder, url)
        if path is None:
            raise SampleGone(f"shard {stem} is not where it was when the run was scored")
        try:
            raw = self._sample(path, index)
        except ShardError as error:
            raise SampleGone(f"shard {stem} cannot be read again") from error
        if raw is None or not _same(raw, row):
            raise SampleGone(f"sample {index} of shard {stem} is not the one that was scored", changed=True)
        return raw

    def _sample(self, path: Path, index: int) -> RawSample | None:
        starts = self._starts(path)
        if starts is not None and index >= len(starts):
            return None
        shard = Shard(str(path)) if starts is None else _ShardFrom(str(path), int(starts[index]))
        passed = index if starts is None else 0
        with closing(iter(ShardReader(shard))) as samples:  # type: ignore[type-var]
            return next((raw for raw in samples if raw.index == passed), None)

    def _starts(self, path: Path) -> NDArray[np.int64] | None:
        """Where each sample begins; None for a compressed shard, which can only be read from its beginning."""
        stat = path.stat()
        name = (str(path), stat.st_mtime_ns, stat.st_size)
        with self._lock:
            if name not in self._known:
                self._known[name] = _sample_starts(path)
            self._known.move_to_end(name)
            while len(self._known) > SHARDS_REMEMBERED:
                self._known.popitem(last=False)
            starts = self._known[name]
        return starts if len(starts) else None


def _same(raw: RawSample, row: Mapping[str, Any]) -> bool:
    if raw.key != row["key"]:
        return False
    digest = row["image_sha256"]
    return raw.image is None or not digest or hashlib.sha256(raw.image).digest() == digest


def _sample_starts(path: Path) -> NDArray[np.int64]:
    """(N,) offsets by the rules of `ShardReader`; none for a compressed shard."""
    with path.open("rb") as stream:
        if stream.read(2) == b"\x1f\x8b":
            return np.zeros(0, np.int64)
        stream.seek(0)
        starts: list[int] = []
        prefix, parts = None, set[str]()
        for member in TarMembers(stream.read, lambda name, size: False):
            named = split_name(member.name)
            if named is None:
                continue
            if named[0] != prefix or named[1] in parts:
                starts.append(member.start)
                prefix, parts = named[0], set()
            parts.add(named[1])
    return np.array(starts, np.int64)


def _local(folder: Path, url: str) -> Path | None:
    if "://" in url:
        return None
    return next((path for path in (Path(url), folder.parent / url) if path.is_file()), None)


def caption_of(raw: RawSample, reading: Mapping[str, Any]) -> str | None:
    """The caption as the run read it, None where there is none."""
    try:
        return decode_text(raw.parts, reading.get("text_field"), Limits(**reading["limits"]))
    except BadSample:
        return None


def small_picture(raw: RawSample, limits: Limits, side: int) -> bytes:
    """A JPEG of at most `side` pixels wide and high, upright and without metadata; raises NoPicture."""
    try:
        picture = thumbnail(decode_image(_image(raw), limits), side)
    except BadSample as error:
        raise NoPicture(f"the picture cannot be shown: {error}") from error
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=88, subsampling=0)
    return data.getvalue()


def original(raw: RawSample, limits: Limits) -> tuple[bytes, str]:
    """The picture's own bytes and their media type, which is that of a format on the list; raises NoPicture."""
    data = _image(raw)
    try:
        decode_image(data, limits)  # all of it: what does not decode is not a picture
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return data, _TYPES[str(image.format)]
    except BadSample as error:
        raise NoPicture(f"the picture cannot be shown: {error}") from error


def _image(raw: RawSample) -> bytes:
    if raw.image is None:
        raise NoPicture("the sample has no picture")
    return raw.image
