"""A table and the truth from features, given labels and the right classes in the shards' json."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from noisegate.pipeline.runs import read_table
from noisegate.trainers.bench.labelled_features import LabelledFeatures
from noisegate.trainers.bench.scene_bench import judge_table
from tests.errors import refused
from tests.fakes import picture, tar_bytes

SPEC = LabelledFeatures(
    get="make it", file="f.npz", labels="given", classes="cifar10", right_class="clean_label", digits=4
)


def test_table_and_truth_follow_the_keys(tmp_path: Path) -> None:
    """Two shards whose keys are row numbers, in another order than the array's; a fifth of the labels is wrong."""
    rng = np.random.default_rng(0)
    right = np.arange(200) % 10
    given = np.where(np.arange(200) % 5 == 0, (right + 1 + np.arange(200) // 5 % 9) % 10, right)
    features = 3 * np.eye(10)[right] + 0.3 * rng.standard_normal((200, 10))
    np.savez(tmp_path / "f.npz", features=features.astype(np.float16), given=given.astype(np.int8))
    order = rng.permutation(200)
    for shard in (0, 1):
        members = []
        for row in order[100 * shard : 100 * shard + 100]:
            facts = json.dumps({"clean_label": int(right[row])}).encode()
            members += [
                (f"{row:04d}.png", picture((int(row), 0, 0))),
                (f"{row:04d}.cls", str(given[row]).encode()),
            ]
            members.append((f"{row:04d}.json", facts))
        (tmp_path / f"s-{shard}.tar").write_bytes(tar_bytes(members))
    place = tmp_path / "place"
    with refused("data", str(place)):
        SPEC.check(place)
    SPEC.check(tmp_path)
    notes: list[str] = []
    table = SPEC.make_table(tmp_path, [str(tmp_path / f"s-{i}.tar") for i in (0, 1)], place, notes.append)
    truth = SPEC.write_truth(table, place)
    rows, known = read_table(table, ["key", "label"]), pq.read_table(truth)
    assert rows["key"].to_pylist() == [f"{row:04d}" for row in order] == known["key"].to_pylist()
    assert rows["label"].to_pylist() == given[order].tolist()
    assert known["clean_label"].to_pylist() == right[order].tolist()
    assert known["noisy"].to_pylist() == (given != right)[order].tolist()
    refined = read_table(table, ["refined_label"])["refined_label"].to_numpy()
    assert judge_table(table, True, truth)["relabel_accuracy"] == pytest.approx(100 * (refined == right[order]).mean())
    assert SPEC.make_table(tmp_path, [], place, notes.append) == table and len(notes) == 1, "made once"
