"""Embeddings from elsewhere joined with shards by key: the tables of `annotate`, and what does not fit."""

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noisegate import WeightedShards, evaluate, export, score_embeddings, verify
from noisegate.pipeline.errors import MismatchError
from noisegate.pipeline.runs.embeddings import read_embeddings
from noisegate.pipeline.runs.table import RunFolder, read_table
from noisegate.pipeline.settings import ScoreSettings
from tests.commands import called
from tests.errors import refused
from tests.fakes import Member, pairs, write_tar
from tests.jobs import BETA, score
from tests.trainers.scored_shards import sample

FIXED = ScoreSettings(beta=BETA)


@pytest.fixture(scope="module")
def annotated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of eight samples in `shards`, annotated in `run`, and the embeddings with their keys, in another order."""
    folder = tmp_path_factory.mktemp("annotated")
    for shard in range(3):
        members = [part for i in range(8) for part in sample(8 * shard + i)]
        write_tar(folder / "shards" / f"x-{shard}.tar", members)
    score(folder / "shards", folder / "run")
    run = RunFolder(folder / "run")
    keys = [key for stem in run.stems() for key in run.read(stem, ["key"])["key"].to_pylist()]
    order = np.random.default_rng(0).permutation(len(keys))
    for name in ("image", "text"):
        rows = np.concatenate([read_embeddings(run.embeddings(stem), name) for stem in run.stems()])
        np.save(folder / f"{name}s.npy", rows[order])
    write_keys(folder / "keys.parquet", [keys[row] for row in order])
    return folder


def write_keys(path: Path, keys: list[str], **columns: Any) -> Path:
    pq.write_table(pa.table({"key": keys, **columns}), path)
    return path


def score_arrays(folder: Path, out: Path, **changes: Any) -> Any:
    settings = {
        "texts": folder / "texts.npy",
        "metadata": folder / "keys.parquet",
        "shards": folder / "shards",
        "settings": FIXED,
    }
    return score_embeddings(out, folder / "images.npy", **(settings | changes))


def test_the_tables_are_those_of_annotate(annotated: Path, tmp_path: Path) -> None:
    score_arrays(annotated, tmp_path / "run")
    mine, theirs = (read_table(folder) for folder in (tmp_path / "run", annotated / "run"))
    same = ["shard", "key", "index", "status", "error", "image_sha256", "text_sha256", "label", "clean"]
    assert mine.select(same).to_pylist() == theirs.select(same).to_pylist()
    for name in ("similarity", "osa_weight"):
        np.testing.assert_allclose(mine[name], theirs[name], atol=2e-3)  # kept embeddings are float16
    assert verify(tmp_path / "run").ok
    data = WeightedShards(annotated / "shards", tmp_path / "run", batch_size=8, columns=["osa_weight"], text=list)
    assert sum(len(batch) for batch in data) == 24


def test_shards_of_features_are_proven_by_their_bytes(tmp_path: Path) -> None:
    def features(value: float) -> bytes:
        data = io.BytesIO()
        np.save(data, np.full((2, 3), value, np.float32))
        return data.getvalue()

    def members(change: float = 0) -> list[Member]:
        found: list[Member] = []
        for i in range(20):
            record = json.dumps({"noisy": i % 2 == 1}).encode()
            found += [(f"{i}.npy", features(i + change)), (f"{i}.txt", b"a caption"), (f"{i}.json", record)]
        return found

    write_tar(tmp_path / "shards" / "x.tar", members())
    rng = np.random.default_rng(0)
    for name in ("images", "texts"):
        np.save(tmp_path / f"{name}.npy", rng.standard_normal((20, 4)).astype(np.float32))
    write_keys(tmp_path / "keys.parquet", [str(i) for i in range(20)])
    score_arrays(tmp_path, tmp_path / "run")
    row = RunFolder(tmp_path / "run").read("x").to_pylist()[3]
    assert row["image_sha256"] == hashlib.sha256(features(3)).digest()
    assert verify(tmp_path / "run").ok
    assert evaluate(tmp_path / "run").to_dict()["noisy"] == 10
    with refused("folder", tmp_path / "run"):
        export(tmp_path / "run", tmp_path / "out", "datasets")

    def batches() -> list[Any]:
        return list(WeightedShards(tmp_path / "shards", tmp_path / "run", batch_size=10, image="npy", text=list))

    assert sorted(float(image[0, 0]) for batch in batches() for image in batch.images) == list(range(20))
    write_tar(tmp_path / "shards" / "x.tar", members(change=0.5))
    with pytest.raises(MismatchError, match="the image's bytes have changed"):
        batches()
    assert not verify(tmp_path / "run").ok


class TestKeys:
    def test_missing_ones_are_counted_and_invalid(self, annotated: Path, tmp_path: Path) -> None:
        keys = pq.read_table(annotated / "keys.parquet")["key"].to_pylist()
        lost, keys[5] = keys[5], "elsewhere"
        notes: list[str] = []
        score_arrays(annotated, tmp_path / "run", metadata=write_keys(tmp_path / "k.parquet", keys), note=notes.append)
        rows = [row for row in read_table(tmp_path / "run").to_pylist() if row["status"] != "ok"]
        assert [(row["key"], row["status"], row["error"]) for row in rows] == [
            (lost, "invalid", "no embedding has this key")
        ]
        assert rows[0]["osa_weight"] is None and rows[0]["text_sha256"]
        assert f"1 of 24 samples are invalid, such as {lost}: no embedding has this key" in notes
        assert "1 of 24 embeddings belong to no sample, such as elsewhere" in notes

    def test_none_in_common(self, annotated: Path, tmp_path: Path) -> None:
        keys = write_keys(tmp_path / "k.parquet", [f"other-{i}" for i in range(24)])
        with refused("metadata") as caught:
            score_arrays(annotated, tmp_path / "run", metadata=keys)
        assert "24 of 24 samples are invalid, such as 0000" in str(caught.value)
        assert "24 of 24 embeddings belong to no sample, such as other-0" in str(caught.value)

    def test_no_keys_at_all(self, annotated: Path, tmp_path: Path) -> None:
        with refused("metadata"):
            score_arrays(annotated, tmp_path / "run", metadata=None)
        assert not (tmp_path / "run").exists()

    def test_shards_that_repeat_keys_need_the_shard(self, tmp_path: Path) -> None:
        """Each shard counts from 0: with the column `shard` every embedding is found, without it none can be."""
        for shard in range(2):
            write_tar(tmp_path / "shards" / f"x-{shard}.tar", pairs(3))
        rng = np.random.default_rng(0)
        vectors = {name: rng.standard_normal((6, 4)).astype(np.float32) for name in ("images", "texts")}
        for name, rows in vectors.items():
            np.save(tmp_path / f"{name}.npy", rows)
        keys = ["00002", "00001", "00000"] * 2
        write_keys(tmp_path / "keys.parquet", keys)
        with refused("metadata") as caught:
            score_arrays(tmp_path, tmp_path / "none")
        assert "6 of 6 samples are invalid, such as 00000: several embeddings" in str(caught.value)
        write_keys(tmp_path / "keys.parquet", keys, shard=["data/x-1.tar"] * 3 + ["x-0"] * 3)
        score_arrays(tmp_path, tmp_path / "run")
        unit = {name: rows / np.linalg.norm(rows, axis=1, keepdims=True) for name, rows in vectors.items()}
        cosines = (unit["images"] * unit["texts"]).sum(axis=1)
        similarity = read_table(tmp_path / "run", ["similarity"])["similarity"].to_numpy()
        np.testing.assert_allclose(similarity, cosines[[5, 4, 3, 2, 1, 0]], atol=1e-6)

    def test_a_key_twice_in_a_shard(self, annotated: Path, tmp_path: Path) -> None:
        write_tar(tmp_path / "x.tar", [*sample(1), *sample(2), *sample(1)])
        score_arrays(annotated, tmp_path / "run", shards=tmp_path / "x.tar")
        rows = read_table(tmp_path / "run").to_pylist()
        assert [row["status"] for row in rows] == ["invalid", "ok", "invalid"]
        assert rows[0]["error"] == "several embeddings, or samples of the shard, have this key"


class TestLabels:
    def labels(self, annotated: Path) -> Any:
        """As the samples have them: their number modulo five."""
        return np.array([int(key) % 5 for key in pq.read_table(annotated / "keys.parquet")["key"].to_pylist()])

    def test_are_compared_with_the_shards(self, annotated: Path, tmp_path: Path) -> None:
        labels = self.labels(annotated)
        score_arrays(annotated, tmp_path / "run", labels=labels)
        assert read_table(tmp_path / "run")["label"].to_pylist() == [i % 5 for i in range(24)]
        labels[7] = 4 if labels[7] != 4 else 3
        with refused("labels", int(labels[7])):
            score_arrays(annotated, tmp_path / "other", labels=labels)

    def test_need_not_be_in_the_shards(self, annotated: Path, tmp_path: Path) -> None:
        members = [part for i in range(24) for part in sample(i) if not part[0].endswith(("cls", "json"))]
        write_tar(tmp_path / "x.tar", members)
        where = {"shards": tmp_path / "x.tar", "texts": None, "labels": self.labels(annotated)}
        score_arrays(annotated, tmp_path / "run", **where, settings=ScoreSettings())
        rows = read_table(tmp_path / "run").to_pylist()
        assert [(row["status"], row["label"]) for row in rows] == [("ok", i % 5) for i in range(24)]
        assert verify(tmp_path / "run").ok


def test_the_command(annotated: Path, tmp_path: Path) -> None:
    arrays = ("--images", annotated / "images.npy", "--texts", annotated / "texts.npy")
    rest = ("--metadata", annotated / "keys.parquet", "--shards", f"{annotated}/shards/*.tar", "--beta", BETA)
    done = called("score-embeddings", *arrays, *rest, "--out", tmp_path / "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert read_table(tmp_path / "run").num_rows == 24
