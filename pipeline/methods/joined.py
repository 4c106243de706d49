"""Join scores that were made elsewhere to a run by key: `rescore --join FILE`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from noisegate.pipeline.runs.keyed_file import KeyedFile
from noisegate.pipeline.runs.table import RunFolder, read_shard_facts
from noisegate.pipeline.system.array_types import Float32

OTHER = "outside_score"
JOINED = ("dfn_score", "hype_score", "mlm_score", OTHER)


def joined_columns(run: RunFolder, stems: Sequence[str], path: Path) -> tuple[dict[str, Float32], dict[str, Any]]:
    """Read columns (rows of the run,) by name, and the record of their source.

    The file has a key (and a shard, if keys repeat across shards) and some of JOINED, or one column of any other name, which
    becomes `outside_score`. Samples that are not in the file have no score. Raises ConfigError if the file has no numbers, or
    no sample of the run, and TableError for a table that lacks rows.
    """
    file = KeyedFile(path, "join", f"key, and some of {', '.join(JOINED)}, or one column of numbers")
    numbers = [name for name in file.columns if _is_number(file.table[name].type)]
    source = {name: name for name in JOINED if name in numbers}
    if not source and len(numbers) == 1:
        source = {OTHER: numbers[0]}
    if not source:
        found = f"the columns of numbers {', '.join(numbers)}" if numbers else "no column of numbers"
        raise file.error(f"has {found}; give one, or name them {', '.join(JOINED)}")
    tables = []
    for stem in stems:
        read_shard_facts(run.table(stem))  # checks the number of rows, by which the columns are cut into tables
        table = run.read(stem, ["key", "index"]).replace_schema_metadata(None)
        tables.append(table.append_column("shard", pa.array([stem] * len(table), pa.string())))
    rows = file.rows_of(pa.concat_tables(tables))
    if not (rows >= 0).any():
        raise file.error(f"names no sample of {run.name}; its keys are such as {tables[0]['key'][0].as_py()!r}")
    columns: dict[str, Float32] = {}
    for name, given in source.items():
        values = file.table[given].cast(pa.float32()).to_numpy()
        columns[name] = np.where(rows >= 0, values[rows], np.nan).astype(np.float32)
    return columns, {"file": path.name, "columns_of_file": source, "samples": int((rows >= 0).sum())}


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))
