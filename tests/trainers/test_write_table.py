"""What trainings learnt, as weight tables: read back, queried with DuckDB, verified and trained on again."""

import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from noisegate import TrainResult, train
from noisegate.pipeline.inspect.verify import verify
from noisegate.pipeline.runs.table import RunFolder, read_metadata, read_table, replace_columns
from noisegate.trainers.write_table import check_write_table, write_table
from tests.commands import called
from tests.errors import refused
from tests.trainers.runs import TARGET, settings

pytestmark = pytest.mark.usefixtures("one_thread")
KEPT = ("key", "index", "status", "image_sha256", "text_sha256", "label")


def crcl(scored: Path, out: Path, **changes: Any) -> TrainResult:
    how = {"name": "crcl", "pieces": [2], "freeze": 1, "temperature": 0.3}
    plain: dict[str, Any] = {"method": how, "loop__evaluate_every": 0}
    return train(settings(scored, out, "crcl", **{**plain, **changes}), quiet=True)


def by_key(folder: Path, *columns: str) -> dict[str, Any]:
    table = read_table(folder, ["key", *columns])
    return {row["key"]: tuple(row[name] for name in columns) for row in table.to_pylist()}


def test_a_copy_of_the_trainings_tables_with_the_methods_columns(scored: Path, tmp_path: Path) -> None:
    result = crcl(scored, tmp_path / "runs")
    out = write_table(result, tmp_path / "learnt")
    before, after = read_table(scored / "tables"), read_table(out)
    for name in ("shard", *KEPT, "similarity", "osa_weight"):
        assert after[name].to_pylist() == before[name].to_pylist()
    label = result.sample_columns["crcl_label"]
    np.testing.assert_array_equal(after["crcl_label"].to_numpy(), label)
    assert after["clean"].to_pylist() == (label >= 0.1).tolist()
    assert after["clean_probability"].null_count == 160, "another scorer's probability would not go with this clean"
    run = RunFolder(out)
    metadata = read_metadata(run.table(next(run.stems())))
    assert metadata["method"]["name"] == "crcl"
    assert metadata["method"]["run"] == str(result.folder)
    assert metadata["method"]["columns"] == ["clean", "crcl_label"]
    assert metadata["method"]["settings"]["pieces"] == [2]
    assert metadata["beta"]["value"] == 0.4, "of the copied weights"
    recorded = run.read_run()
    assert recorded is not None
    assert recorded["method"]["best"] == result.best
    assert verify(out, trust=True).ok
    rows = duckdb.sql(f"select count(*), count(crcl_label), min(crcl_label) from '{out}/*.parquet'").fetchall()
    assert rows == [(160, 160, pytest.approx(float(label.min())))]
    again = train(settings(scored, tmp_path / "runs", "osa", data__table=str(out), loop__epochs=1,
                           loop__evaluate_every=0, method={"name": "osa", "weight": "crcl_label"}), quiet=True)  # fmt: skip
    assert again.steps == 5, "a training can go by what another one learnt"


def test_a_reconstruction_is_marked_in_its_tables(scored: Path, tmp_path: Path) -> None:
    how = {"name": "gsl", "warmup": 1, "loss": "info_nce"}
    result = train(settings(scored, tmp_path / "runs", "gsl", method=how, loop__evaluate_every=0), quiet=True)
    run = RunFolder(write_table(result, tmp_path / "learnt"))
    assert "reconstruction" in read_metadata(run.table(next(run.stems())))["method"]["note"]


def test_rows_that_were_not_trained_on_have_no_value(scored: Path, tmp_path: Path) -> None:
    result = crcl(scored, tmp_path / "runs", data__where="similarity > 0.2", data__batch_size=16)
    out = write_table(result, tmp_path / "learnt")
    found = read_table(out, ["similarity", "crcl_label", "clean"])
    seen = pc.greater(found["similarity"], 0.2).to_pylist()
    assert 16 < sum(seen) < 160
    for name in ("crcl_label", "clean"):
        assert found[name].is_valid().to_pylist() == seen


def test_rows_whose_repaired_label_is_unknown_have_no_value(scored: Path, tmp_path: Path) -> None:
    run = RunFolder(shutil.copytree(scored / "tables", tmp_path / "tables"))
    for stem in run.stems():
        table = pq.read_table(run.table(stem))
        repaired = pa.array([None if i % 5 == 0 else label for i, label in enumerate(table["label"].to_pylist())])
        columns = {"refined_label": repaired.cast(table.schema.field("refined_label").type)}
        run.write_table(stem, replace_columns(table, columns, read_metadata(run.table(stem))))
    target = {**TARGET, "classes": str(scored / "clean" / "classes.txt")}
    config = settings(
        scored, tmp_path / "runs", "aum", target=target, task={"name": "classification"}, loop__epochs=4,
        loop__evaluate_every=0, data__table=str(run.path), data__label_column="refined_label",
    )  # fmt: skip
    found = read_table(write_table(train(config, quiet=True), tmp_path / "learnt"), ["refined_label", "clean", "aum"])
    unknown = [row["refined_label"] is None for row in found.to_pylist()]
    assert any(unknown) and not all(unknown)
    assert [row["clean"] is None for row in found.to_pylist()] == unknown
    assert [row["aum"] is None for row in found.to_pylist()] == unknown


