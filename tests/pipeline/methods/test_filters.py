"""Filters of the field as columns: each equals a plain loop, and `rescore --with` and `--join` write them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from noisegate.pipeline.errors import TableError
from noisegate.pipeline.inspect.show import read_overview
from noisegate.pipeline.methods.columns import OneStep
from noisegate.pipeline.methods.filters import (
    csls_columns,
    negcliploss_columns,
    normsim_columns,
    read_targets,
    semdedup_columns,
)
from noisegate.pipeline.neighbours import find_neighbours
from noisegate.pipeline.rescore import rescore
from noisegate.pipeline.runs.rows import RowBlocks
from noisegate.pipeline.runs.table import RunFolder, read_metadata, read_table
from tests.commands import called
from tests.embeddings import scored
from tests.errors import refused
from tests.jobs import run_record

TEMPERATURE = 0.05


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def pairs() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    images, noise = rng.standard_normal((2, 40, 6))
    return unit(images), unit(images + 0.7 * noise)


def test_negcliploss_and_csls_are_those_of_a_plain_loop(pairs: tuple[np.ndarray, np.ndarray]) -> None:
    images, texts = pairs
    pool = np.arange(0, 40, 2)
    found = negcliploss_columns(RowBlocks(images), RowBlocks(texts), pool, TEMPERATURE)["negcliploss"]
    near = csls_columns(RowBlocks(images), RowBlocks(texts), pool, k=3)["csls"]
    for i in range(40):
        others = [j for j in pool if j != i]
        own = float(images[i] @ texts[i])
        by_image = [float(images[i] @ texts[j]) for j in others]
        by_text = [float(images[j] @ texts[i]) for j in others]
        sums = [np.log(np.exp(np.array([own, *side]) / TEMPERATURE).sum()) for side in (by_image, by_text)]
        assert found[i] == pytest.approx(own - TEMPERATURE / 2 * sum(sums), abs=1e-5)
        nearest = [np.mean(sorted(side)[-3:]) for side in (by_image, by_text)]
        assert near[i] == pytest.approx(2 * own - sum(nearest), abs=1e-5)


def test_normsim_is_a_norm_of_the_cosines_with_the_targets(pairs: tuple[np.ndarray, np.ndarray]) -> None:
    images, targets = pairs[0], pairs[1][:7]
    for norm in (2, np.inf):
        found = normsim_columns(RowBlocks(images), 3 * targets, norm)["normsim"]
        wanted = [np.sqrt(sum(c * c)) if norm == 2 else max(c) for c in images @ targets.T]
        assert found == pytest.approx(wanted, abs=1e-5)
    with refused("target"):
        normsim_columns(RowBlocks(images), targets[:, :3], 2)
    with refused("norm", 3):
        normsim_columns(RowBlocks(images), targets, 3)


def test_semdedup_keeps_the_best_of_each_group() -> None:
    rows = unit(np.array([[1, 0, 0], [1, 0.01, 0], [0, 1, 0], [0, 1, 0.01], [0, 0, 1]], float))
    found = semdedup_columns(find_neighbours(rows, k=4), np.array([0.2, 0.9, 0.5, 0.5, 0.1]))
    assert (found["semdedup"] < 0.95).tolist() == [False, True, True, False, True]
    cosines = rows @ rows.T
    assert found["semdedup_density"] == pytest.approx((cosines.sum(1) - 1) / 4, abs=1e-5)


def test_rescore_writes_them_and_says_how(pairs: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    scored(tmp_path, *pairs)
    out = tmp_path / "out"
    np.save(tmp_path / "targets.npy", pairs[0][:5])
    before = read_table(out)
    filters = OneStep(("negcliploss", "csls", "normsim", "semdedup"), target=tmp_path / "targets.npy")
    rescore(out, one_step=filters)
    table = read_table(out)
    assert table.select(before.column_names).equals(before)
    assert len(read_targets(out, {})) == 40  # the pictures of a run
    assert all(table[name].null_count == 0 for name in ("negcliploss", "csls", "normsim", "semdedup"))
    record = read_metadata(RunFolder(out).table("images"))["one_step"]
    assert record["normsim"]["targets"] == 5 and record["negcliploss"]["pool"] == 40
    quality = read_metadata(RunFolder(out).table("images"))["pair_quality"]
    assert record["negcliploss"]["temperature"] == quality["temperature"]
    for setting, asked in {
        "target": {"target": tmp_path},
        "norm": {"norm": 2},
        "temperature": {"temperature": 1},
    }.items():
        with refused(setting):
            OneStep(("csls",), **asked)  # type: ignore[arg-type]
    with refused("target"):
        OneStep(("normsim",))


def test_scores_from_elsewhere_are_joined_by_key(pairs: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    scored(tmp_path, *pairs)
    keys = read_table(tmp_path / "out")["key"].to_pylist()
    some = "".join(f"{key},{i}\n" for i, key in enumerate(keys[::2]))
    (tmp_path / "mine.csv").write_text(f"key,goodness\n{some}")
    lines = [json.dumps({"key": key, "dfn_score": 0.5, "note": "x"}) for key in keys]
    (tmp_path / "dfn.jsonl").write_text("\n".join(lines))
    for name in ("mine.csv", "dfn.jsonl"):
        assert called("rescore", "out", "--join", name, cwd=tmp_path).returncode == 0
    table = read_table(tmp_path / "out")
    assert table["outside_score"].to_pylist() == [i // 2 if i % 2 == 0 else None for i in range(40)]
    assert set(table["dfn_score"].to_pylist()) == {0.5}
    for name, text in {
        "other": "key,score\nnobody,1\n",
        "words": "key,score\n0,high\n",
        "twice": "key,a\nx,1\nx,2\n",
    }.items():
        (tmp_path / f"{name}.csv").write_text(text)
        with refused("join"):
            rescore(tmp_path / "out", one_step=OneStep(join=tmp_path / f"{name}.csv"))
    with refused("join"):
        rescore(tmp_path / "out", one_step=OneStep(join=tmp_path))


def test_joining_alone_needs_no_embeddings_and_changes_no_score(
    pairs: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    """With any other setting, or after a rescoring that was stopped, the embeddings are needed as ever."""
    scored(tmp_path, *pairs)
    out = tmp_path / "out"
    before, summary = read_table(out), read_overview(out).summary
    shutil.rmtree(out / "embeddings")
    keys = before["key"].to_pylist()
    (tmp_path / "mine.csv").write_text("key,goodness\n" + "".join(f"{key},{i}\n" for i, key in enumerate(keys)))
    join = OneStep(join=tmp_path / "mine.csv")
    done = rescore(out, one_step=join)
    after = read_table(out)
    assert after["outside_score"].to_pylist() == list(range(40))
    assert after.select(before.column_names).equals(before)
    assert replace(done, seconds=0.0) == summary
    with refused("folder", error=TableError):
        rescore(out, beta="fixed:0.3", one_step=join)
    record = json.loads((out / "_run.json").read_text())
    (out / "_run.json").write_text(json.dumps({**record, "finished": False}))
    with refused("folder", error=TableError):
        rescore(out, one_step=join)


def test_scores_are_not_joined_to_a_table_that_lacks_rows(pairs: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    scored(tmp_path, *pairs)
    run = RunFolder(tmp_path / "out")
    (stem,) = run.stems()
    keys = read_table(run.path)["key"].to_pylist()
    (tmp_path / "mine.csv").write_text("key,goodness\n" + "".join(f"{key},1\n" for key in keys))
    pq.write_table(pq.read_table(run.table(stem)).slice(1), run.table(stem))
    before = run.table(stem).read_bytes()
    with refused("table", str(run.table(stem)), TableError):
        rescore(run.path, one_step=OneStep(join=tmp_path / "mine.csv"))
    assert run.table(stem).read_bytes() == before


def test_target_pictures_are_encoded_by_the_runs_model(tmp_path: Path) -> None:
    Image.new("RGB", (32, 32), (200, 30, 30)).save(tmp_path / "red.png")
    recorded = {"model": {"model": "embedded", "pretrained": None}, "scorer": {"dtype": "float32"}}
    (tmp_path / "torn.png").write_bytes(b"no picture")
    notes: list[str] = []
    rows = read_targets(tmp_path, recorded, note=notes.append)
    assert "1 target picture left out" in notes[-1]
    assert rows.shape == (1, 96) and np.linalg.norm(rows[0]) == pytest.approx(1, abs=1e-3)
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn.npy").write_bytes(b"no array")
    other = RunFolder(tmp_path / "other")
    other.path.mkdir()
    other.write_run(run_record([]))  # of another model
    for name in ("empty", "nowhere", "torn.npy", "other"):
        with refused("target"):
            read_targets(tmp_path / name, recorded)
