"""Captions of a run's samples, read again from their shards."""

import hashlib
from typing import Any

import pyarrow as pa

from noisegate.pipeline.errors import ConfigError, MismatchError
from noisegate.pipeline.settings import Limits
from noisegate.pipeline.shards.decode import BadSample, decode_text
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.random_access import read_samples
from noisegate.pipeline.shards.read import RawSample

CAPTION = "caption"  # a column that is read from the shards, not from the tables


def read_caption(raw: RawSample, field: str | None) -> str | None:
    """Read the caption as it was scored, of any length; None if the sample has no readable caption."""
    try:
        return decode_text(raw.parts, field, Limits(max_text_chars=1 << 40))
    except BadSample:
        return None


def read_shard_captions(url: str, table: pa.Table, reading: dict[str, Any]) -> pa.Array:
    """Read the caption of each row of a shard's `table` (key, text_sha256); `reading` comes from `_run.json`.

    From a local tar, a folder or a table, no pictures are read. Raises MismatchError if a caption has changed since it was
    scored.
    """
    if "limits" not in reading:
        raise ConfigError(
            "captions: the run was made from embeddings, and captions are read from shards", "captions", True
        )
    field: str | None = reading.get("text_field")
    keys, digests = table["key"].to_pylist(), table["text_sha256"].to_pylist()
    captions: list[str | None] = []
    for raw in read_samples(Shard(url), range(len(keys)), ("txt", "json")) if keys else ():
        caption = read_caption(raw, field)
        if raw.key != keys[raw.index] or (caption is not None and _digest(raw, field, caption) != digests[raw.index]):
            problem = f"has changed since it was scored, at sample {raw.key}; run the same annotate command again"
            raise MismatchError.of("shards", url, problem)
        captions.append(caption)
    if len(captions) != len(keys):
        raise MismatchError.of(
            "shards", url, "has lost samples since it was scored; run the same annotate command again"
        )
    return pa.array(captions, pa.string())


def _digest(raw: RawSample, field: str | None, caption: str) -> bytes:
    data = raw.parts["txt"] if field is None and "txt" in raw.parts else caption.encode()
    return hashlib.sha256(data).digest()
