"""Cells that train nothing: what is kept, what is made again, and what a failure is; and judgements against a truth."""

import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noisegate.trainers.bench.cells import (
    CELLS_PER_PROCESS,
    Cell,
    CellResult,
    judge_learnt,
    kept_rows,
    read_result,
    run_cells,
    write_result,
)
from tests.errors import refused


def cell(folder: Path, seed: int, optimizer: dict[str, float] | None = None, **options: object) -> Cell:
    config = {"method": {"name": "osa"}, "optimizer": optimizer or {}, "task": {"options": options}}
    return Cell("osa", 0.4, seed, config, folder / "cells" / f"osa-40-{seed}.json")


def squares(one: Cell) -> CellResult:
    """Stands for a training: its figure follows from the cell alone. Each call leaves a mark."""
    with (one.file.parent.parent / "calls.txt").open("a") as marks:
        marks.write(f"{one.seed}\n")
    if one.config["task"]["options"].get("dies"):
        os._exit(9)
    error = "ValueError: it diverged" if one.config["task"]["options"].get("fails") else None
    figures = {} if error else {"accuracy": float(one.seed**2)}
    measured = {"train_seconds": 1.0, "seconds": 2.0, "memory_mb": 3.0}
    result = CellResult(one.method, one.rate, one.seed, one.digest, figures, updates=5, **measured, error=error)
    write_result(one, result)
    return result


def calls(folder: Path) -> list[int]:
    file = folder / "calls.txt"
    return sorted(int(word) for word in file.read_text().split()) if file.exists() else []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cells").mkdir()
    return tmp_path


def figures(results: list[CellResult]) -> list[float | None]:
    return [result.figures.get("accuracy") for result in results]


def test_finished_cells_are_not_made_again(folder: Path) -> None:
    assert figures(run_cells([cell(folder, seed) for seed in (1, 2)], 1, run=squares)) == [1, 4]
    seen: list[tuple[int, int, int]] = []
    found = run_cells(
        [cell(folder, seed) for seed in (1, 3, 2)],
        1,
        run=squares,
        progress=lambda result, done, total: seen.append((result.seed, done, total)),
    )
    assert figures(found) == [1, 9, 4]
    assert calls(folder) == [1, 2, 3]
    assert seen == [(3, 3, 3)]


def test_a_cell_with_other_settings_is_made_again(folder: Path) -> None:
    run_cells([cell(folder, 2, optimizer={"lr": 0.1})], 1, run=squares)
    run_cells([cell(folder, 2, optimizer={"lr": 0.2})], 1, run=squares)
    run_cells([cell(folder, 2, optimizer={"lr": 0.2})], 1, run=squares)
    assert calls(folder) == [2, 2]


def test_a_mistake_in_any_cell_is_said_before_the_first_is_made(folder: Path) -> None:
    wrong = replace(cell(folder, 2), config={"method": {"name": "osa", "mood": "raw"}})
    with refused("method.mood", "raw"):
        run_cells([cell(folder, 1), wrong], 1, run=squares)
    assert calls(folder) == []


def test_figures_that_are_not_numbers_are_kept(folder: Path) -> None:
    one = cell(folder, 1)
    write_result(one, CellResult("osa", 0.4, 1, one.digest, {"accuracy": math.nan, "rsum": 3.0}))
    assert "NaN" not in one.file.read_text()
    found = read_result(one)
    assert found is not None and math.isnan(found.figures["accuracy"]) and found.figures["rsum"] == 3.0


def test_a_digest_covers_the_defaults_of_method_and_target(folder: Path) -> None:
    """A default written out is the same cell; another value is another, as another default of a later version would be."""
    settings = {"method": {"name": "npc"}, "target": {"name": "dual", "features": 8}}

    def digest(method: dict[str, object], target: dict[str, object]) -> str:
        changed = {"method": {**settings["method"], **method}, "target": {**settings["target"], **target}}
        return replace(cell(folder, 1), config=changed).digest

    plain = digest({}, {})
    assert digest({"threshold": 0.9}, {}) == digest({}, {"regions": 36}) == plain
    assert len({plain, digest({"threshold": 0.8}, {}), digest({}, {"regions": 35})}) == 3
    with refused("method.treshold", 0.8):
        digest({"treshold": 0.8}, {})


def test_a_digest_does_not_know_where_the_folders_lie(folder: Path) -> None:
    """Moved, renamed or one inside the other: the same digest; another file in a folder, or the other folder, is another."""

    def digest(data: str, bench: str, file: str = "a.tar", table: str = "tables", weights: str = "w") -> str:
        settings = {
            "data": {"shards": [f"{data}/{file}", f"{bench}/b.tar"], "table": f"{bench}/{table}"},
            "target": {"name": "clip", "model": f"local-dir:{bench}/{weights}", "pretrained": None},
        }
        changed = {**cell(folder, 1).config, **settings}
        return replace(cell(folder, 1), config=changed, folders=(Path(data), Path(bench))).digest

    plain = digest("/x", "/y")
    assert digest("/mnt/data", "/home/ü/b") == digest("/y/data", "/y") == digest("/x", "/x/y") == plain
    others = [
        digest("/x", "/y", "c.tar"),
        digest("/x", "/y", table="t"),
        digest("/x", "/y", weights="v"),
        digest("/x", "/x"),
    ]
    assert len({plain, *others}) == 5


