"""The table's columns as a page, from the schema that writes them."""

from collections.abc import Mapping

import pyarrow as pa

from noisegate.pipeline.runs.table import COLUMNS, METHOD_COLUMNS, REVIEW_COLUMNS, VERSION

__all__ = ["table_page"]

PAGE = """# Weight table

Version {version}. One Parquet file per shard with the shard's own name, rows in tar order, one row for every sample, failures
included. What a row has no value for is null. This page is made from the schema in `pipeline/runs/table.py`.

{columns}

## Columns that only some tables have

`noisegate rescore --with lnc,crcl,gsl` and `noisegate train --write-table FOLDER` add these. A table without one of
them reads as if it were null everywhere.

{method_columns}

## Marks of people

[Marks](../guides/review.md) are kept in `_reviews.sqlite` beside the tables, never in them. Rules, exports and `read_table`
know them as columns.

{review_columns}

## Reading it

```python
from noisegate import read_frame, read_table

table = read_table("tables", columns=["key", "osa_weight"])  # a pyarrow Table over all shards, with the column shard in front
table = read_table("tables", captions=True)  # with the captions, read from the shards, and without empty columns
frame = read_frame("tables", captions=True)  # the same for pandas, without the digests
```

```sql
select status, count(*), avg(osa_weight) from 'tables/*.parquet' group by status   -- DuckDB
```

Each file's metadata, under `noisegate.…`, holds the scorer's identity, β with its interval, the calibration and the shard's
digest, as JSON. `_run.json` beside the tables lists the run.
"""


def table_page() -> str:
    """Markdown."""
    return PAGE.format(
        version=VERSION,
        columns=_rows(COLUMNS),
        method_columns=_rows(METHOD_COLUMNS),
        review_columns=_rows(REVIEW_COLUMNS),
    )


def _rows(columns: Mapping[str, tuple[pa.DataType, str]]) -> str:
    lines = [f"| `{name}` | {_kind(kind)} | {meaning} |" for name, (kind, meaning) in columns.items()]
    return "\n".join(["| column | type | meaning |", "| --- | --- | --- |", *lines])


def _kind(kind: pa.DataType) -> str:
    """Dictionaries are a way of storing; readers see strings."""
    if pa.types.is_dictionary(kind):
        return str(kind.value_type)
    if pa.types.is_list(kind):
        return f"list of {_kind(kind.value_type)}"
    return f"{kind.byte_width} bytes" if pa.types.is_fixed_size_binary(kind) else str(kind)
