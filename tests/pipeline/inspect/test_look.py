"""Galleries and histograms for notebooks: which rows they show, of a run or of a table, and what they draw."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

import noisegate as ng
from noisegate.pipeline.errors import TableError
from tests.errors import refused
from tests.fakes import picture, write_tar
from tests.jobs import score

COLOURS = ("red", "green", "blue")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 pictures in two shards, every third with the caption of another colour, and one broken."""
    folder = tmp_path_factory.mktemp("look")
    for shard in range(2):
        members: list[tuple[str, bytes]] = []
        for i in range(12):
            colour = COLOURS[i % 3]
            said = COLOURS[(i + 1) % 3] if i % 3 == 0 else colour
            data = b"junk" if (shard, i) == (1, 11) else picture(colour)
            members += [(f"{shard}-{i:02d}.png", data), (f"{shard}-{i:02d}.txt", f"it is {said} <b>".encode())]
        write_tar(folder / "shards" / f"s{shard}.tar", members)
    score(folder / "shards", folder / "tables")
    return folder / "tables"


def test_the_worst_the_best_and_the_borderline_come_first(run: Path) -> None:
    table = ng.read_table(run)
    ok = table.filter(pc.equal(table["status"], "ok"))
    similarity = dict(zip(ok["key"].to_pylist(), ok["similarity"].to_pylist(), strict=True))
    orders = {"worst": lambda s: s, "best": lambda s: -s, "borderline": lambda s: abs(s - 0.4)}
    for order, rank in orders.items():
        shown = ng.gallery(run, order=order, limit=5)
        expected = sorted(rank(value) for value in similarity.values())[:5]
        assert [rank(similarity[row.key]) for row in shown.rows] == pytest.approx(expected)
        assert len(shown) == 5 and order in repr(shown)


def test_a_rule_limits_the_rows(run: Path) -> None:
    assert {row.key for row in ng.gallery(run, where="shard = 's1' and not clean", limit=50).rows} == {
        f"1-{i:02d}" for i in (0, 3, 6, 9)
    }
    assert len(ng.gallery(run, where="similarity > 5")) == 0
    assert [row.key for row in ng.gallery(ng.read_table(run), run=run, where="status != 'ok'").rows] == ["1-11"]


def test_a_table_is_shown_in_its_own_order(run: Path) -> None:
    table = ng.read_table(run).sort_by([("key", "descending")])
    shown = ng.gallery(table, run=run, limit=3)
    assert [row.key for row in shown.rows] == ["1-11", "1-10", "1-09"]
    page = shown._repr_html_()
    assert (
        page.count("data:image/jpeg") == 2 and "it is green &lt;b&gt;" in page and "kept" in page and "dropped" in page
    )


def test_shards_that_are_gone_cost_the_pictures_only(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run.parent, tmp_path / "moved")
    record = tmp_path / "moved" / "tables" / "_run.json"
    record.write_text(record.read_text().replace(str(run.parent / "shards"), str(tmp_path / "nowhere")))
    page = ng.gallery(tmp_path / "moved" / "tables", limit=2)._repr_html_()
    assert "pictures are missing" in page and "similarity" in page and "<img" not in page


def test_the_histogram_counts_every_score(run: Path) -> None:
    drawn = ng.histogram(run)
    values = ng.read_table(run)["similarity"].drop_null().to_numpy()
    assert drawn.counts.sum() == len(values) == 23
    inside = [((values >= a) & (values < b)).sum() for a, b in zip(drawn.edges[:-1], drawn.edges[1:], strict=True)]
    assert np.abs(np.cumsum(inside) - np.cumsum(drawn.counts)).max() <= 1  # the edge itself may round
    assert drawn.mismatched is not None and drawn.mismatched.sum() > 23
    page = drawn._repr_html_()
    assert "<svg" in page and "β 0.400" in page and "23 pairs" in page and "23 pairs" in repr(drawn)


def test_the_histogram_of_a_column_a_rule_or_a_table(run: Path) -> None:
    assert ng.histogram(run, column="osa_weight", where="shard = 's0'").counts.sum() == 12
    table = ng.read_table(run)
    alone = ng.histogram(table, column="similarity")
    assert alone.counts.sum() == 23 and alone.mismatched is None and alone.view.cut is None
    assert ng.histogram(run, column="index").edges[-1] >= 11
    with refused("column", "label_quality", TableError):  # pairs have none
        ng.histogram(table, column="label_quality")


@pytest.mark.parametrize(
    ("call", "setting", "error"),
    [
        (lambda run: ng.gallery(run, order="random"), "order", None),
        (lambda run: ng.gallery(run, limit=0), "limit", None),
        (lambda run: ng.gallery(run, where="similarity >"), "where", None),
        (lambda run: ng.gallery(run / "none"), "run", TableError),
        (lambda run: ng.gallery(ng.read_table(run)), "run", None),
        (lambda run: ng.gallery(run, run=run), "run", None),
        (lambda run: ng.gallery(ng.read_table(run, ["similarity"]), run=run), "table", TableError),
        (lambda run: ng.gallery([1, 2]), "source", None),
        (lambda run: ng.histogram(run, column="key"), "column", None),
        (lambda run: ng.histogram(run, column="nothing"), "column", None),
        (lambda run: ng.histogram(ng.read_table(run, ["key"])), "column", TableError),
    ],
)
def test_what_cannot_be_shown(run: Path, call: Any, setting: str, error: Any) -> None:
    with refused(setting, **({"error": error} if error else {})):
        call(run)


def test_runs_without_pictures(array_runs: Path) -> None:
    page = ng.gallery(array_runs / "joint", limit=3)._repr_html_()
    assert page.count('class="card"') == 3 and "no picture" in page
    assert ng.histogram(array_runs / "apart").view.column == "neighbourhood"


def test_a_summary_shows_the_figures_that_the_command_prints(run: Path, tmp_path: Path) -> None:
    summary = score(run.parent / "shards", tmp_path / "tables")
    text, page = repr(summary), summary._repr_html_()
    assert "0.4000 (fixed)" in text and "bad_image" in text and str(tmp_path) in text
    assert page.startswith("<table") and "0.4000 (fixed)" in page and "weight 0" in page
