"""Tables of finished runs, and pictures and captions from their shards, cached for the routes."""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from noisegate.pipeline.settings import Limits
from noisegate.pipeline.shards import RawSample

from .shard_samples import NoPicture, SampleGone, ShardSamples, caption_of, original, small_picture
from .tables import RunTables

RUNS = 32  # whose tables are cached
PICTURES = 32 << 20  # bytes of small pictures that are cached
DECODERS = 2  # pictures decoded at a time: a large one takes hundreds of megabytes


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
