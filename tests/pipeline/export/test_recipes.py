"""Recipes of the field: worked examples, and what an export with one holds."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from noisegate.pipeline.export import export
from noisegate.pipeline.export.recipes import RECIPES, soft_cap
from noisegate.pipeline.runs.table import RunFolder, table_from
from tests.errors import refused
from tests.jobs import run_record, table_facts

NONE = np.nan


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Ten pairs in two tables; the last could not be scored."""
    folder = RunFolder(tmp_path / "tables")
    folder.path.mkdir()
    similarity = [0.9, 0.1, 0.8, 0.2, 0.7, 0.3, 0.6, 0.4, 0.5, None]
    for number, stem in enumerate(("x-0", "x-1")):
        rows = slice(5 * number, 5 * number + 5)
        columns = {
            "key": [str(i) for i in range(10)][rows],
            "index": list(range(5)),
            "status": pa.array(["ok"] * 5),
            "similarity": similarity[rows],
            "clean_probability": [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.5, 0.5, 0.5, None][rows],
        }
        folder.write_table(stem, table_from(columns, table_facts(5)))
    folder.write_run(run_record([{"url": f"{s}.tar", "table": s, "rows": 5} for s in ("x-0", "x-1")]))
    return folder.path


def keys(run: Path, **options: object) -> list[str]:
    export(run, run.parent / "keys.txt", "keys", overwrite=True, **options)  # type: ignore[arg-type]
    return (run.parent / "keys.txt").read_text().split()


def test_the_top_share_is_of_the_scored_rows_that_the_rule_keeps(run: Path) -> None:
    assert keys(run, recipe="clip-score") == ["0", "2", "4"]  # 30 % of nine
    assert keys(run, recipe="clip-score", share=0.5) == ["0", "2", "4", "6"]
    assert keys(run, recipe="clip-score", share=0.5, where="similarity < 0.65") == ["6", "7", "8"]


def test_quality_first_then_nearness_to_the_target() -> None:
    """Ten rows: 30 % by quality are 0, 1, 2; two thirds of these by nearness are 0 and 2."""
    columns = {
        "negcliploss": np.array([9, 8, 7, 6, 5, 4, 3, 2, 1, 0], np.float32),
        "normsim": np.array([3, 1, 2, 9, 9, 9, 9, 9, 9, 9], np.float32),
    }
    counts = RECIPES["negcliploss-normsim"].count(columns, 0.3, np.random.default_rng(0))
    assert counts.tolist() == [1, 0, 1, 0, 0, 0, 0, 0, 0, 0]


def test_soft_cap_draws_the_likelier_more_often_but_not_without_end() -> None:
    counts = soft_cap(np.array([np.log(0.8), np.log(0.2), -np.inf, NONE]), 4_000, 0.0, np.random.default_rng(0))
    assert counts[0] == pytest.approx(3_200, abs=100) and counts[2:].tolist() == [0, 0]
    free = [soft_cap(np.log([0.9, 0.1]), 400, penalty, np.random.default_rng(0))[0] for penalty in (0.0, 0.5)]
    assert free[1] < free[0]  # the penalty evens them out
    assert soft_cap(np.log([0.9, 0.1]), 400, 0.5, np.random.default_rng(0))[0] == pytest.approx(200, abs=10)


def test_a_recipe_that_repeats_writes_keys_as_often_as_they_are_drawn(run: Path) -> None:
    drawn = keys(run, recipe="soft-cap", share=20.0, seed=1)
    assert len(drawn) == 20 * 9 and not {"1", "3", "5", "9"} & set(drawn)
    assert drawn == keys(run, recipe="soft-cap", share=20.0, seed=1)
    export(run, run.parent / "rows.csv", "csv", recipe="soft-cap", share=20.0, seed=1)
    assert len((run.parent / "rows.csv").read_text().splitlines()) == 1 + len(drawn)


def test_what_a_recipe_cannot_do_is_said(run: Path) -> None:
    for setting, kind, options in (
        ("recipe", "keys", {"recipe": "clipscore"}),
        ("recipe", "keys", {"recipe": "negcliploss-normsim"}),
        ("recipe", "shards", {"recipe": "soft-cap"}),
        ("share", "keys", {"recipe": "clip-score", "share": 1.5}),
        ("share", "keys", {"share": 0.5}),
        ("where", "keys", {"where": "hype_score > 0.5"}),
        ("columns", "csv", {"recipe": "soft-cap", "columns": ["key", "caption"]}),
    ):
        with refused(setting):
            export(run, run.parent / "none", kind, **options)  # type: ignore[arg-type]
