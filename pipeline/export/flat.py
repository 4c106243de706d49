"""One flat file: Parquet, CSV or JSON lines of chosen columns, or a list of keys."""

import json
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.runs.captions import CAPTION, read_caption
from noisegate.pipeline.system.output_files import whole_file

from .rows import Options, RunRows, Written, plain_type

GROUP_ROWS = 65_536
GROUP_BYTES = 32_000_000
_ROWS_WITH_CAPTIONS = 1_000
_FORMULA = (
    r"\A[=+\-@\t\r]"  # a spreadsheet runs a cell that begins with one of these; an apostrophe before it prevents that
)


def write_keys(rows: RunRows, out: Path, options: Options) -> Written:
    """Write one key per line, or `shard/key`, in the order of the tables."""
    written = 0
    with whole_file(out) as file:
        for part in rows.parts(["key"]):
            keys = part.repeated()["key"].to_pylist()
            for key in keys:
                if "\n" in key or "\r" in key:
                    raise ConfigError.of("key", key, f"of {part.stem} holds a line break; export --as jsonl instead")
                file.write((f"{part.stem}/{key}\n" if options.with_shard else f"{key}\n").encode())
            written += len(keys)
        rows.refuse_nothing(written)
    return Written(written)


def write_flat(rows: RunRows, out: Path, options: Options, kind: str) -> Written:
    """Write all kept rows to one file, with one shard in memory at a time.

    The columns may include `caption`, which is read from the shards. Null is null in Parquet and JSON and an empty field in
    CSV; digests are hex in CSV and JSON; floats have enough digits to restore the float32 value.
    """
    names = rows.choose(options.columns)
    if CAPTION in names:
        if rows.recipe is not None and rows.recipe.repeats:
            raise ConfigError(
                "columns: a recipe that repeats rows has no captions; leave out caption", "columns", CAPTION
            )
        rows.need_shards("caption")
    schema = pa.schema([(name, plain_type(name)) for name in names])
    write = {"parquet": _write_parquet, "csv": _write_csv, "jsonl": _write_jsonl}[kind]
    if options.spreadsheet_safe:
        write = partial(_write_csv, safe=True)
    with whole_file(out) as file:
        metadata = {"noisegate.export": json.dumps(options.record)}
        written = write(file, schema.with_metadata(metadata), _tables(rows, schema))
        rows.refuse_nothing(written)
    return Written(written, schema=schema)


def _tables(rows: RunRows, schema: pa.Schema) -> Iterator[pa.Table]:
    for part in rows.parts(schema.names):
        kept = part.repeated()
        plain = pa.table({name: kept[name].cast(plain_type(name)) for name in kept.column_names})
        if CAPTION not in schema.names:
            yield plain.select(schema.names)
            continue
        captions: list[str | None] = []
        start = 0
        for place, raw in part.samples() if len(plain) else ():
            captions.append(read_caption(raw, rows.text_field))
            if len(captions) == _ROWS_WITH_CAPTIONS or place == len(plain) - 1:
                some = plain.slice(start, len(captions)).append_column(CAPTION, pa.array(captions, pa.string()))
                yield some.select(schema.names)
                captions, start = [], place + 1


def _write_parquet(file: Any, schema: pa.Schema, tables: Iterable[pa.Table]) -> int:
    written = 0
    waiting: list[pa.Table] = []
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for table in tables:
            waiting.append(table)
            written += len(table)
            if sum(map(len, waiting)) >= GROUP_ROWS or sum(part.nbytes for part in waiting) >= GROUP_BYTES:
                writer.write_table(pa.concat_tables(waiting).replace_schema_metadata(schema.metadata))
                waiting = []
        if waiting:
            writer.write_table(pa.concat_tables(waiting).replace_schema_metadata(schema.metadata))
    return written


def escape_formulas(texts: Any) -> Any:
    """Put an apostrophe before each text that a spreadsheet would run as a formula.

    >>> escape_formulas(pa.array(["=1+1", "a=b", None])).to_pylist()
    ["'=1+1", 'a=b', None]
    """
    return pc.replace_substring_regex(texts, _FORMULA, r"'\0")


def _write_csv(file: Any, schema: pa.Schema, tables: Iterable[pa.Table], safe: bool = False) -> int:
    written = 0
    as_text = {name for name in schema.names if pa.types.is_list(schema.field(name).type)}
    as_hex = {name for name in schema.names if pa.types.is_fixed_size_binary(schema.field(name).type)}
    plain = pa.schema([(f.name, pa.string() if f.name in as_text | as_hex else f.type) for f in schema])
    with pyarrow.csv.CSVWriter(file, plain) as writer:
        for table in tables:
            columns = []
            for name in schema.names:
                values = table[name]
                if name in as_text:
                    values = [None if v is None else json.dumps(v, ensure_ascii=False) for v in values.to_pylist()]
                elif name in as_hex:
                    values = [None if v is None else v.hex() for v in values.to_pylist()]
                elif safe and pa.types.is_string(schema.field(name).type):
                    values = escape_formulas(values)
                columns.append(values)
            writer.write_table(pa.table(columns, schema=plain))
            written += len(table)
    return written


def _write_jsonl(file: Any, schema: pa.Schema, tables: Iterable[pa.Table]) -> int:
    written = 0
    names = [json.dumps(name) for name in schema.names]
    for table in tables:
        columns = [json_values(table[name]) for name in schema.names]
        for values in zip(*columns, strict=True):
            line = ", ".join(f"{name}: {value}" for name, value in zip(names, values, strict=True))
            file.write(f"{{{line}}}\n".encode())
        written += len(table)
    return written


def json_values(column: pa.ChunkedArray) -> list[str]:
    """Convert each value to JSON text: shortest floats, digests in hex, null for nan and infinity.

    >>> json_values(pa.chunked_array([pa.array([0.1, None, float("inf")], pa.float32())]))
    ['0.1', 'null', 'null']
    >>> json_values(pa.chunked_array([["a\\n", 'b"']]))
    ['"a\\\\n"', '"b\\\\""']
    """
    if pa.types.is_floating(column.type):
        values = column.to_numpy()
        return [
            text if ok else "null" for text, ok in zip(values.astype(str).tolist(), np.isfinite(values), strict=True)
        ]
    if pa.types.is_boolean(column.type) or pa.types.is_integer(column.type):
        texts: list[str] = pc.fill_null(column.cast(pa.string()), "null").to_pylist()
        return texts
    plain = ((v.hex() if isinstance(v, bytes) else v) for v in column.to_pylist())
    return [json.dumps(v, ensure_ascii=False) for v in plain]
