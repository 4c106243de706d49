"""cleanlab's frame of label issues, as `Datalab.get_issues("label")` and `CleanLearning.find_label_issues` return it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from noisegate.pipeline.errors import ConfigError, TableError
from noisegate.pipeline.system.output_files import whole_file

from .flat import escape_formulas
from .rows import Options, RunRows, ShardRows, Written

FRAME = pa.schema(
    [
        ("row", pa.int64()),  # the frame's index: the sample's number in the whole run, failed ones counted
        ("is_label_issue", pa.bool_()),
        ("label_score", pa.float64()),  # Datalab's name
        ("label_quality", pa.float64()),  # the same values under CleanLearning's name
        ("given_label", pa.int64()),
        ("predicted_label", pa.int64()),
        ("shard", pa.string()),
        ("key", pa.string()),
    ]
)
_NEEDED = ("key", "shard", "label", "label_quality", "osa_weight", "clean", "predicted_label")


def write_issues(rows: RunRows, out: Path, options: Options) -> Written:
    """Write the frame as CSV or Parquet, by the suffix of `out`; samples without a label score are left out.

    The score appears under both of cleanlab's names. An issue is a label that is more likely wrong than right: it is not
    `clean`, or, if a run of both tasks rejected the pair, its `label_quality` is below 1/2.
    """
    if out.suffix not in (".csv", ".parquet"):
        raise ConfigError.of("out", out, "is no name of a cleanlab frame, .csv or .parquet; use issues.csv")
    if options.spreadsheet_safe and out.suffix != ".csv":
        raise ConfigError.of("spreadsheet_safe", True, "is for CSV; use issues.csv")
    if "labels" not in rows.facts["scoring"]["tasks"]:
        raise TableError.of(
            "folder", rows.run.name, "has no label scores; make them: noisegate annotate … --task labels"
        )
    written = unscored = 0
    with whole_file(out) as file, _writer(file, out.suffix) as writer:
        for part in rows.parts(_NEEDED):
            frame = _frame(part)
            for name in ("shard", "key") if options.spreadsheet_safe else ():
                place = frame.column_names.index(name)
                frame = frame.set_column(place, name, escape_formulas(frame[name]))
            writer.write_table(frame)
            written += len(frame)
            unscored += len(part.kept) - len(frame)
        rows.refuse_nothing(written)
    return Written(written, {"no label score": unscored} if unscored else {}, schema=FRAME)


def _frame(part: ShardRows) -> pa.Table:
    known = pc.is_valid(part.kept["label_quality"])
    table = part.kept.filter(known)
    rows = part.start + np.flatnonzero(part.mask)[known.to_numpy()]
    pair_rejected = pc.fill_null(pc.equal(table["osa_weight"], 0.0), False)
    quality = table["label_quality"].cast(pa.float64())
    columns = [
        pa.array(rows, pa.int64()),
        pc.if_else(pair_rejected, pc.less(table["label_quality"], 0.5), pc.invert(table["clean"])),
        quality,
        quality,
        table["label"].cast(pa.int64()),
        table["predicted_label"].cast(pa.int64()),
        table["shard"].cast(pa.string()),
        table["key"],
    ]
    return pa.table(columns, schema=FRAME)


def _writer(file: Any, suffix: str) -> Any:
    if suffix == ".csv":
        return pyarrow.csv.CSVWriter(file, FRAME)
    return pq.ParquetWriter(file, FRAME.with_metadata({"pandas": json.dumps(_pandas())}), compression="zstd")


def _pandas() -> dict[str, Any]:
    """Return the metadata that makes pandas use `row` as the index."""
    words = {"bool": ("bool", "bool"), "int64": ("int64", "int64"), "double": ("float64", "float64")}
    columns = []
    for field in FRAME:
        kind, stored = words.get(str(field.type), ("unicode", "object"))
        columns.append(
            {"name": field.name, "field_name": field.name, "pandas_type": kind, "numpy_type": stored, "metadata": None}
        )
    return {"index_columns": ["row"], "column_indexes": [], "columns": columns, "pandas_version": None}
