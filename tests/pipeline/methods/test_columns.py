"""Columns of methods: null where none were made, `rescore --with` on a run, and what holds for all of them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noisegate.pipeline.errors import TableError
from noisegate.pipeline.methods.columns import OneStep, default_temperature
from noisegate.pipeline.methods.gsl import gsl_columns
from noisegate.pipeline.methods.lnc import lnc_columns
from noisegate.pipeline.runs.embeddings import read_embeddings
from noisegate.pipeline.runs.table import (
    COLUMNS,
    METHOD_COLUMNS,
    RunFolder,
    read_metadata,
    read_table,
    table_from,
)
from noisegate.pipeline.runs.where import parse_where
from tests.commands import called
from tests.errors import refused
from tests.jobs import files_of, run_record, stamps, table_facts

from .noisy_pairs import CENTRES, noisy_pairs

METADATA = table_facts(2)


def run_with(folder: Path, tables: dict[str, pa.Table]) -> RunFolder:
    run = RunFolder(folder)
    for stem, table in tables.items():
        run.write_table(stem, table)
    run.write_run(run_record([{"url": f"{s}.tar", "table": s} for s in tables]))
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
    with refused("columns", "lnc_other", TableError):
        read_table(tmp_path, ["lnc_other"])


def test_rules_can_ask_for_them(tmp_path: Path) -> None:
    run_with(tmp_path, {"x": made(lnc_confidence=[0.25, 1.0]), "y": made()})
    rule = parse_where("lnc_confidence > 0.5")
    assert rule.mask(read_table(tmp_path, rule.columns)).tolist() == [False, True, False, False]


# --- all columns ----------------------------------------------------------------------------------------------------------


def test_rows_without_direction_are_left_out_of_everything() -> None:
    images, texts = noisy_pairs()
    images[[2, 40]], texts[50] = 0, np.nan
    left_out = np.array([2, 40, 50])
    kept = np.setdiff1d(np.arange(60), left_out)
    for columns in (lnc_columns, gsl_columns):
        found, without = columns(images, texts, batch=20), columns(images[kept], texts[kept], batch=20)
        for name, values in found.items():
            assert np.isnan(values[left_out]).all(), name
            np.testing.assert_array_equal(values[kept], without[name])
        assert all(np.isnan(values).all() for values in columns(images[:1], texts[:1]).values())
        assert all(len(values) == 0 for values in columns(images[:0], texts[:0]).values())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**16), st.integers(2, 40), st.integers(2, 20))
def test_columns_stay_in_their_range_whatever_the_embeddings(seed: int, count: int, batch: int) -> None:
    rng = np.random.default_rng(seed)
    images, texts = rng.standard_normal((2, count, 5))
    for columns in (lnc_columns, gsl_columns):
        for name, values in columns(images, texts, batch=batch, permutations=2, seed=seed).items():
            known = values[~np.isnan(values)]
            assert (known >= 0).all() and (known <= 1).all(), name


# --- a run ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over embeddings of two files, with a row that has no direction."""
    folder = tmp_path_factory.mktemp("one_step")
    images, texts = noisy_pairs()
    images[7] = 0
    for part, rows in enumerate((slice(0, 35), slice(35, 60))):
        for name, side in (("images", images), ("texts", texts)):
            (folder / name).mkdir(exist_ok=True)
            np.save(folder / name / f"x-{part}.npy", side[rows].astype(np.float32))
    done = called("score-embeddings", "--images", "images", "--texts", "texts", "--out", "tables", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_rescore_with_adds_columns_and_changes_nothing_else(run: Path) -> None:
    folder = RunFolder(run / "tables")
    before = read_table(run / "tables")
    assert before.column_names == ["shard", *COLUMNS]
    done = called("rescore", "tables", "--with", "lnc,gsl", cwd=run)
    assert done.returncode == 0, done.stderr
    assert "gsl: median " in done.stderr
    assert "reconstruction from the paper's supplement" in done.stderr
    after = read_table(run / "tables")
    assert after.select(before.column_names).equals(before)
    kept = [
        np.concatenate([read_embeddings(folder.embeddings(stem), side) for stem in ("x-0", "x-1")])
        for side in ("image", "text")
    ]
    for name, values in (lnc_columns(*kept) | gsl_columns(*kept)).items():
        np.testing.assert_array_equal(after[name].to_numpy(), values)
    assert after["lnc_confidence"][7].as_py() is None
    record = read_metadata(folder.table("x-0"))["one_step"]
    assert {name: record[name]["batch"] for name in record} == {"lnc": 128, "gsl": 128}
    assert "reconstruction" in record["gsl"]["note"]
    assert record == read_metadata(folder.table("x-1"))["one_step"]

    whole, written = files_of(run / "tables"), stamps(run / "tables")
    assert called("rescore", "tables", "--with", "gsl,lnc,lnc", cwd=run).returncode == 0
    assert files_of(run / "tables") == whole
    assert called("rescore", "tables", "--beta", "fixed:0.1", cwd=run).returncode == 0
    assert read_table(run / "tables")["lnc_confidence"].equals(after["lnc_confidence"])
    assert stamps(run / "tables") != written
    checked = called("verify", "tables", "--no-rescore", cwd=run)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    rule = called("export", "tables", "--as", "keys", "--where", "lnc_confidence > 0.5", "--out", "keys.txt", cwd=run)
    assert rule.returncode == 0, rule.stderr
    expected = pc.sum(pc.greater(after["lnc_confidence"], 0.5)).as_py()
    assert len((run / "keys.txt").read_text().split()) == expected > 0


def test_crcl_takes_its_temperature(run: Path) -> None:
    done = called("rescore", "tables", "--with", "crcl", "--temperature", "0.2", cwd=run)
    assert done.returncode == 0, done.stderr
    assert "temperature 0.2" in done.stderr
    record = read_metadata(RunFolder(run / "tables").table("x-0"))["one_step"]
    assert record["crcl"]["temperature"] == 0.2
    assert pc.count(read_table(run / "tables", ["crcl_label"])["crcl_label"]).as_py() == 59


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--with", "lnc,tango"), "with 'tango' is unknown; use some of lnc,crcl,gsl"),
        (("--temperature", "0.1"), "temperature 0.1 is for crcl and negcliploss; add --with crcl"),
        (("--with", "crcl", "--temperature", "0"), "temperature 0.0 cannot divide cosines; use 0.05"),
    ],
)
def test_what_cannot_work_is_said_first(run: Path, words: tuple[str, ...], said: str) -> None:
    before = files_of(run / "tables")
    done = called("rescore", "tables", *words, cwd=run)
    assert done.returncode != 0
    assert said in done.stderr
    assert files_of(run / "tables") == before


