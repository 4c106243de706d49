"""Rewritten shards read by webdataset and tar, and the folder for Hugging Face `datasets` read by `datasets`."""

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import webdataset
from PIL import Image

from noisegate import read_table
from noisegate.pipeline.export import export
from noisegate.pipeline.export.pictures import GROUP_ROWS
from noisegate.pipeline.export.shards import parse_added_columns
from tests.commands import ROOT
from tests.errors import refused
from tests.fakes import Member, pairs, picture, tar_bytes, write_tar
from tests.jobs import files_of, score

LONG = "deep/" * 30 + "name"


def members_of(path: Path) -> list[Member]:
    with tarfile.open(path) as tar:
        return [(member.name, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]


def samples_of(*paths: Path) -> list[dict[str, Any]]:
    urls = [str(path) for path in paths]
    return list(webdataset.WebDataset(urls, shardshuffle=False))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards with parts that scoring never reads, names too long for a plain tar header, and failures."""
    folder = tmp_path_factory.mktemp("shards")
    more: list[Member] = [
        (f"{LONG}.png", picture("red")),
        (f"{LONG}.txt", "赤, red".encode()),
        (f"{LONG}.seg.npy", bytes(range(256)) * 5),
        ("sub/one.JPG", picture("blue", kind="JPEG")),
        ("sub/one.json", b'{"caption": "blue", "n": 1.50, "nested": {"a": [1]}}'),
        ("odd/two.png", picture("green")),
        ("odd/two.txt", b"green"),
        ("odd/two.json", b"not json"),
        ("bad.png", b"junk"),
        ("bad.txt", b"red"),
    ]
    write_tar(folder / "s" / "x-00.tar", [*pairs(5), *more])
    write_tar(folder / "s" / "x-01.tar", pairs(4, 10))
    write_tar(folder / "s" / "x-02.tar", pairs(3, 20))
    score(folder / "s", folder / "run")
    return folder


# --- shards -------------------------------------------------------------------------------------------------------------
def test_kept_samples_come_through_byte_for_byte_in_order(work: Path, tmp_path: Path) -> None:
    rule = "index in (1, 3, 5, 6, 8) and shard <> 'x-02'"
    done = export(work / "run", tmp_path / "kept", "shards", where=rule)
    before = samples_of(work / "s" / "x-00.tar", work / "s" / "x-01.tar")
    after = samples_of(tmp_path / "kept" / "x-00.tar", tmp_path / "kept" / "x-01.tar")
    wanted = [before[i] for i in (1, 3, 5, 6, 8, 10, 12)]
    assert len(after) == 7

    def parts(sample: dict[str, Any]) -> list[tuple[str, Any]]:
        return [(name, data) for name, data in sample.items() if name not in ("__url__", "__local_path__")]

    assert [parts(sample) for sample in after] == [parts(sample) for sample in wanted]
    assert after[2]["seg.npy"] == bytes(range(256)) * 5
    assert (done.rows, done.kept, done.written, done.empty_shards) == (16, 7, 7, ["x-02"])
    assert [Path(path).name for path in done.files] == ["x-00.tar", "x-01.tar"]
    assert done.bytes == sum(Path(path).stat().st_size for path in done.files)
    record = json.loads((tmp_path / "kept" / "_export.json").read_text())
    assert (record["as"], record["where"], record["written"]) == ("shards", rule, 7)


def test_shards_are_whole_tars_and_the_same_each_time(work: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        export(work / "run", tmp_path / name, "shards")
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    made = (tmp_path / "one" / "x-01.tar").read_bytes()
    assert made == tar_bytes(pairs(4, 10))  # as tarfile itself would pack them
    for path in (tmp_path / "one").glob("*.tar"):
        subprocess.run(["tar", "-tf", path], check=True, capture_output=True)
    assert [name for name, _ in members_of(tmp_path / "one" / "x-00.tar")][10:14] == [
        f"{LONG}.png", f"{LONG}.txt", f"{LONG}.seg.npy", "sub/one.jpg"
    ]  # fmt: skip


def test_rewritten_shards_score_as_before(work: Path, tmp_path: Path) -> None:
    export(work / "run", tmp_path / "kept", "shards", where="osa_weight > 0")
    score(tmp_path / "kept", tmp_path / "again")
    names = ["shard", "key", "similarity", "image_sha256", "text_sha256"]
    before = [row for row in read_table(work / "run").to_pylist() if (row["osa_weight"] or 0) > 0]
    assert read_table(tmp_path / "again", names).to_pylist() == [{n: row[n] for n in names} for row in before]


def test_columns_go_into_the_json(work: Path, tmp_path: Path) -> None:
    add = parse_added_columns("osa_weight, w=similarity, flags,clean ,label")
    done = export(work / "run", tmp_path / "kept", "shards", where="shard = 'x-00'", add_columns=add)
    assert done.left_out == {"json that cannot be read": 1}
    assert done.written == done.kept - 1 == 8
    rows = {row["key"]: row for row in read_table(work / "run").to_pylist() if row["shard"] == "x-00"}
    for sample in samples_of(tmp_path / "kept" / "x-00.tar"):
        record, row = json.loads(sample["json"]), rows[sample["__key__"]]
        for field, column in add.items():
            value = record[field]
            assert (np.float32(value) if isinstance(value, float) else value) == row[column]
        if sample["__key__"] == "sub/one":
            assert record["nested"] == {"a": [1]} and list(record)[:3] == ["caption", "n", "nested"]
        if sample["__key__"] == "bad":
            assert record["osa_weight"] is None


def test_fields_that_are_there_already_are_not_replaced(tmp_path: Path) -> None:
    record = json.dumps({"caption": "red", "similarity": 0.123, "key": "a"}).encode()
    shard = write_tar(tmp_path / "x.tar", [("a.png", picture("red")), ("a.json", record)])
    score([shard], tmp_path / "run")
    with refused("add_columns", "similarity"):
        export(tmp_path / "run", tmp_path / "kept", "shards", add_columns={"similarity": "similarity"})
    assert not (tmp_path / "kept").exists()
    export(tmp_path / "run", tmp_path / "kept", "shards", add_columns={"key": "key", "s": "similarity"})
    [sample] = samples_of(tmp_path / "kept" / "x.tar")
    assert json.loads(sample["json"])["similarity"] == 0.123
    with refused("columns", "osa"):
        export(tmp_path / "run", tmp_path / "no", "shards", add_columns={"osa": "osa"})
    with refused("add_columns", "w=similarity,w=osa_weight"):
        parse_added_columns("w=similarity,w=osa_weight")


def test_samples_of_one_key_do_not_become_one(tmp_path: Path) -> None:
    first = [("a.png", picture("red")), ("a.txt", b"red")]
    again = [("a.png", picture("blue")), ("a.txt", b"blue"), ("a.extra", b"x")]
    shard = write_tar(tmp_path / "x.tar", [*first, *pairs(1), *again])
    score([shard], tmp_path / "run")
    done = export(tmp_path / "run", tmp_path / "kept", "shards", where="key = 'a'")  # they are neighbours now
    assert done.left_out == {"same key as the sample before": 1}
    [sample] = samples_of(tmp_path / "kept" / "x.tar")
    assert sample["txt"] == b"red" and "extra" not in sample
    assert export(tmp_path / "run", tmp_path / "all", "shards").written == 3


def test_samples_that_the_shard_has_only_in_part_are_left_out(tmp_path: Path) -> None:
    whole = tar_bytes([*pairs(2), ("z.png", picture("red")), ("z.txt", b"red"), ("z.npy", bytes(5000))])
    (tmp_path / "x.tar").write_bytes(whole[: whole.rindex(b"z.npy") + 2000])
    score([tmp_path / "x.tar"], tmp_path / "run")
    assert read_table(tmp_path / "run", ["status"])["status"].to_pylist() == ["ok"] * 3
    done = export(tmp_path / "run", tmp_path / "kept", "shards")
    assert (done.written, done.left_out) == (2, {"incomplete in the shard": 1})
    assert members_of(tmp_path / "kept" / "x.tar") == pairs(2)
    with refused("where", "key = 'z'"):
        export(tmp_path / "run", tmp_path / "z", "shards", where="key = 'z'")


# --- datasets -----------------------------------------------------------------------------------------------------------
LOAD = """
import json, os, sys
from datasets import load_dataset
files = sys.argv[1] + "/data/train-*.parquet"
found = {}
for name, data in {
    "files": load_dataset("parquet", data_files=files, split="train"),
    "folder": load_dataset(sys.argv[1], split="train"),
}.items():
    rows = [{k: v for k, v in row.items() if k != "image"} for row in data]
    sizes = [[*row["image"].size, list(row["image"].convert("RGB").getpixel((0, 0)))] for row in data]
    found[name] = {"features": {k: str(v) for k, v in data.features.items()}, "rows": rows, "images": sizes}
streamed = load_dataset("parquet", data_files=files, split="train", streaming=True)
found["streamed"] = [row["image"].size for row in streamed]
print(json.dumps(found), flush=True)
os._exit(0)  # threads that streaming leaves behind may abort an interpreter that ends by itself
"""


def load(folder: Path, cache: Path) -> dict[str, Any]:
    """What `datasets` makes of a folder, in a process of its own that has no network and another cache."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(cache), "HF_HOME": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(folder)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_datasets_loads_the_folder_and_decodes_the_pictures(work: Path, tmp_path: Path) -> None:
    columns = ["caption", "key", "shard", "osa_weight", "clean", "flags", "label", "index", "status"]
    done = export(work / "run", tmp_path / "set", "datasets", columns=columns, where="shard <> 'x-01'")
    assert (done.kept, done.written, done.left_out) == (12, 11, {"not ok": 1})
    found = load(tmp_path / "set", tmp_path / "cache")
    assert found["files"] == found["folder"]
    features = found["files"]["features"]
    assert features["image"].startswith("Image(")
    assert features["osa_weight"] == "Value('float32')" and features["flags"] == "List(Value('string'))"
    rows = [r for r in read_table(work / "run").to_pylist() if r["shard"] != "x-01" and r["status"] == "ok"]
    captions = {s["__key__"]: s for s in samples_of(work / "s" / "x-00.tar", work / "s" / "x-02.tar")}
    for given, row, (width, height, colour) in zip(found["files"]["rows"], rows, found["files"]["images"], strict=True):
        sample = captions[row["key"]]
        assert {name: given[name] for name in columns[1:]} == {name: row[name] for name in columns[1:]}
        caption = sample["txt"].decode() if "txt" in sample else json.loads(sample["json"])["caption"]
        assert given["caption"] == caption
        picture_bytes = sample.get("png") or sample["jpg"]
        with Image.open(io.BytesIO(picture_bytes)) as image:
            assert (width, height) == image.size and tuple(colour) == image.convert("RGB").getpixel((0, 0))
    assert found["streamed"] == [[width, height] for width, height, _ in found["files"]["images"]]


def test_datasets_gets_all_scores_by_default_in_small_groups(tmp_path: Path) -> None:
    count = GROUP_ROWS + 7
    score([write_tar(tmp_path / "x.tar", pairs(count))], tmp_path / "run")
    export(tmp_path / "run", tmp_path / "set", "datasets")
    file = pq.ParquetFile(tmp_path / "set" / "data" / "train-00000.parquet")
    assert file.schema_arrow.names[:4] == ["image", "caption", "key", "shard"]
    assert {"similarity", "osa_weight", "clean"} <= set(
        file.schema_arrow.names
    ) and "label" not in file.schema_arrow.names
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [GROUP_ROWS, 7]
    table = file.read()
    assert table["caption"].to_pylist()[3] == "number 3 is green"
    images = [data for name, data in pairs(count) if name.endswith(".png")]
    assert [image["bytes"] for image in table["image"].to_pylist()] == images
    assert table["image"][0].as_py()["path"] == "00000.png"
