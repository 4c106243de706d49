"""The weight table: its contract, how it is written, and what is said when it is not one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noisegate.pipeline.errors import TableError
from noisegate.pipeline.runs.digests import is_unchanged
from noisegate.pipeline.runs.table import COLUMNS, VERSION, RunFolder, read_metadata, read_table, table_from
from tests.errors import refused
from tests.jobs import run_record, table_facts

METADATA = table_facts(2)


def small(**columns: Any) -> pa.Table:
    return table_from({"key": ["a", "b"], "index": [0, 1], **columns}, METADATA)


def run_with(folder: Path, tables: dict[str, pa.Table], **facts: Any) -> RunFolder:
    run = RunFolder(folder)
    for stem, table in tables.items():
        run.write_table(stem, table)
    shards = [{"table": stem, "url": f"{stem}.tar"} for stem in tables]
    run.write_run(run_record(shards, **{"finished": True, **facts}))
    return run


def test_the_contract() -> None:
    """Readers outside rely on these names and types; a change needs a new table version."""
    word = pa.dictionary(pa.int32(), pa.string())
    assert VERSION == 1
    assert {name: kind for name, (kind, _) in COLUMNS.items()} == {
        "key": pa.string(),
        "index": pa.int32(),
        "status": word,
        "error": pa.string(),
        "image_sha256": pa.binary(32),
        "text_sha256": pa.binary(32),
        "similarity": pa.float32(),
        "osa_weight": pa.float32(),
        "clean_probability": pa.float32(),
        "label": pa.int32(),
        "knn_consistency": pa.float32(),
        "anchor_consistency": pa.float32(),
        "consistency": pa.float32(),
        "probe_consistency": pa.float32(),
        "label_quality": pa.float32(),
        "neighbourhood": pa.float32(),
        "pair_quality": pa.float32(),
        "clean": pa.bool_(),
        "clean_tango": pa.bool_(),
        "predicted_label": pa.int32(),
        "predicted_confidence": pa.float32(),
        "refined_label": pa.int32(),
        "refined_confidence": pa.float32(),
        "flags": pa.list_(word),
    }


def test_columns_not_given_are_null_and_nan_becomes_null() -> None:
    table = small(similarity=np.array([0.25, np.nan], np.float32), flags=[["duplicate_key"], []])
    assert table.schema.names == list(COLUMNS)
    assert table["similarity"].to_pylist() == [0.25, None]
    assert table["osa_weight"].null_count == table["label"].null_count == 2
    assert table["flags"].to_pylist() == [["duplicate_key"], []]


def test_metadata_survive_the_file(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    metadata = {**METADATA, "beta": {"value": 0.1 + 0.2, "mode": "auto", "reason": "β ± 1"}, "name": "x\udcff.tar"}
    run.write_table("x", table_from({"key": ["a"]}, metadata))
    assert read_metadata(run.table("x")) == metadata


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("shard", {"rows": 2}, "shard.name is missing"),
        ("shard", {**METADATA["shard"], "rows": "2"}, "shard.rows is '2', not a count"),
        ("shard", {**METADATA["shard"], "damage": ["x"]}, "shard.damage is"),
        ("scorer", None, "scorer is not an object"),
        ("scorer", {**METADATA["scorer"], "extra": 1}, "scorer.extra is unknown"),
        ("reading", [], "reading is not an object"),
        ("beta", {"value": "0.2", "mode": "auto"}, "beta.value is '0.2'"),
        ("calibration", 7, "calibration is '7'"),
        ("neighbourhood", {"alone": 1}, "neighbourhood.calibration is missing"),
        ("pair_quality", {"size": -1}, "pair_quality.seed is missing"),
        ("labels", "all", "labels is 'all'"),
    ],
)
def test_metadata_of_a_table_from_elsewhere(tmp_path: Path, name: str, value: Any, problem: str) -> None:
    run = RunFolder(tmp_path)
    run.write_table("x", table_from({"key": ["a", "b"]}, {**METADATA, name: value}))
    with refused("table", run.table("x"), TableError) as raised:
        read_metadata(run.table("x"))
    assert problem in str(raised.value)


@pytest.mark.parametrize("change", ["missing", "int64", "string"])
def test_columns_of_a_table_from_elsewhere(tmp_path: Path, change: str) -> None:
    run = run_with(tmp_path, {"x": small(osa_weight=[0.1, None])})
    table = small(osa_weight=[0.1, None])
    place = table.column_names.index("osa_weight")
    other = {"int64": pa.array([1, 2]), "string": pa.array(["=1", None])}.get(change)
    table = table.remove_column(place) if other is None else table.set_column(place, "osa_weight", other)
    pq.write_table(table, run.table("x"))
    for columns in (None, ["key", "osa_weight"]):
        with refused("table", run.table("x"), TableError) as raised:
            run.read("x", columns)
        assert "osa_weight" in str(raised.value)
    assert run.read("x", ["key"]).num_rows == 2


def test_a_table_that_was_read_can_be_changed_and_written_again(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write_table("x", small(status=["ok", "no_text"]))
    before = read_metadata(run.table("x"))
    run.write_table("x", run.read("x").slice(1))
    assert is_unchanged(run.table("x"))
    assert read_metadata(run.table("x")) == before


def test_a_table_read_and_written_again_has_the_same_bytes(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write_table("x", small(status=["ok", "no_text"], flags=[[], ["duplicate_key"]]))
    before = run.table("x").read_bytes()
    table = run.read("x")
    run.write_table("x", table_from({name: table[name] for name in table.column_names}, read_metadata(run.table("x"))))
    assert run.table("x").read_bytes() == before


def test_read_table_joins_shards_in_the_runs_order(tmp_path: Path) -> None:
    tables = {
        "b": small(status=["ok", "no_text"], flags=[["duplicate_key"], []]),
        "a": small(status=["bad_image", "ok"], flags=[["no_label", "duplicate_key"], None]),
        "empty": table_from({"key": []}, METADATA),
    }
    run_with(tmp_path, tables)
    table = read_table(tmp_path)
    assert table.schema.names == ["shard", *COLUMNS]
    assert table["shard"].to_pylist() == ["b", "b", "a", "a"]
    assert table["status"].to_pylist() == ["ok", "no_text", "bad_image", "ok"]
    assert table["flags"].to_pylist() == [["duplicate_key"], [], ["no_label", "duplicate_key"], None]
    assert table.combine_chunks()["status"].num_chunks <= 1


@pytest.mark.parametrize("columns", [["index", "key"], ["shard", "key"], ["shard"], []])
def test_read_table_reads_what_is_asked_for(tmp_path: Path, columns: list[str]) -> None:
    run_with(tmp_path, {"a": small()})
    table = read_table(tmp_path, columns)
    assert table.column_names == ["shard", *(name for name in columns if name != "shard")]
    assert len(table) == 2


def test_read_table_says_what_is_wrong(tmp_path: Path) -> None:
    with refused("run", tmp_path, TableError):
        read_table(tmp_path)
    with refused("run", tmp_path / "missing", TableError):
        read_table(tmp_path / "missing")
    file = tmp_path / "file.parquet"
    file.write_text("x")
    with refused("run", file, TableError):
        read_table(file)
    run = run_with(tmp_path, {})
    with refused("run", tmp_path, TableError):
        read_table(tmp_path)
    run_with(tmp_path, {"a": small()})
    with refused("columns", "weight", TableError):
        read_table(tmp_path, ["weight"])
    run.table("a").write_bytes(run.table("a").read_bytes()[:-20])
    with refused("table", run.table("a"), TableError):
        read_table(tmp_path)


def test_an_unfinished_run_is_not_read_as_if_it_were_done(tmp_path: Path) -> None:
    run_with(tmp_path, {"a": small()}, finished=False)
    with refused("run", tmp_path, TableError) as error:
        read_table(tmp_path)
    assert "not finished" in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"table_version": 2}', "\x00"])
def test_a_run_file_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "_run.json").write_text(text)
    with refused("run", tmp_path, TableError):
        RunFolder(tmp_path).read_run()


def test_only_whole_tables_of_this_version_are_tables(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"")
    with refused("table", path, TableError):
        read_metadata(path)
    pq.write_table(pa.table({"a": [1]}), path)
    with refused("table", path, TableError):
        read_metadata(path)
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata({"noisegate.table_version": "2"}), path)
    with refused("table", path, TableError):
        read_metadata(path)
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata({"noisegate.table_version": "{"}), path)
    with refused("table", path, TableError):
        read_metadata(path)


def test_the_run_file_is_json_that_others_can_read(tmp_path: Path) -> None:
    run_with(tmp_path, {}, name="β \udcff")
    assert json.loads((tmp_path / "_run.json").read_bytes().decode())["name"] == "β \udcff"


def test_tables_of_earlier_releases_lack_a_column_and_are_read(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    old = small(label=[1, 2]).drop_columns(["predicted_label", "predicted_confidence"])
    run.write_table("x", old)
    assert run.read("x", ["label", "predicted_label"]).to_pydict() == {"label": [1, 2], "predicted_label": [None, None]}
    assert run.read("x", ["predicted_confidence"]).to_pydict() == {"predicted_confidence": [None, None]}