def test_images_and_texts_of_two_encoders_have_no_such_columns(tmp_path: Path) -> None:
    np.save(tmp_path / "i.npy", CENTRES.astype(np.float32))
    np.save(tmp_path / "t.npy", CENTRES[:, :9].astype(np.float32))
    words = ("score-embeddings", "--images", "i.npy", "--texts", "t.npy", "--out", "tables")
    assert called(*words, cwd=tmp_path).returncode == 0
    done = called("rescore", "tables", "--with", "lnc", cwd=tmp_path)
    assert done.returncode != 0
    assert "with 'lnc' compares pairs of one width, and tables has 16 and 9" in done.stderr


def test_the_temperature_is_that_of_the_kind_of_model() -> None:
    clip = {"model": {"model": "ViT-B-32", "pretrained": "openai"}}
    assert default_temperature(clip) == 0.01
    for model in (None, {"model": "embedded", "pretrained": None}, {"model": "python:x:Y", "pretrained": "z"}):
        assert default_temperature({"model": model}) == 0.05


@pytest.mark.parametrize(("setting", "value"), [("batch", 1), ("permutations", 0), ("temperature", -1.0)])
def test_settings_check_themselves(setting: str, value: float) -> None:
    with refused(setting, value):
        OneStep(**{setting: value})  # type: ignore[arg-type]
    with refused("with", "osa"):
        OneStep(("lnc", "osa"))
