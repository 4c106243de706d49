"""A folder of Parquet files with the pictures and a card, as Hugging Face `datasets` loads it; written without `datasets`."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from noisegate.pipeline.shards.read import IMAGE_PARTS, RawSample
from noisegate.pipeline.system.output_files import whole_file

from .flat import read_caption
from .rows import CAPTION, Options, RunRows, ShardRows, Written, plain_type

GROUP_ROWS = 100  # random access reads a whole group
GROUP_BYTES = 32_000_000
_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write_dataset(rows: RunRows, out: Path, options: Options) -> Written:
    """Write `data/train-*.parquet`, one for each shard with kept samples, and `README.md`.

    Samples whose status is not `ok` are left out: they have no usable picture or text.
    """
    rows.need_shards("--as datasets")
    names = rows.choose(options.columns, (CAPTION, "label", "key", "shard"))
    if options.columns is None:
        filled = set(rows.filled_scores())
        tasks = rows.facts["reading"]["tasks"]
        names = [n for n in names if (n != "label" or n in filled) and (n != CAPTION or "pairs" in tasks)]
    schema = pa.schema([("image", _IMAGE), *((name, plain_type(name)) for name in names)])
    schema = schema.with_metadata({"huggingface": json.dumps({"info": {"features": _features(schema)}})})
    (out / "data").mkdir()
    left_out: Counter[str] = Counter()
    written = files = 0
    for part in rows.parts(list(dict.fromkeys([*names, "status"]))):
        ok = pc.equal(part.kept["status"], "ok").to_pylist()
        left_out["not ok"] += len(ok) - sum(ok)
        if not any(ok):
            continue
        with whole_file(out / "data" / f"train-{files:05d}.parquet") as file:
            written += _write(part, ok, file, schema, rows.text_field)
        files += 1
    with whole_file(out / "README.md") as file:
        file.write(_card(options.record, written).encode())
    return Written(written, dict(+left_out))


def _write(part: ShardRows, ok: Sequence[bool], file: BinaryIO, schema: pa.Schema, field: str | None) -> int:
    """Write one shard's usable samples in row groups of bounded size; return how many."""
    rows: list[int] = []
    images: list[dict[str, Any]] = []
    captions: list[str | None] = []
    size = 0
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for row, raw in part.samples():
            if not ok[row]:
                continue
            rows.append(row)
            images.append(_image(raw))
            captions.append(read_caption(raw, field))
            size += len(images[-1]["bytes"])
            if len(rows) == GROUP_ROWS or size >= GROUP_BYTES:
                writer.write_table(_group(part, schema, rows, images, captions))
                rows, images, captions, size = [], [], [], 0
        if rows:
            writer.write_table(_group(part, schema, rows, images, captions))
    return sum(ok)


def _group(
    part: ShardRows, schema: pa.Schema, rows: list[int], images: list[dict[str, Any]], captions: list[str | None]
) -> pa.Table:
    made = {"image": pa.array(images, _IMAGE), CAPTION: pa.array(captions, pa.string())}
    columns = [
        made[name] if name in made else part.kept[name].take(pa.array(rows)).cast(plain_type(name))
        for name in schema.names
    ]
    return pa.table(columns, schema=schema)


def _image(raw: RawSample) -> dict[str, Any]:
    name = next(name for name in IMAGE_PARTS if name in raw.parts)  # there is one: the sample is ok
    return {"bytes": raw.parts[name], "path": f"{raw.key}.{name}"}


def _features(schema: pa.Schema) -> dict[str, Any]:
    """The columns as `datasets` describes them, in types that old and new versions know."""
    features: dict[str, Any] = {}
    for field in schema:
        if field.name == "image":
            features[field.name] = {"_type": "Image"}
        elif pa.types.is_list(field.type):
            item = {"dtype": "string", "_type": "Value"}
            features[field.name] = {"feature": item, "length": -1, "_type": "Sequence"}
        else:
            features[field.name] = {"dtype": _dtype(field.type), "_type": "Value"}
    return features


def _dtype(stored: pa.DataType) -> str:
    return "float32" if stored == pa.float32() else "binary" if pa.types.is_fixed_size_binary(stored) else str(stored)


def _card(record: Mapping[str, Any], written: int) -> str:
    """The text of README.md; its head tells `load_dataset(FOLDER)` which files to read."""
    rule = f"with the rule `{record['where']}`" if record["where"] else "without a rule"
    return f"""---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*.parquet
---
# {written:,} samples

Exported by noisegate {record["noisegate"]} {rule}. Scores are the columns of its weight table; see `_export.json`.

```python
from datasets import load_dataset

load_dataset("parquet", data_files="data/train-*.parquet", split="train")
```
"""
