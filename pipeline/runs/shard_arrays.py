"""Make a run of shards from embeddings on disk: each sample's embeddings are found by its key.

The tables are as `annotate` writes them, with digests of pictures and captions, so that training can use them.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators.base import invalid_embedding, normalise, row_cosines
from noisegate.pipeline.settings import DecodeOptions
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.read import ShardReader
from noisegate.pipeline.shards.workers import Decoded, decode_sample
from noisegate.pipeline.system.array_types import Float32, Index, Mask

from .arrays import ArrayPart, open_array, read_keys
from .embeddings import write_embeddings
from .table import VERSION, RunFolder, table_from

FEATURES = "npy"  # the part that stands for the picture in shards of features
_MISSING, _REPEATED = "no embedding has this key", "several embeddings, or samples of the shard, have this key"


def find_image_part(shards: Sequence[Shard]) -> str | None:
    """Return `npy` if the first sample has features instead of a picture, else None; raise ConfigError for no samples."""
    for shard in shards:
        for raw in islice(ShardReader(shard, all_parts=True), 1):
            return FEATURES if raw.image is None and FEATURES in raw.parts else None
    raise ConfigError.of("shards", shards[0].url, "has no samples; give shards with the samples that were embedded")


class KeyedRows:
    """Rows of arrays by key, as sorted digests: 24 bytes for each. A column `shard` of the metadata is part of the key."""

    def __init__(self, parts: Sequence[ArrayPart]) -> None:
        self.check(parts)
        self._by_shard = all("shard" in pq.read_schema(part.metadata).names for part in parts)
        digests = np.concatenate([self._read(part) for part in parts])
        self._order = np.argsort(digests, kind="stable")
        self._sorted = digests[self._order]
        self.total = len(digests)
        self._parts = parts

    @staticmethod
    def check(parts: Sequence[ArrayPart]) -> None:
        """Raise ConfigError if there are no keys."""
        if any(part.metadata is None for part in parts):
            raise ConfigError(
                "shards are joined with embeddings by key; give --metadata, a Parquet file of keys", "metadata"
            )

    def _read(self, part: ArrayPart) -> NDArray[np.bytes_]:
        assert part.metadata is not None and part.key is not None
        keys = read_keys(part.metadata, part.key)
        shards = (
            [Shard(name).stem for name in read_keys(part.metadata, "shard")] if self._by_shard else [""] * len(keys)
        )
        return np.array([_digest(shard, key) for shard, key in zip(shards, keys, strict=True)], "S16")

    def find(self, stem: str, keys: Sequence[str]) -> tuple[Index, Mask]:
        """Find the row of each key, -1 if missing or not unique, and which keys are not unique here or in the arrays."""
        wanted = np.array([_digest(stem if self._by_shard else "", key) for key in keys], "S16")
        first = np.searchsorted(self._sorted, wanted, "left")
        count = np.searchsorted(self._sorted, wanted, "right") - first
        times = Counter(keys)
        repeated = (count > 1) | ((count > 0) & np.array([times[key] > 1 for key in keys], bool))
        rows = np.full(len(keys), -1, np.int64)
        known = (count > 0) & ~repeated
        rows[known] = self._order[first[known]]
        return rows, repeated

    def key(self, row: int) -> str:
        """Return the key of a row, for messages."""
        part = next(part for part in reversed(self._parts) if part.start <= row)
        assert part.metadata is not None and part.key is not None
        return read_keys(part.metadata, part.key)[row - part.start]


def _digest(shard: str, key: str) -> bytes:
    return hashlib.blake2b(f"{shard}\0{key}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


def write_shard_tables(
    run: RunFolder,
    shards: Sequence[Shard],
    parts: Sequence[ArrayPart],
    labels: NDArray[np.int64] | None,
    joint: bool,
    metadata: Mapping[str, Any],
    note: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Write a table without scores and an embedding file for each shard; return the shards' entries of `_run.json`.

    `labels` (N,) are the labels of all parts, negative for none; without them labels come from the shards. Samples without an
    embedding get the status `invalid`; they and unused embeddings are counted in a note. Raises ConfigError if no sample has an
    embedding, or a label differs from the shard's.
    """
    rows_of = KeyedRows(parts)
    used = np.zeros(rows_of.total, bool)
    options, image_part = DecodeOptions.from_dict(metadata["reading"]), metadata["reading"]["image_part"]
    entries: list[dict[str, Any]] = []
    lost: Counter[str] = Counter()  # samples by reason
    examples: dict[str, str] = {}
    for shard in shards:
        reader = ShardReader(shard, all_parts=image_part is not None)
        samples = [decode_sample(raw, None, options, image_part) for raw in reader]
        keys = [sample.key for sample in samples]
        rows, repeated = rows_of.find(shard.stem, keys)
        used[rows[rows >= 0]] = True
        for place in np.flatnonzero(rows < 0):
            reason = _REPEATED if repeated[place] else _MISSING
            lost[reason] += 1
            examples.setdefault(reason, keys[place])
        given = None if labels is None else np.where(rows >= 0, labels[rows], -1)
        if given is not None:
            _set_labels(shard, samples, given)
        images, texts = (
            _take(parts, name, rows, [sample.status == "ok" for sample in samples]) for name in ("images", "texts")
        )
        columns = _columns(samples, images, texts, rows, repeated, joint)
        facts = {"name": Path(shard.url).name, "sha256": reader.sha256, "size": reader.size, "rows": len(samples)}
        described = {
            **metadata,
            "table_version": VERSION,
            "shard": {**facts, "damage": reader.damage},
            "embeddings": write_embeddings(run.embeddings(shard.stem), images, texts, {"shard": facts}),
        }
        table = table_from(columns, described)
        run.write_table(shard.stem, table)
        entries.append({"url": shard.url, "table": shard.stem, "rows": len(samples)})
        if reader.damage:
            note(f"{shard.url}: {reader.damage}; its {len(samples):,} samples are kept")
    total = sum(entry["rows"] for entry in entries)
    counts = [f"{lost[why]:,} of {total:,} samples are invalid, such as {key}: {why}" for why, key in examples.items()]
    unused = np.flatnonzero(~used)
    if len(unused):
        example = rows_of.key(int(unused[0]))
        counts.append(f"{len(unused):,} of {len(used):,} embeddings belong to no sample, such as {example}")
    if not used.any():
        advice = "give the keys of these shards, and a column shard if shards repeat keys"
        raise ConfigError(f"metadata and shards have no key in common: {'; '.join(counts)}; {advice}", "metadata")
    for line in counts:
        note(line)
    return entries


