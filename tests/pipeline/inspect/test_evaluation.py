"""A run judged by the truth: the right figures, and a clear word where the truth is missing or does not fit."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from noisegate import read_table
from noisegate.pipeline.datasets.noise.label_shards import noise_labels
from noisegate.pipeline.datasets.noise.shards import noise_captions
from noisegate.pipeline.errors import MismatchError, ShardError, TableError
from noisegate.pipeline.inspect.evaluation import evaluate
from noisegate.pipeline.settings import DecodeOptions
from tests.commands import called
from tests.errors import refused
from tests.fakes import pairs, picture, write_tar
from tests.jobs import Notes, score


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory, scenes: Path) -> Path:
    """Scenes with 40 % shuffled captions below `noisy`, scored into `tables`; tests only read them."""
    folder = tmp_path_factory.mktemp("scored")
    noise_captions(str(scenes), folder / "noisy", rate=0.4, seed=2)
    score(folder / "noisy", folder / "tables")
    return folder


def truth_of(folder: Path) -> pa.Table:
    return pq.read_table(folder / "noisy" / "noise.parquet")


def written(path: Path, table: pa.Table) -> Path:
    pq.write_table(table, path)
    return path


def test_the_figures_are_those_of_the_definitions(scored: Path) -> None:
    found = evaluate(scored / "tables")
    table = read_table(scored / "tables")
    noisy = np.array(truth_of(scored)["noisy"].to_pylist())
    weight = np.array(table["osa_weight"].to_pylist())
    assert (found.samples, found.noisy, found.unscored, found.beta) == (120, int(noisy.sum()), 0, 0.4)
    assert found.osa_acc == pytest.approx((weight[~noisy] > 0).mean())
    assert found.osa_recall == pytest.approx((weight[noisy] == 0).mean())
    assert found.selection.clean_auroc == pytest.approx(roc_auc_score(~noisy, table["similarity"].to_pylist()))
    assert found.selection.clean_auroc > 0.9
    assert found.noise_rank.optimum == 120 - (noisy.sum() - 1) / 2
    assert found.best.balanced_accuracy >= found.selection.balanced_accuracy - 1e-12
    assert found.to_dict()["clean_auroc"] == found.selection.clean_auroc


@pytest.mark.parametrize("columns", [["key", "noisy"], ["shard", "key", "noisy"], ["shard", "index", "noisy"]])
def test_a_file_of_truth_says_the_same_in_any_order(scored: Path, tmp_path: Path, columns: list[str]) -> None:
    truth = truth_of(scored).select(columns)
    mixed = truth.take(np.random.default_rng(0).permutation(len(truth)))
    assert evaluate(scored / "tables", written(tmp_path / "t.parquet", mixed)) == evaluate(scored / "tables")


def test_truth_may_be_ones_and_zeros_and_know_more_samples(scored: Path, tmp_path: Path) -> None:
    truth = truth_of(scored).select(["key", "noisy"]).to_pydict()
    more = pa.table({"key": [*truth["key"], "another"], "noisy": [*map(int, truth["noisy"]), 1]})
    assert evaluate(scored / "tables", written(tmp_path / "t.parquet", more)) == evaluate(scored / "tables")


def changed(truth: pa.Table, name: str, values: list[Any]) -> pa.Table:
    return truth.set_column(truth.column_names.index(name), name, [values])


def test_truth_that_does_not_fit_is_refused(scored: Path, tmp_path: Path) -> None:
    truth, path, tables = truth_of(scored).select(["key", "noisy"]), tmp_path / "t.parquet", scored / "tables"
    cases: list[tuple[pa.Table, str]] = [
        (truth.drop_columns("noisy"), "has the columns key; it needs key and noisy"),
        (truth.drop_columns("key"), "has the columns noisy; it needs key and noisy"),
        (truth.slice(3), "lacks 3 of 120 samples, such as scenes-000000/00000000"),
        (
            pa.concat_tables([truth, truth.slice(0, 2)]),
            "names 2 samples twice, such as 00000000; remove the wrong row, or add a column shard",
        ),
        (changed(truth, "noisy", ["no"] * 120), "noisy must be true or false"),
        (changed(truth, "noisy", [None, *[True] * 119]), "noisy must be true or false"),
        (changed(truth, "noisy", [2] * 120), "noisy must be true or false"),
    ]
    for table, message in cases:
        with refused("truth", path) as caught:
            evaluate(tables, written(path, table))
        assert message in str(caught.value)
    path.write_text("key,noisy\n")
    for wrong, message in (
        (path, "is not a readable Parquet, CSV or JSON-lines file"),
        (tmp_path / "missing.parquet", "is not there"),
    ):
        with refused("truth", wrong) as caught:
            evaluate(tables, wrong)
        assert message in str(caught.value)


def test_duplicate_keys_are_told_apart(tmp_path: Path) -> None:
    members = []
    for colour in ("red", "blue", "red", "green", "brown"):
        members += [("same.png", picture(colour)), ("same.txt", f"it is {colour}".encode())]
    write_tar(tmp_path / "clean" / "x.tar", [*members, *pairs(20)])
    noise_captions(str(tmp_path / "clean"), tmp_path / "noisy", rate=0.5, seed=1)
    score(tmp_path / "noisy", tmp_path / "out")
    truth = tmp_path / "noisy" / "noise.parquet"
    assert evaluate(tmp_path / "out", truth) == evaluate(tmp_path / "out")
    by_key = written(tmp_path / "t.parquet", pq.read_table(truth).select(["shard", "key", "noisy"]))
    with refused("truth", by_key) as caught:
        evaluate(tmp_path / "out", by_key)
    assert "names 4 samples twice, such as x/same; remove the wrong row, or add a column index" in str(caught.value)


def test_samples_without_a_score_are_counted_and_left_out(tmp_path: Path) -> None:
    write_tar(tmp_path / "clean" / "x.tar", [*pairs(10), ("bad.png", b"junk"), ("bad.txt", b"red"), ("c.txt", b"blue")])
    noise_captions(str(tmp_path / "clean"), tmp_path / "noisy", rate=0.5, seed=1)
    score(tmp_path / "noisy", tmp_path / "out")
    found = evaluate(tmp_path / "out")
    assert (found.samples, found.unscored) == (10, 2)


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_one_kind_alone_has_no_auroc(tmp_path: Path, rate: float) -> None:
    write_tar(tmp_path / "clean" / "x.tar", pairs(10))
    noise_captions(str(tmp_path / "clean"), tmp_path / "noisy", rate=rate, seed=1, derange=True)
    score(tmp_path / "noisy", tmp_path / "out")
    found = evaluate(tmp_path / "out")
    assert found.noisy == 10 * rate
    assert math.isnan(found.selection.clean_auroc)
    assert math.isnan(found.osa_recall) == (rate == 0)
    assert math.isnan(found.osa_acc) == (rate == 1)


def test_shards_without_truth_say_where_it_could_come_from(scenes: Path, tmp_path: Path) -> None:
    score(scenes, tmp_path / "out")
    with refused("truth", None):
        evaluate(tmp_path / "out")
    for broken, found in ((b"{", "no"), (b"[]", "no"), (b'{"noisy": "maybe"}', '"maybe" in its')):
        shard = write_tar(tmp_path / "x.tar", [*pairs(1), ("00000.json", broken)])
        score([shard], tmp_path / "broken", overwrite=True)
        with refused("truth", None) as caught:
            evaluate(tmp_path / "broken")
        assert f"has {found} json field noisy, so the truth is not known" in str(caught.value)


def test_shards_that_changed_since_are_not_the_truth(tmp_path: Path, scenes: Path) -> None:
    noise_captions(str(scenes), tmp_path / "noisy", rate=0.4, seed=2)
    score(tmp_path / "noisy", tmp_path / "out")
    noise_captions(str(scenes), tmp_path / "noisy", rate=0.4, seed=3)
    with refused("shards", str(tmp_path / "noisy" / "scenes-000000.tar"), MismatchError):
        evaluate(tmp_path / "out")
    (tmp_path / "noisy" / "scenes-000000.tar").unlink()
    with refused("shards", str(tmp_path / "noisy" / "scenes-000000.tar"), ShardError):
        evaluate(tmp_path / "out")


def test_a_run_without_results_is_named(shards: Path, tmp_path: Path) -> None:
    with refused("run", tmp_path, TableError):
        evaluate(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        score(shards, tmp_path / "out", progress=Notes(stop_after=2))
    with refused("run", tmp_path / "out", TableError):
        evaluate(tmp_path / "out")
    nothing = write_tar(tmp_path / "x.tar", [("a.txt", b"x"), ("a.json", b'{"noisy": true}')])
    score([nothing], tmp_path / "none")
    with refused("run", tmp_path / "none", TableError):
        evaluate(tmp_path / "none")


@pytest.mark.parametrize(("spoilt", "judged"), [("captions", "pairs"), ("labels", "labels")])
def test_a_run_of_both_is_judged_by_what_was_made_noisy(spoilt: str, judged: str, tmp_path: Path) -> None:
    members = []
    for i in range(40):
        colour = ("red", "green", "blue")[i % 3]
        members += [(f"{i}.png", picture(colour, (16 + i, 16))), (f"{i}.txt", f"{i} is {colour}".encode())]
        members += [(f"{i}.cls", str(i % 3).encode())]
    write_tar(tmp_path / "clean" / "x.tar", members)
    made = noise_captions if spoilt == "captions" else noise_labels
    made(str(tmp_path / "clean"), tmp_path / "noisy", rate=0.4, seed=1)
    score(tmp_path / "noisy", tmp_path / "out", options=DecodeOptions(tasks=("pairs", "labels")), beta="fixed:0.5")
    for truth in ([], ["--truth", "noisy/noise.parquet"]):
        found = json.loads(called("evaluate", "out", *truth, "--json", cwd=tmp_path).stdout)
        assert ("labels" in found) == (judged == "labels"), truth
    done = called("evaluate", "out", "--what", "labels", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["labels"]["samples"] == 40
    assert ("the captions were made noisy here" in done.stderr) == (spoilt == "captions")
