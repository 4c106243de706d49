"""Croissant metadata as mlcroissant reads them, and Lance datasets; both compared with the tables."""

import hashlib
import io
import json
import logging
from pathlib import Path
from typing import Any

import lance
import mlcroissant
import pytest
from PIL import Image

from noisegate import read_table
from noisegate.pipeline.export import FORMATS, export
from noisegate.pipeline.settings import DecodeOptions
from tests.commands import called
from tests.errors import refused
from tests.fakes import pairs, picture, write_tar
from tests.jobs import score

FILES = {"keys": "keys.txt", "datacomp": "u.npy", "parquet": "t.parquet", "csv": "t.csv", "jsonl": "t.jsonl",
         "cleanlab": "issues.csv", "shards": "tars", "datasets": "data", "lance": "t.lance"}  # fmt: skip


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards with captions and labels and a broken picture, scored for both tasks; keys are DataComp's uids."""
    folder = tmp_path_factory.mktemp("croissant")
    for shard in range(2):
        members = []
        for number, (name, data) in enumerate(pairs(24, 100 * shard)):
            key = f"{shard:016x}{number // 2:016x}"
            members.append((f"{key}.{name.rpartition('.')[2]}", data))
            if number % 2:
                members.append((f"{key}.cls", str(number // 2 % 3).encode()))
        bad = [
            (f"{'f' * 31}{shard}.png", b"junk"),
            (f"{'f' * 31}{shard}.txt", b"red"),
            (f"{'f' * 31}{shard}.cls", b"0"),
        ]
        write_tar(folder / "s" / f"x-{shard}.tar", [*members, *bad])
    score(folder / "s", folder / "run", options=DecodeOptions(tasks=("pairs", "labels")), k=4)
    for kind, name in FILES.items():
        export(folder / "run", folder / "out" / name, kind, where="status = 'ok'")
    return folder


def metadata(work: Path, kind: str) -> Path:
    target = work / "out" / FILES[kind]
    return target / "croissant.json" if FORMATS[kind].is_folder else target.with_name(f"{target.name}.croissant.json")


def records(work: Path, kind: str) -> list[dict[str, Any]]:
    data = mlcroissant.Dataset(jsonld=str(metadata(work, kind)))
    return [
        {key.partition("/")[2]: value.decode() if isinstance(value, bytes) else value for key, value in record.items()}
        for record in data.records("samples")
    ]


@pytest.mark.parametrize("kind", FORMATS)
def test_every_export_has_metadata_that_mlcroissant_accepts(kind: str, work: Path) -> None:
    logging.getLogger("absl").setLevel(logging.ERROR)  # it recommends a licence, which only the data's owner knows
    data = mlcroissant.Dataset(jsonld=str(metadata(work, kind)))
    assert not data.metadata.issues.errors
    assert data.metadata.name == f"run-{kind}" and "status = 'ok'" in data.metadata.description


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl", "datasets"])
def test_records_are_the_rows_of_the_run(kind: str, work: Path) -> None:
    rows = [row for row in read_table(work / "run").to_pylist() if row["status"] == "ok"]
    found = records(work, kind)
    assert len(found) == len(rows) == 48
    for name in ("key", "shard", "label", "clean"):
        assert [record[name] for record in found] == [row[name] for row in rows]
    assert [record["osa_weight"] for record in found] == pytest.approx([row["osa_weight"] for row in rows])
    if kind == "datasets":
        assert {record["image"].size for record in found} == {Image.open(io.BytesIO(picture("red"))).size}


def test_records_of_other_formats(work: Path) -> None:
    keys = [row["key"] for row in read_table(work / "run", ["key", "status"]).to_pylist() if row["status"] == "ok"]
    assert [record["key"] for record in records(work, "keys")] == keys
    assert [record["key"] for record in records(work, "cleanlab")] == keys
    described = json.loads(metadata(work, "shards").read_text())["distribution"]
    digests = {
        name: hashlib.sha256((work / "out" / "tars" / name).read_bytes()).hexdigest() for name in ("x-0.tar", "x-1.tar")
    }
    assert {node["contentUrl"]: node["sha256"] for node in described} == digests


def test_a_lance_dataset_holds_pictures_and_scores(work: Path) -> None:
    table = lance.dataset(str(work / "out" / "t.lance")).to_table()
    rows = [row for row in read_table(work / "run").to_pylist() if row["status"] == "ok"]
    for name in ("key", "shard", "similarity", "label", "clean"):
        assert table[name].to_pylist() == [row[name] for row in rows]
    assert set(table["caption"].to_pylist()) <= {data.decode() for name, data in pairs(200) if name.endswith("txt")}
    assert all(data.startswith(b"\x89PNG") for data in table["image"].to_pylist())
    assert len(lance.dataset(str(work / "out" / "t.lance")).versions()) == 1


def test_lance_takes_columns_and_is_replaced(work: Path, tmp_path: Path) -> None:
    arguments = ("export", work / "run", "--as", "lance", "--out", "t.lance")
    done = called(*arguments, "--columns", "caption,osa_weight", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["left_out"] == {"not ok": 2}
    assert lance.dataset(str(tmp_path / "t.lance")).schema.names == ["image", "caption", "osa_weight"]
    with refused("out", tmp_path / "t.lance"):
        export(work / "run", tmp_path / "t.lance", "lance")
    export(work / "run", tmp_path / "t.lance", "lance", where="clean", overwrite=True)
    clean = [row for row in read_table(work / "run").to_pylist() if row["clean"]]
    assert lance.dataset(str(tmp_path / "t.lance")).count_rows() == len(clean)