def _set_labels(shard: Shard, samples: Sequence[Decoded], given: NDArray[np.int64]) -> None:
    """Set the given labels; a sample without a label in its shard is then not a failure."""
    for sample, label in zip(samples, given.tolist(), strict=True):
        if label >= 0 and sample.label is not None and sample.label != label:
            problem = f"is the given label of {sample.key}, and shard {shard.url} says {sample.label}; give those of the shards"
            raise ConfigError.of("labels", label, problem)
        if label >= 0:
            sample.label = label
            sample.flags = tuple(flag for flag in sample.flags if flag != "no_label")
            if sample.status == "no_label":
                sample.status, sample.error = "ok", None


def _take(parts: Sequence[ArrayPart], name: str, rows: Index, ok: Sequence[bool]) -> Float32:
    """Read unit rows of the arrays, (N, d), zeros for samples that are not ok or have no row; d is 0 without texts."""
    out = np.zeros((len(rows), parts[0].widths[name == "texts"]), np.float32)
    for part in parts:
        path = getattr(part, name)
        here = np.flatnonzero((rows >= part.start) & (rows < part.start + part.rows) & np.array(ok, bool))
        if path is not None and len(here):
            out[here] = normalise(open_array(path, name, 2)[rows[here] - part.start])
    return out


def _columns(
    samples: Sequence[Decoded], images: Float32, texts: Float32, rows: Index, repeated: Mask, joint: bool
) -> dict[str, Any]:
    """Make the table's columns that do not depend on β; samples without a complete embedding become `invalid`."""
    no_image = np.asarray(~images.any(axis=1))
    no_text = np.asarray(~texts.any(axis=1)) & (texts.shape[1] > 0)
    for place, sample in enumerate(samples):
        if sample.status == "ok" and (rows[place] < 0 or no_image[place] or no_text[place]):
            sample.status = "invalid"
            lost = _REPEATED if repeated[place] else _MISSING
            sample.error = lost if rows[place] < 0 else invalid_embedding("image" if no_image[place] else "text")
    names = ("key", "index", "status", "error", "image_sha256", "text_sha256")
    ok = np.array([sample.status == "ok" for sample in samples], bool)
    cosines = row_cosines(images, texts) if joint and texts.shape[1] else np.full(len(samples), np.nan, np.float32)
    return {
        **{name: [getattr(sample, name) for sample in samples] for name in names},
        "label": pa.array([sample.label for sample in samples], pa.int32()),
        "flags": [list(sample.flags) for sample in samples],
        "similarity": np.where(ok, cosines, np.float32(np.nan)),
    }
