"""A Lance dataset of the pictures, captions and scores; needs the extra `lance`."""

from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pyarrow as pa

from noisegate.pipeline.system.extras import require_extra

from .pictures import choose_names, picture_tables
from .rows import Options, RunRows, Written, plain_type


def write_lance(rows: RunRows, out: Path, options: Options) -> Written:
    """Write the dataset into the folder `out`, with the picture's bytes in `image`; samples that are not `ok` are left out."""
    require_extra("lance", "export --as lance")
    rows.need_shards("--as lance", pictures=True)
    names = choose_names(rows, options)
    schema = pa.schema([("image", pa.large_binary()), *((name, plain_type(name)) for name in names)])
    left_out: Counter[str] = Counter()
    written = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal written
        for table in picture_tables(rows, schema, left_out):
            written += len(table)
            yield from table.to_batches()

    reader = pa.RecordBatchReader.from_batches(schema, batches())
    import_module("lance").write_dataset(reader, str(out), schema=schema)
    return Written(written, dict(+left_out))