def test_a_failure_is_a_row_and_is_tried_again(folder: Path) -> None:
    found = run_cells([cell(folder, 1, fails=True), cell(folder, 2)], 1, run=squares)
    assert [result.error for result in found] == ["ValueError: it diverged", None]
    assert figures(found) == [None, 4]
    run_cells([cell(folder, 1, fails=True), cell(folder, 2)], 1, run=squares)
    assert calls(folder) == [1, 1, 2]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"method": "osa"}', '{"other": 1}'])
def test_a_damaged_result_is_none(folder: Path, text: str) -> None:
    one = cell(folder, 1)
    one.file.write_text(text)
    assert read_result(one) is None


def test_processes_give_what_one_gives_also_when_they_are_replaced(folder: Path) -> None:
    seeds = range(2 * CELLS_PER_PROCESS + 1)
    cells = [cell(folder, seed, fails=seed == 2) for seed in seeds]
    in_turn = run_cells(cells, 1, run=squares)
    for one in cells:
        one.file.unlink()
    assert run_cells(cells, 2, run=squares) == in_turn
    assert calls(folder) == sorted([*seeds, *seeds])


def test_a_killed_process_is_a_row_too(folder: Path) -> None:
    found = run_cells([cell(folder, 1, dies=True)], 2, run=squares)
    assert found[0].error is not None and found[0].error.startswith("its process was killed")


def waits(one: Cell) -> CellResult:
    """A training without end."""
    print("begun", flush=True)
    signal.pause()
    raise AssertionError


def test_trainings_do_not_outlive_a_killed_bench(folder: Path) -> None:
    script = folder / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "from tests.trainers.bench.test_cells import cell, waits\n"
        "from noisegate.trainers.bench.cells import run_cells\n"
        "if __name__ == '__main__':\n"
        f"    run_cells([cell(Path({str(folder)!r}), 1)], 2, run=waits)\n"
    )
    where = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=where)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)  # trainings hold the other end of this pipe: it ends when the last has gone


NOISY = [True, True, True, False, False, False, False, False]
CLEAN_LABEL = [0, 1, 2, 0, 1, 2, 0, None]


@pytest.fixture
def truth(tmp_path: Path) -> Path:
    path = tmp_path / "noise.parquet"
    pq.write_table(pa.table({"noisy": NOISY, "clean_label": pa.array(CLEAN_LABEL, pa.int32())}), path)
    return path


def test_noise_is_the_positive_class(truth: Path) -> None:
    clean = np.array([False, False, True, False, True, True, True, True])  # rejects 3: two of them rightly, of 3
    found = judge_learnt({"clean": clean}, truth)
    assert found == pytest.approx({"noise_precision": 200 / 3, "noise_recall": 200 / 3, "noise_f1": 200 / 3})


def test_repaired_labels_are_counted_where_the_right_one_is_known(truth: Path) -> None:
    refined = np.array([0, 1, 0, 0, 1, 2, 1, 5])  # right: 0, 1, 3, 4, 5 of the seven known
    assert judge_learnt({"refined_label": refined}, truth) == pytest.approx({"relabel_accuracy": 500 / 7})


def test_weights_and_probabilities_are_judgements_too() -> None:
    np.testing.assert_array_equal(kept_rows({"osa_weight": np.array([0.0, 0.1])}), [False, True])
    np.testing.assert_array_equal(kept_rows({"gsl_probability": np.array([0.4, 0.6, np.nan])}), [False, True, True])
    np.testing.assert_array_equal(
        kept_rows({"clean": np.array([1, 0]), "x_probability": np.array([0, 1])}), [True, False]
    )
    assert kept_rows({"crcl_label": np.array([0.4])}) is None


@pytest.mark.parametrize("name", ["osa_weight", "npc_weight"])
def test_weights_are_ranked_as_in_osa_s_table_9(truth: Path, name: str) -> None:
    """Noisy are the first three: one has the largest weight, one was not seen, one shares the places 5 and 6 of seven."""
    weight = np.array([1.0, np.nan, 0.2, 0.9, 0.8, 0.7, 0.2, 0.1])
    found = judge_learnt({name: weight}, truth)
    assert (found["mean_noise_rank"], found["mean_noise_rank_best"]) == ((1 + 5.5) / 2, 6.5)


def test_nothing_learnt_is_nothing_told(truth: Path) -> None:
    assert judge_learnt({}, truth) == {}
    assert "noise_precision" not in judge_learnt({"clean": np.ones(8, bool)}, truth)  # nothing rejected: 0 / 0
