"""Tables of finished runs, and pictures and captions from their shards, cached for the routes.

A sample is served only if the shard is unchanged since scoring: key and picture digest must be the table's.
"""

import hashlib
import io
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from PIL import Image

from noisegate.pipeline.errors import NoisegateError, ShardError
from noisegate.pipeline.inspect.report import thumbnail
from noisegate.pipeline.settings import Limits
from noisegate.pipeline.shards import (
    FORMATS,
    READ_PARTS,
    BadSample,
    RawSample,
    Shard,
    TarSamples,
    decode_image,
    decode_text,
    index_samples,
    is_compressed,
    part_limit,
    read_samples,
)

from .tables import RunTables

RUNS = 32  # most runs whose tables are cached
PICTURES = 32 << 20  # most bytes of cached small pictures
DECODERS = 2  # pictures read and decoded at a time: a large picture takes hundreds of megabytes
READERS = 2  # pages of captions read at a time: a hostile shard takes up to 100 MB for each
SHARDS_REMEMBERED = 64  # shard indexes kept; about a megabyte per 10,000 samples
_TYPES = {"JPEG": "image/jpeg", "MPO": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp", "GIF": "image/gif"}


class SampleGone(NoisegateError):
    """The shard is gone, or (`changed`) has another sample at this position."""

    def __init__(self, message: str, changed: bool = False) -> None:
        super().__init__(message)
        self.changed = changed


class NoPicture(NoisegateError):
    """The sample has no picture, or none that can be shown."""


class Browser:
    """Browse runs from several threads. `limits` are the service's own; a run's may be lower, never higher."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._decoding, self._reading = threading.BoundedSemaphore(DECODERS), threading.BoundedSemaphore(READERS)
        self._runs: OrderedDict[Path, RunTables] = OrderedDict()
        self._samples = ShardSamples(limits)
        self._pictures: OrderedDict[tuple[bytes, int], bytes] = OrderedDict()
        self._size = 0

    def tables(self, folder: Path) -> RunTables:
        """Return the tables of a run's folder."""
        with self._lock:
            found = self._runs.setdefault(folder, RunTables(folder))
            self._runs.move_to_end(folder)
            if len(self._runs) > RUNS:
                self._runs.popitem(last=False)
        return found

    def captions(
        self, tables: RunTables, rows: Sequence[Mapping[str, Any]]
    ) -> list["str | SampleGone | NoPicture | None"]:
        """Read the caption of each row as the run read it, None if the sample has none, or the reason why it cannot be read.

        Rows of one shard are read together, because a compressed shard must be read from its beginning.
        """
        by_shard: dict[str, list[int]] = {}
        for place, row in enumerate(rows):
            by_shard.setdefault(row["shard"], []).append(place)
        found: dict[int, str | SampleGone | NoPicture | None] = {}
        for stem, places in by_shard.items():
            try:
                url = _find_url(tables, stem)
            except (SampleGone, NoPicture) as error:
                found |= dict.fromkeys(places, error)
                continue
            samples = self._samples.read_many(tables.run.path, url, [rows[place] for place in places])
            reading = tables.recorded()["reading"]
            with self._reading:
                for number, raw in samples:
                    found[places[number]] = raw if isinstance(raw, SampleGone) else caption_of(raw, reading)
        return [found[place] for place in range(len(rows))]

    def small(self, tables: RunTables, row: Mapping[str, Any], side: int) -> bytes:
        """Return a JPEG of at most `side` pixels wide and high; raise SampleGone or NoPicture."""
        name = (row["image_sha256"] or b"", side)
        with self._lock:
            found = self._pictures.get(name)
            if found is not None:
                self._pictures.move_to_end(name)
                return found
        with self._decoding:
            made = small_picture(self._raw(tables, row), self._limits, side)
        if row["image_sha256"]:
            self._keep(name, made)
        return made

    def original(self, tables: RunTables, row: Mapping[str, Any]) -> tuple[bytes, str]:
        """Return the picture's bytes from the shard, with their media type; raise SampleGone or NoPicture."""
        with self._decoding:
            return original(self._raw(tables, row), self._limits)

    def _raw(self, tables: RunTables, row: Mapping[str, Any]) -> RawSample:
        return self._samples.read(tables.run.path, _find_url(tables, row["shard"]), row)

    def _keep(self, name: tuple[bytes, int], made: bytes) -> None:
        with self._lock:
            if name not in self._pictures:
                self._size += len(made)
            self._pictures[name] = made
            while self._size > PICTURES:
                _, gone = self._pictures.popitem(last=False)
                self._size -= len(gone)


class ShardSamples:
    """Read raw samples by shard and position, without parts beyond `limits`; keep the indexes of the shards read last."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, int, int], pa.Table | None] = OrderedDict()

    def read(self, folder: Path, url: str, row: Mapping[str, Any]) -> RawSample:
        """Read the sample of a table's row; raise SampleGone. Relative paths start at the working folder, or beside the run."""
        [(_, raw)] = self.read_many(folder, url, [row])
        if isinstance(raw, SampleGone):
            raise raw
        return raw

    def read_many(
        self, folder: Path, url: str, rows: Sequence[Mapping[str, Any]]
    ) -> Iterator[tuple[int, "RawSample | SampleGone"]]:
        """Yield place in `rows` and sample (or SampleGone), in the order of the shard, which is read once."""
        stem, left = rows[0]["shard"], {int(row["index"]): place for place, row in enumerate(rows)}
        reason, changed = "is not where it was when the run was scored", False
        virtual = Shard(url).is_virtual
        path = None if virtual else _find_local(folder, url)
        if path is not None or virtual:
            try:
                for raw in self._samples(path, list(left)) if path else self._read(url, list(left)):
                    if _is_same(raw, rows[left[raw.index]]):
                        yield left.pop(raw.index), raw
                reason, changed = "is not the one that was scored", True
            except (ShardError, OSError):
                reason = "cannot be read again"
        for index, place in left.items():
            sample = f"sample {index} of " if changed else ""
            yield place, SampleGone(f"{sample}shard {stem} {reason}", changed)

    def _read(self, url: str, positions: Sequence[int]) -> Iterator[RawSample]:
        return read_samples(Shard(url), positions, limits=self._limits)

    def _samples(self, path: Path, positions: Sequence[int]) -> Iterator[RawSample]:
        table = self._index(path)
        if table is None:
            yield from self._read(str(path), positions)
            return
        samples = TarSamples(path, table, path.name)
        try:
            for index in sorted(position for position in positions if position < len(table)):
                parts: dict[str, bytes] = {}
                for part in READ_PARTS:
                    parts |= samples.read(index, (part,), part_limit(part, self._limits))
                yield RawSample(samples.key(index), index, parts)
        finally:
            samples.close()

    def _index(self, path: Path) -> pa.Table | None:
        """Index a shard; None for a compressed shard, which can only be read from its beginning."""
        stat = path.stat()
        name = (str(path), stat.st_mtime_ns, stat.st_size)
        with self._lock:
            if name not in self._known:
                self._known[name] = None if is_compressed(Shard(str(path))) else index_samples(path)
            self._known.move_to_end(name)
            while len(self._known) > SHARDS_REMEMBERED:
                self._known.popitem(last=False)
            return self._known[name]


def _find_url(tables: RunTables, stem: str) -> str:
    """Return the URL of a table's shard; raise SampleGone or NoPicture."""
    recorded = tables.recorded()
    if "limits" not in recorded["reading"]:
        raise NoPicture("this run was scored from embeddings, without shards")
    urls = {entry["table"]: entry["url"] for entry in recorded["shards"]}
    if stem not in urls:
        raise SampleGone(f"shard {stem} is no part of this run any more", changed=True)
    return str(urls[stem])


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
    """Return the caption as the run read it, None if there is none."""
    try:
        return decode_text(raw.parts, reading.get("text_field"), Limits.from_dict(reading["limits"]))
    except BadSample:
        return None


def small_picture(raw: RawSample, limits: Limits, side: int) -> bytes:
    """Make a JPEG of at most `side` pixels wide and high, upright and without metadata; raise NoPicture."""
    try:
        picture = thumbnail(decode_image(_image(raw, limits), limits), side)
    except BadSample as error:
        raise NoPicture(f"the picture cannot be shown: {error}") from error
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=88, subsampling=0)
    return data.getvalue()


def original(raw: RawSample, limits: Limits) -> tuple[bytes, str]:
    """Return the picture's own bytes and their media type, one of the known formats; raise NoPicture."""
    data = _image(raw, limits)
    try:
        decode_image(data, limits)  # decode all of it: bytes that do not decode are not a picture
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return data, _TYPES[str(image.format)]
    except BadSample as error:
        raise NoPicture(f"the picture cannot be shown: {error}") from error


def _image(raw: RawSample, limits: Limits) -> bytes:
    if raw.image is None:
        raise NoPicture(f"the sample has no picture of at most {limits.max_image_bytes:,} bytes")
    return raw.image
