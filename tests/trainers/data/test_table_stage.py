"""webdataset's pipelines joined with weight tables: what is kept, what is added, and what is proven."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import webdataset as wds

from noisegate import with_table
from noisegate.pipeline.errors import MismatchError, TableError
from noisegate.pipeline.runs.table import RunFolder, read_table
from noisegate.trainers.data.table_stage import TABLES_KEPT
from tests.errors import refused
from tests.fakes import pairs, write_tar
from tests.jobs import score
from tests.trainers.scored_shards import BAD, write_scored


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten shards of four samples, more than the tables that are kept; the third of each is undecodable."""
    assert TABLES_KEPT < 10
    return write_scored(tmp_path_factory.mktemp("scored"), shards=10, count=4)


def urls(folder: Path) -> list[str]:
    return [str(path) for path in sorted((folder / "shards").glob("*.tar"))]


def pipeline(folder: Path, *stages: Any, shuffled: bool = False, **settings: Any) -> Any:
    shards = wds.WebDataset(urls(folder), shardshuffle=10 if shuffled else False, **settings)
    return shards.compose(*stages)


def test_samples_get_the_values_of_their_rows(scored: Path) -> None:
    columns = ["osa_weight", "refined_label", "clean", "knn_consistency"]
    samples = list(pipeline(scored, with_table(scored / "run", columns)))
    rows = [row for row in read_table(scored / "run").to_pylist() if row["status"] == "ok"]
    assert len(rows) == 10 * 3
    assert [sample["__key__"] for sample in samples] == [row["key"] for row in rows]
    for sample, row in zip(samples, rows, strict=True):
        assert sample["osa_weight"] == pytest.approx(row["osa_weight"])
        assert sample["refined_label"] == (-1 if row["refined_label"] is None else row["refined_label"])
        assert sample["clean"] is row["clean"]
        assert sample["knn_consistency"] != sample["knn_consistency"]  # a run of pairs has none: nan
        assert sample["txt"].decode() == f"number {int(row['key'])} is {sample['txt'].split()[-1].decode()}"


@pytest.mark.parametrize("rule", ["osa_weight > 0.05", "shard = 'x-03' and clean"])
def test_a_rule_selects(scored: Path, rule: str) -> None:
    table = read_table(scored / "run").to_pylist()
    choose = {
        "osa_weight > 0.05": lambda row: (row["osa_weight"] or 0) > 0.05,
        "shard = 'x-03' and clean": lambda row: row["shard"] == "x-03" and row["clean"],
    }[rule]
    expected = [row["key"] for row in table if choose(row)]
    assert 0 < len(expected) < len(table) * 3 / 4
    assert [sample["__key__"] for sample in pipeline(scored, with_table(scored / "run", where=rule))] == expected


def test_shuffled_samples_of_many_shards_in_two_workers(scored: Path) -> None:
    stage = pickle.loads(pickle.dumps(with_table(scored / "run", "osa_weight")))
    data = pipeline(scored, shuffled=True).shuffle(1000).compose(stage)
    data = data.decode("torchrgb8", partial=True).to_tuple("__key__", "osa_weight", "txt")
    seen = [
        sample
        for batch in torch.utils.data.DataLoader(data, batch_size=5, num_workers=2)
        for sample in zip(*batch, strict=True)
    ]
    table = {row["key"]: row["osa_weight"] for row in read_table(scored / "run").to_pylist() if row["status"] == "ok"}
    assert sorted(key for key, *_ in seen) == sorted(table)
    assert [key for key, *_ in seen] != sorted(table)
    assert all(float(weight) == pytest.approx(table[key]) for key, weight, _ in seen)


def test_resampled_shards_and_repeated_keys(tmp_path: Path) -> None:
    """Two samples of one key are told apart by their bytes, also when their shard comes twice in a row."""
    members = [*pairs(2), *((name.replace("00002", "00000"), data) for name, data in pairs(1, start=2))]
    write_tar(tmp_path / "shards" / "x.tar", members)
    score(tmp_path / "shards", tmp_path / "run")
    table = RunFolder(tmp_path / "run").read("x").to_pylist()
    assert [row["key"] for row in table] == ["00000", "00001", "00000"]
    assert table[0]["text_sha256"] != table[2]["text_sha256"]
    data = wds.DataPipeline(
        wds.ResampledShards(urls(tmp_path), nshards=3),
        wds.tarfile_to_samples(),
        with_table(tmp_path / "run", ["similarity"]),
    )
    assert [s["similarity"] for s in data] == pytest.approx([row["similarity"] for row in table] * 3)


class TestRefuses:
    def test_changed_samples(self, scored: Path, tmp_path: Path) -> None:
        shutil.copytree(scored, tmp_path / "copy")
        folder = tmp_path / "copy"
        first = Path(urls(folder)[0])
        first.write_bytes(first.read_bytes().replace(b"number 1 is", b"number 9 is"))
        with refused("table", "0001", MismatchError) as caught:
            list(pipeline(folder, with_table(folder / "run")))
        assert str(caught.value).startswith(
            f"sample 0001 of shard {first} is not the one scored: the caption's bytes have"
        )
        errors: list[Exception] = []
        kept = list(pipeline(folder, with_table(folder / "run", handler=lambda error: not errors.append(error))))
        assert len(kept) == 10 * 3 - 1 and len(errors) == 1

    def test_samples_that_the_table_does_not_have(self, scored: Path) -> None:
        sample = next(iter(pipeline(scored)))
        with refused("table", "0077", MismatchError):
            list(with_table(scored / "run")([sample | {"__key__": "0077"}]))

    def test_decoded_samples(self, scored: Path) -> None:
        with refused("with_table", "png") as caught:
            list(pipeline(scored).decode("pil", handler=wds.ignore_and_continue).compose(with_table(scored / "run")))
        assert "before .decode()" in str(caught.value)

    def test_samples_of_no_shard(self, scored: Path) -> None:
        with refused("with_table"):
            list(with_table(scored / "run")([{"__key__": "0001"}]))

    def test_shards_without_a_table(self, scored: Path, tmp_path: Path) -> None:
        write_tar(tmp_path / "other.tar", pairs(2))
        with refused("table", error=TableError) as caught:
            list(wds.WebDataset(str(tmp_path / "other.tar"), shardshuffle=False).compose(with_table(scored / "run")))
        assert f"shard {tmp_path / 'other.tar'} has no table other.parquet" in str(caught.value)

    def test_wrong_settings_before_any_sample(self, scored: Path, tmp_path: Path) -> None:
        with refused("columns", "flags"):
            with_table(scored / "run", ["flags"])
        with refused("where"):
            with_table(scored / "run", where="osa_wait > 0")
        with refused("run", error=TableError):
            with_table(tmp_path)


def test_labels_are_proven(scored: Path, tmp_path: Path) -> None:
    shutil.copytree(scored, tmp_path / "copy")
    folder = tmp_path / "copy"
    first = Path(urls(folder)[0])
    text = first.read_bytes()
    place = text.index(b"0001.cls") + 512
    first.write_bytes(text[:place] + b"4" + text[place + 1 :])
    with refused("table", "0001", MismatchError) as caught:
        list(pipeline(folder, with_table(folder / "run")))
    assert "the label is 4, 1 in the table" in str(caught.value)


def test_the_undecodable_are_left_out(scored: Path) -> None:
    keys = {int(sample["__key__"]) % 4 for sample in pipeline(scored, with_table(scored / "run"))}
    assert BAD not in keys and len(keys) == 3
