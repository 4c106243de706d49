"""Make tables of pictures, captions and scores in groups of bounded size, for formats that contain the pictures."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from noisegate.pipeline.runs.captions import CAPTION, read_caption
from noisegate.pipeline.shards.read import IMAGE_PARTS, RawSample

from .rows import Options, RunRows, ShardRows, plain_type

GROUP_ROWS = 100  # random access reads a whole group
GROUP_BYTES = 32_000_000


def choose_names(rows: RunRows, options: Options) -> list[str]:
    """Choose the columns beside the picture: the requested ones, else caption or label, key, shard and all filled scores."""
    names = rows.choose(options.columns, (CAPTION, "label", "key", "shard"))
    if options.columns is None:
        filled = set(rows.filled_scores())
        tasks = rows.facts["reading"]["tasks"]
        names = [n for n in names if (n != "label" or n in filled) and (n != CAPTION or "pairs" in tasks)]
    return names


def picture_tables(rows: RunRows, schema: pa.Schema, left_out: Counter[str]) -> Iterator[pa.Table]:
    """Yield the usable samples of all shards, group by group."""
    for _, tables in picture_tables_by_shard(rows, schema, left_out):
        yield from tables


def picture_tables_by_shard(
    rows: RunRows, schema: pa.Schema, left_out: Counter[str]
) -> Iterator[tuple[ShardRows, Iterator[pa.Table]]]:
    """Yield each shard with usable samples, and their groups; samples that are not `ok` are counted in `left_out`."""
    names = [name for name in schema.names if name != "image"]
    for part in rows.parts(list(dict.fromkeys([*names, "status"]))):
        ok = pc.equal(part.kept["status"], "ok").to_pylist()
        left_out["not ok"] += len(ok) - sum(ok)
        if any(ok):
            yield part, _tables(part, ok, schema, rows.text_field)


def _tables(part: ShardRows, ok: Sequence[bool], schema: pa.Schema, field: str | None) -> Iterator[pa.Table]:
    rows: list[int] = []
    images: list[dict[str, Any]] = []
    captions: list[str | None] = []
    size = 0
    for row, raw in part.samples():
        if not ok[row]:
            continue
        rows.append(row)
        images.append(_image(raw))
        captions.append(read_caption(raw, field))
        size += len(images[-1]["bytes"])
        if len(rows) == GROUP_ROWS or size >= GROUP_BYTES:
            yield _group(part, schema, rows, images, captions)
            rows, images, captions, size = [], [], [], 0
    if rows:
        yield _group(part, schema, rows, images, captions)


def _group(
    part: ShardRows, schema: pa.Schema, rows: list[int], images: list[dict[str, Any]], captions: list[str | None]
) -> pa.Table:
    kind = schema.field("image").type
    pictures = images if pa.types.is_struct(kind) else [image["bytes"] for image in images]
    made = {"image": pa.array(pictures, kind), CAPTION: pa.array(captions, pa.string())}
    columns = [
        made[name] if name in made else part.kept[name].take(pa.array(rows)).cast(plain_type(name))
        for name in schema.names
    ]
    return pa.table(columns, schema=schema)


def _image(raw: RawSample) -> dict[str, Any]:
    name = next(name for name in IMAGE_PARTS if name in raw.parts)  # always found, because the sample's status is ok
    return {"bytes": raw.parts[name], "path": f"{raw.key}.{name}"}
