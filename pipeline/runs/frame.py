"""Convert a run, or any table of scores, to a pandas DataFrame."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from noisegate.pipeline.errors import ConfigError

from .table import drop_empty, read_table

if TYPE_CHECKING:
    import pandas

_HASHES = ("image_sha256", "text_sha256")


def read_frame(
    folder: str | Path, columns: Sequence[str] | None = None, *, captions: bool = False
) -> "pandas.DataFrame":
    """Read all rows of a run as a pandas DataFrame, one per sample, with the column `shard` in front.

    Without `columns`: all columns with a value, except the digests. `captions` adds the column `caption`, read from the shards.
    Texts are strings, class numbers are Int32 and verdicts are boolean (both may be missing), digests are hex. Raises
    TableError if the folder holds no finished run, MismatchError if captions have changed since they were scored.
    """
    table = read_table(folder, columns, captions=captions)
    if columns is None:
        table = drop_empty(table.drop_columns([name for name in _HASHES if name in table.column_names]))
    return to_frame(table)


def to_frame(table: pa.Table) -> "pandas.DataFrame":
    """Make a DataFrame in which missing numbers and verdicts stay missing, texts are strings and digests are hex."""
    try:
        pandas: Any = import_module("pandas")
    except ImportError as error:
        raise ConfigError("a DataFrame needs pip install pandas", "pandas") from error
    for place, field in enumerate(table.schema):
        column = table.column(place)
        if pa.types.is_dictionary(field.type):
            table = table.set_column(place, field.name, column.cast(field.type.value_type))
        elif pa.types.is_list(field.type):
            table = table.set_column(place, field.name, column.cast(pa.list_(pa.string())))
        elif pa.types.is_fixed_size_binary(field.type):
            texts = [None if digest is None else digest.hex() for digest in column.to_pylist()]
            table = table.set_column(place, field.name, pa.array(texts, pa.string()))
    kinds = {pa.int32(): pandas.Int32Dtype(), pa.int64(): pandas.Int64Dtype(), pa.bool_(): pandas.BooleanDtype()}
    return table.to_pandas(types_mapper=kinds.get)  # type: ignore[no-any-return]
