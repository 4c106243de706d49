"""Tables of finished runs, and pictures and captions from their shards, cached for the routes.

A sample is only served while the shard still holds what was scored: the key and the picture's digest must be the table's.
"""

import hashlib
import io
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from PIL import Image

from noisegate.pipeline.errors import NoisegateError, ShardError
from noisegate.pipeline.inspect.report import thumbnail
from noisegate.pipeline.settings import Limits
from noisegate.pipeline.shards import (
    FORMATS,
    MAX_PART_BYTES,
    READ_PARTS,
    BadSample,
    RawSample,
    Shard,
    TarSamples,
    decode_image,
    decode_text,
    index_samples,
    is_compressed,
    read_samples,
)

from .tables import RunTables

RUNS = 32  # whose tables are cached
PICTURES = 32 << 20  # bytes of small pictures that are cached
DECODERS = 2  # pictures decoded at a time: a large one takes hundreds of megabytes
SHARDS_REMEMBERED = 64  # about a megabyte for 10,000 samples
_TYPES = {"JPEG": "image/jpeg", "MPO": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp", "GIF": "image/gif"}


class SampleGone(NoisegateError):
    """The shard is gone, or (`changed`) holds another sample at this position."""

    def __init__(self, message: str, changed: bool = False) -> None:
        super().__init__(message)
        self.changed = changed


class NoPicture(NoisegateError):
    """The sample has no picture, or none that can be shown."""


class Browser:
    """Safe to use from several threads. `limits` are the service's own; a run's may be lower, never higher."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._decoding = threading.BoundedSemaphore(DECODERS)
        self._runs: OrderedDict[Path, RunTables] = OrderedDict()
        self._samples = ShardSamples()
        self._pictures: OrderedDict[tuple[bytes, int], bytes] = OrderedDict()
        self._size = 0

    def tables(self, folder: Path) -> RunTables:
        """The tables of a run's folder."""
        with self._lock:
            found = self._runs.setdefault(folder, RunTables(folder))
            self._runs.move_to_end(folder)
            if len(self._runs) > RUNS:
                self._runs.popitem(last=False)
        return found

    def caption(self, tables: RunTables, row: Mapping[str, Any]) -> str | None:
        """As the run read it, None where the sample has none; raises SampleGone."""
        return caption_of(self._raw(tables, row), tables.recorded()["reading"])

    def small(self, tables: RunTables, row: Mapping[str, Any], side: int) -> bytes:
        """A JPEG of at most `side` pixels wide and high; raises SampleGone or NoPicture."""
        name = (row["image_sha256"] or b"", side)
        with self._lock:
            found = self._pictures.get(name)
            if found is not None:
                self._pictures.move_to_end(name)
                return found
        raw = self._raw(tables, row)
        with self._decoding:
            made = small_picture(raw, self._limits, side)
        if row["image_sha256"]:
            self._keep(name, made)
        return made

    def original(self, tables: RunTables, row: Mapping[str, Any]) -> tuple[bytes, str]:
        """The picture as the shard has it, with its media type; raises SampleGone or NoPicture."""
        raw = self._raw(tables, row)
        with self._decoding:
            return original(raw, self._limits)

    def _raw(self, tables: RunTables, row: Mapping[str, Any]) -> RawSample:
        recorded = tables.recorded()
        if "limits" not in recorded["reading"]:
            raise NoPicture("this run was scored from embeddings, without shards")
        urls = {entry["table"]: entry["url"] for entry in recorded["shards"]}
        if row["shard"] not in urls:
            raise SampleGone(f"shard {row['shard']} is no part of this run any more", changed=True)
        return self._samples.read(tables.run.path, urls[row["shard"]], row)

    def _keep(self, name: tuple[bytes, int], made: bytes) -> None:
        with self._lock:
            if name not in self._pictures:
                self._size += len(made)
            self._pictures[name] = made
            while self._size > PICTURES:
                _, gone = self._pictures.popitem(last=False)
                self._size -= len(gone)


class ShardSamples:
    """Raw samples by shard and position; keeps the indexes of the shards read last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, int, int], pa.Table | None] = OrderedDict()

    def read(self, folder: Path, url: str, row: Mapping[str, Any]) -> RawSample:
        """The sample of a table's row; raises SampleGone. Relative paths count from here, or from beside the run."""
        stem, index = row["shard"], int(row["index"])
        virtual = Shard(url).is_virtual
        path = None if virtual else _find_local(folder, url)
        if path is None and not virtual:
            raise SampleGone(f"shard {stem} is not where it was when the run was scored")
        try:
            raw = self._sample(path, index) if path else next(read_samples(Shard(url), [index]), None)
        except (ShardError, OSError) as error:
            raise SampleGone(f"shard {stem} cannot be read again") from error
        if raw is None or not _is_same(raw, row):
            raise SampleGone(f"sample {index} of shard {stem} is not the one that was scored", changed=True)
        return raw

    def _sample(self, path: Path, index: int) -> RawSample | None:
        table = self._index(path)
        if table is None:
            return next(read_samples(Shard(str(path)), [index]), None)
        if index >= len(table):
            return None
        samples = TarSamples(path, table, path.name)
        try:
            return RawSample(samples.key(index), index, samples.read(index, READ_PARTS, MAX_PART_BYTES))
        finally:
            samples.close()

    def _index(self, path: Path) -> pa.Table | None:
        """None for a compressed shard, which can only be read from its beginning."""
        stat = path.stat()
        name = (str(path), stat.st_mtime_ns, stat.st_size)
        with self._lock:
            if name not in self._known:
                self._known[name] = None if is_compressed(Shard(str(path))) else index_samples(path)
            self._known.move_to_end(name)
            while len(self._known) > SHARDS_REMEMBERED:
                self._known.popitem(last=False)
            return self._known[name]


def _is_same(raw: RawSample, row: Mapping[str, Any]) -> bool:
    if raw.key != row["key"]:
        return False
    digest = row["image_sha256"]
    return raw.image is None or not digest or hashlib.sha256(raw.image).digest() == digest


def _find_local(folder: Path, url: str) -> Path | None:
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
