"""Columns of methods in weight tables: there where they were made, null elsewhere, and never in the way of old tables."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from noisegate.pipeline.errors import TableError
from noisegate.pipeline.runs.method_columns import METHOD_COLUMNS
from noisegate.pipeline.runs.table import COLUMNS, VERSION, RunFolder, read_metadata, read_table, table_from
from noisegate.pipeline.runs.where import parse_where

METADATA = {"table_version": VERSION}


def run_with(folder: Path, tables: dict[str, pa.Table]) -> RunFolder:
    run = RunFolder(folder)
    for stem, table in tables.items():
        run.write_table(stem, table)
    run.write_run({"table_version": VERSION, "shards": [{"url": f"{s}.tar", "table": s} for s in tables]})
    return run


def made(**columns: object) -> pa.Table:
    return table_from({"key": ["a", "b"], "index": [0, 1], **columns}, METADATA)


def test_names_say_their_method_and_clash_with_nothing() -> None:
    assert not set(METHOD_COLUMNS) & set(COLUMNS)
    for name, (kind, meaning) in METHOD_COLUMNS.items():
        assert meaning and pa.types.is_primitive(kind)
        if name.endswith("_sd"):
            assert name.removesuffix("_sd") in METHOD_COLUMNS


def test_a_table_without_them_is_as_it_always_was() -> None:
    assert made().schema.names == list(COLUMNS)
    assert made(lnc_confidence=None).schema.names == list(COLUMNS)


def test_they_follow_the_contract_and_come_back_to_the_byte(tmp_path: Path) -> None:
    table = made(gsl_label=np.array([np.nan, 0.5]), lnc_confidence=[0.25, 1.0])
    assert table.schema.names == [*COLUMNS, "lnc_confidence", "gsl_label"]
    assert table["gsl_label"].to_pylist() == [None, 0.5]
    run = run_with(tmp_path, {"x": table})
    before = run.table("x").read_bytes()
    again = run.read("x")
    run.write_table("x", table_from({name: again[name] for name in again.column_names}, read_metadata(run.table("x"))))
    assert run.table("x").read_bytes() == before


def test_tables_that_lack_them_read_as_null(tmp_path: Path) -> None:
    run = run_with(tmp_path, {"x": made(lnc_confidence=[0.25, 1.0]), "y": made()})
    assert run.method_columns() == ["lnc_confidence"]
    whole = read_table(tmp_path)
    assert whole.column_names == ["shard", *COLUMNS, "lnc_confidence"]
    assert whole["lnc_confidence"].to_pylist() == [0.25, 1.0, None, None]
    assert read_table(tmp_path, ["gsl_label", "key"]).column_names == ["shard", "gsl_label", "key"]
    assert read_table(tmp_path, ["crcl_label"])["crcl_label"].to_pylist() == [None] * 4
    with pytest.raises(TableError, match="unknown column 'lnc_other'"):
        read_table(tmp_path, ["lnc_other"])


def test_rules_can_ask_for_them(tmp_path: Path) -> None:
    run_with(tmp_path, {"x": made(lnc_confidence=[0.25, 1.0]), "y": made()})
    rule = parse_where("lnc_confidence > 0.5")
    assert rule.mask(read_table(tmp_path, rule.columns)).tolist() == [False, True, False, False]
