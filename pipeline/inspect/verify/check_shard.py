"""Check a table against its shard: the same samples in the same order, with the same bytes."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from noisegate.pipeline.errors import ShardError
from noisegate.pipeline.settings import DecodeOptions
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.preprocess import Preprocess
from noisegate.pipeline.shards.read import IMAGE_PARTS, RawSample, ShardReader
from noisegate.pipeline.shards.workers import Decoded, decode_sample

from .problems import Problems

_NO_PIXELS = Preprocess(1)  # never called: pictures are only hashed here


def check_shard(
    shard: Shard,
    table: pa.Table,
    metadata: Mapping[str, Any],
    problems: Problems,
    unchanged: Callable[[int, RawSample], None] = lambda row, raw: None,
    advance: Callable[[int, int], None] = lambda samples, size: None,
) -> None:
    """Read the shard once and compare all of it with its table.

    `unchanged` is called with the row and the raw sample if picture, caption and label are as recorded; `advance` with the
    samples and bytes read since its last call.
    """
    facts, rows = metadata["shard"], _Rows(table, DecodeOptions.from_dict(metadata["reading"]), problems)
    reader, reported = ShardReader(shard), 0
    try:
        for raw in reader:
            row = rows.compare(raw)
            if row is not None:
                unchanged(row, raw)
            advance(1, reader.position - reported)
            reported = reader.position
    except ShardError as error:
        problems.lead(str(error))
        return
    advance(0, reader.size - reported)
    rows.finish()
    if reader.damage != facts["damage"]:
        problems.lead(f"{reader.damage or 'the shard is whole now'}; when it was scored: {facts['damage'] or 'whole'}")
    if (reader.sha256, reader.size) != (facts["sha256"], facts["size"]):
        same = "" if problems.count else "; the pictures, captions and labels of all its samples are the same"
        problems.lead(
            f"the file has changed: {reader.size:,} bytes with SHA-256 {reader.sha256[:12]}… now, "
            f"{facts['size']:,} with {facts['sha256'][:12]}… when it was scored{same}"
        )


class _Rows:
    """The rows of a table by key (repeats in order), and which of them were seen in the shard."""

    def __init__(self, table: pa.Table, options: DecodeOptions, problems: Problems) -> None:
        self._options, self._problems = options, problems
        self._keys: list[str] = table["key"].to_pylist()
        self._places: dict[str, list[int]] = {}
        for row, key in enumerate(self._keys):
            self._places.setdefault(key, []).append(row)
        self._recorded = {name: table[name] for name in ("status", "image_sha256", "text_sha256", "label")}
        self._seen = np.zeros(len(table), bool)
        self._repeats: dict[str, int] = {}
        self._last = -1
        self._in_order = True

    def compare(self, raw: RawSample) -> int | None:
        """Compare a sample with its row; return the row number if it is unchanged."""
        turn = self._repeats.get(raw.key, 0)
        places = self._places.get(raw.key, [])
        self._repeats[raw.key] = turn + 1
        if turn >= len(places):
            self._problems.add(f"in the shard, but not in the table{' this often' if places else ''}", raw.key)
            return None
        row = places[turn]
        self._seen[row] = True
        if row < self._last and self._in_order:
            self._in_order = False  # one problem per shard: all that follows would be out of order too
            self._problems.add(
                f"comes after sample {self._keys[self._last]} in the shard, before it in the table", raw.key
            )
        self._last = row
        before = self._problems.count
        status, image, text, label = (column[row].as_py() for column in self._recorded.values())
        now = _decode_without_picture(raw, self._options)
        self._digest("image", image, hashlib.sha256(raw.image).digest() if raw.image is not None else None, raw.key)
        if not (status == "bad_image" and text is None):  # a picture that crashed the decoder took its caption with it
            self._digest("caption", text, now.text_sha256, raw.key)
            if now.label != label:
                self._problems.add(f"the label is {now.label} now, {label} in the table", raw.key)
        return row if self._problems.count == before else None

    def _digest(self, name: str, then: bytes | None, now: bytes | None, key: str) -> None:
        if then == now:
            return
        if now is None:
            self._problems.add(f"the {name} is gone, or can no longer be read", key)
        elif then is None:
            self._problems.add(f"has {'an' if name == 'image' else 'a'} {name} now, and had none", key)
        else:
            self._problems.add(f"the {name}'s bytes have changed", key)

    def finish(self) -> None:
        """Report the rows that the shard does not have."""
        for row in np.flatnonzero(~self._seen):
            self._problems.add("in the table, but not in the shard", self._keys[row])


def _decode_without_picture(raw: RawSample, options: DecodeOptions) -> Decoded:
    """Decode caption and label as the job does, without the picture, which takes nearly all of the time."""
    parts = {name: data for name, data in raw.parts.items() if name not in IMAGE_PARTS}
    return decode_sample(replace(raw, parts=parts), _NO_PIXELS, options)