def test_without_tables_the_shards_give_keys_and_failures(scored: Path, tmp_path: Path) -> None:
    """From shards alone, one sample of which has no picture that can be read."""
    shards = tmp_path / "shards"
    shards.mkdir()
    for number, path in enumerate(sorted((scored / "noisy").glob("*.tar"))):
        with tarfile.open(path) as old, tarfile.open(shards / path.name, "w") as new:
            for place, member in enumerate(old):
                data = old.extractfile(member)
                assert data is not None
                content = data.read()
                if number == 1 and place == 0:
                    assert member.name.endswith(".png")
                    content = b"no picture"
                    member.size = len(content)
                new.addfile(member, io.BytesIO(content))
    result = crcl(scored, tmp_path / "runs", data__shards=[str(shards / "*.tar")], data__table=None)
    out = write_table(result, tmp_path / "learnt")
    found = read_table(out)
    original = read_table(scored / "tables")
    assert found["key"].to_pylist() == original["key"].to_pylist()
    assert found["text_sha256"].to_pylist() == original["text_sha256"].to_pylist()
    np.testing.assert_array_equal(found["crcl_label"].to_numpy()[:40], result.sample_columns["crcl_label"][:40])
    row = found.slice(40, 1).to_pylist()[0]
    assert (row["status"], row["crcl_label"], row["clean"]) == ("bad_image", None, None)
    assert found["crcl_label"].null_count == 1
    assert found["similarity"].null_count == 160, "no frozen model looked at them"
    checked = verify(out, trust=True)
    assert checked.ok and checked.drift.samples == 0
    assert "nothing can be scored again" in checked.notes[0]
    done = called("show", out, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    select = train(settings(scored, tmp_path / "runs", "select", data__shards=[str(shards / "*.tar")],
                            data__table=str(out), loop__epochs=1, loop__evaluate_every=0,
                            method={"name": "select", "rule": "crcl_label > 0"}), quiet=True)  # fmt: skip
    assert select.steps == 159 // 32


def test_tangos_columns_are_the_contracts_own(scored: Path, tmp_path: Path) -> None:
    target = {**TARGET, "classes": str(scored / "clean" / "classes.txt")}
    result = train(settings(scored, tmp_path / "runs", "tango", task={"name": "classification"}, target=target,
                            loop__evaluate_every=0), quiet=True)  # fmt: skip
    out = write_table(result, tmp_path / "learnt")
    found, columns = read_table(out), result.sample_columns
    assert found.schema.names == read_table(scored / "tables").schema.names, "nothing beside the contract"
    for name in ("clean_tango", "clean", "refined_label"):
        assert found[name].to_pylist() == columns[name].tolist()
    for name in ("consistency", "knn_consistency", "anchor_consistency", "refined_confidence"):
        np.testing.assert_allclose(found[name].to_numpy(), columns[name])
    assert verify(out, trust=True).ok


def test_the_command_writes_and_refuses_before_it_trains(scored: Path, tmp_path: Path) -> None:
    words = ("train", "--method", "crcl", "--table", scored / "tables", "--shards", scored / "noisy" / "*.tar",
             "--epochs", 1, "--batch-size", 32, "--device", "cpu", "--out", tmp_path / "runs", "--json", "--quiet",
             "--set", "loop.evaluate_every=0", "--set", f"target={json.dumps(TARGET)}", "--set", "method.freeze=0")  # fmt: skip
    done = called(*words, "--write-table", tmp_path / "learnt", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tables"] == str(tmp_path / "learnt")
    assert read_table(tmp_path / "learnt", ["crcl_label"])["crcl_label"].null_count == 0
    again = called(*words, "--write-table", tmp_path / "learnt", cwd=tmp_path)
    assert again.returncode != 0
    assert "learnt' holds a run already; choose another folder" in again.stderr
    assert len(list((tmp_path / "runs").iterdir())) == 1, "nothing was trained for it"


def test_a_method_that_learns_nothing_of_samples_says_so(scored: Path, tmp_path: Path) -> None:
    with refused("method.name", "baseline"):
        check_write_table(tmp_path / "learnt", "baseline")
    result = train(settings(scored, tmp_path, "baseline", loop__epochs=1, loop__evaluate_every=0), quiet=True)
    with refused("method.name"):
        write_table(result, tmp_path / "learnt")
    assert not (tmp_path / "learnt").exists()


def test_what_one_network_divided_another_selects_by(scored: Path, tmp_path: Path) -> None:
    """DivideMix's division of pairs in two stages (LNC, Table 4): the division of one run, then plain training on its half."""
    how = {"name": "lnc", "warmup": 1, "momentum_weight": 0, "abandon": 0, "rectify": False}
    divided = train(settings(scored, tmp_path, method=how, loop__evaluate_every=0, data__table=None), quiet=True)
    out = write_table(divided, tmp_path / "divided")
    clean = divided.sample_columns["lnc_confidence"] > 0.5
    assert 0 < clean.sum() < len(clean)
    rule = {"name": "select", "rule": "lnc_confidence > 0.5"}
    tree = settings(scored, tmp_path, method=rule, loop__epochs=1, loop__evaluate_every=0, data__table=str(out))
    tree["data"]["batch_size"] = 2
    assert train(tree, quiet=True).steps == clean.sum() // 2
    with refused("method.rule", "clean") as caught:
        train({**tree, "method": {"name": "select"}}, quiet=True)
    assert str(caught.value).endswith("fill it with: noisegate annotate SHARDS --out TABLE")
