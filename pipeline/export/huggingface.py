"""A folder of Parquet files with the pictures and a card, as Hugging Face `datasets` loads it; written without `datasets`."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from noisegate.pipeline.system.output_files import whole_file
from noisegate.pipeline.system.progress import counted

from .pictures import choose_names, picture_tables_by_shard
from .rows import Options, RunRows, Written, plain_type

_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write_dataset(rows: RunRows, out: Path, options: Options) -> Written:
    """Write `data/train-*.parquet`, one for each shard with kept samples, and `README.md`.

    Samples whose status is not `ok` are left out: they have no usable picture or text.
    """
    rows.need_shards("--as datasets", pictures=True)
    schema = pa.schema([("image", _IMAGE), *((name, plain_type(name)) for name in choose_names(rows, options))])
    schema = schema.with_metadata({"huggingface": json.dumps({"info": {"features": _features(schema)}})})
    (out / "data").mkdir()
    left_out: Counter[str] = Counter()
    written = 0
    for number, (_, tables) in enumerate(picture_tables_by_shard(rows, schema, left_out)):
        with (
            whole_file(out / "data" / f"train-{number:05d}.parquet") as file,
            pq.ParquetWriter(file, schema, compression="zstd") as writer,
        ):
            for table in tables:
                writer.write_table(table)
                written += len(table)
    with whole_file(out / "README.md") as file:
        file.write(_card(options.record, written).encode())
    return Written(written, dict(+left_out), schema=schema)


def _features(schema: pa.Schema) -> dict[str, Any]:
    """Describe the columns as `datasets` does, in types that old and new versions know."""
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
    """Make the text of README.md; its head tells `load_dataset(FOLDER)` which files to read."""
    rule = f"with the rule `{record['where']}`" if record["where"] else "without a rule"
    return f"""---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*.parquet
---
# {counted(written, "sample")}

Exported by noisegate {record["noisegate"]} {rule}. Scores are the columns of its weight table; see `_export.json`.

```python
from datasets import load_dataset

load_dataset("parquet", data_files="data/train-*.parquet", split="train")
```
"""
