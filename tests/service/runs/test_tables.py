"""Looking into a finished run, against plain numpy over the whole table."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from noisegate import read_table
from noisegate.pipeline.errors import TableError
from noisegate.pipeline.pairs.calibration_fit import calibrate_pairs
from noisegate.service.runs.tables import Filters, RunTables, usual_similarities
from tests.errors import refused
from tests.fakes import pairs, picture, write_tar
from tests.jobs import score


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of 40 samples, a third of the captions wrong, a picture that is none and one without a caption."""
    folder = tmp_path_factory.mktemp("tables")
    for shard in range(3):
        members = pairs(40, 100 * shard)
        for place in range(0, 39, 3):  # the caption of the next one
            (name, _), (_, other) = members[2 * place + 1], members[2 * place + 3]
            members[2 * place + 1] = (name, other)
        members += [(f"bad_{shard}.png", b"no picture"), (f"bad_{shard}.txt", b"red"), (f"mute_{shard}.png", picture())]
        write_tar(folder / "shards" / f"x-{shard:02d}.tar", members)
    score(folder / "shards", folder / "tables")
    return folder / "tables"


def rows_of(run: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_table(run).to_pylist()
    return rows


def keys(run: Path, view: Any, count: int = 1000, **filters: Any) -> list[str]:
    tables = RunTables(run)
    return [row["key"] for row in tables.rows(tables.choose(view, Filters(**filters)), 0, count)]


def scored(run: Path) -> list[dict[str, Any]]:
    return [row for row in rows_of(run) if row["similarity"] is not None]


def test_views_are_the_table_in_their_order(run: Path) -> None:
    rows = scored(run)
    by_score = [row["key"] for row in sorted(rows, key=lambda row: row["similarity"])]
    assert keys(run, "worst") == by_score
    assert keys(run, "best") == [row["key"] for row in sorted(rows, key=lambda row: -row["similarity"])]
    assert keys(run, "borderline") == [row["key"] for row in sorted(rows, key=lambda row: abs(row["similarity"] - 0.4))]
    assert keys(run, "all") == [row["key"] for row in rows_of(run)]


def test_a_page_is_a_part_of_its_view(run: Path) -> None:
    tables = RunTables(run)
    chosen = tables.choose("best", Filters())
    whole = [row["key"] for row in tables.rows(chosen, 0, 1000)]
    assert [row["key"] for row in tables.rows(chosen, 50, 7)] == whole[50:57]
    assert tables.rows(chosen, 500, 7) == []
    assert chosen.total == len(whole) == 120


def test_filters_keep_what_a_loop_keeps(run: Path) -> None:
    rows = rows_of(run)
    chances = [row["clean_probability"] for row in scored(run)]
    low, high = float(np.quantile(chances, 0.2)), float(np.quantile(chances, 0.9))

    def expected(keep: Any) -> set[str]:
        return {row["key"] for row in rows if keep(row)}

    assert set(keys(run, "all", low=low, high=high)) == expected(
        lambda row: row["clean_probability"] is not None and low <= row["clean_probability"] <= high
    )
    assert set(keys(run, "all", status="bad_image")) == {"bad_0", "bad_1", "bad_2"}
    assert keys(run, "worst", status="bad_image") == []  # they have no score
    assert set(keys(run, "all", clean=False)) == expected(lambda row: row["clean"] is False)
    assert set(keys(run, "all", key="_1")) == {"bad_1", "mute_1"}  # not a wildcard
    assert set(keys(run, "all", shard="x-01", where="similarity > 0.5 or status <> 'ok'")) == expected(
        lambda row: row["shard"] == "x-01" and (row["status"] != "ok" or row["similarity"] > 0.5)
    )


def test_a_rule_of_the_user_cannot_widen_the_other_filters(run: Path) -> None:
    with refused("where"):
        keys(run, "all", status="bad_image", where="true) or (true")
    assert set(keys(run, "all", status="bad_image", where="true or true")) == {"bad_0", "bad_1", "bad_2"}


def test_the_histogram_counts_every_row_once_with_an_edge_at_the_cut(run: Path) -> None:
    rows = scored(run)
    bins = RunTables(run).histogram("similarity", Filters(), 40)
    assert bins is not None and len(bins.edges) == len(bins.kept) + 1 <= 41
    assert min(abs(edge - 0.4) for edge in bins.edges) < 1e-9
    values, clean = np.array([row["similarity"] for row in rows]), np.array([row["clean"] for row in rows])
    assert list(bins.kept) == np.histogram(values[clean], bins.edges)[0].tolist()
    assert list(bins.dropped) == np.histogram(values[~clean], bins.edges)[0].tolist()
    assert sum(bins.unknown) == 0


def test_a_histogram_of_nothing_is_none(run: Path) -> None:
    assert RunTables(run).histogram("similarity", Filters(status="bad_image")) is None
    assert RunTables(run).histogram("label_quality", Filters()) is None


def test_the_overview_has_the_figures_of_show(run: Path) -> None:
    rows = rows_of(run)
    found = RunTables(run).overview()
    assert found["samples"] == 126 and found["statuses"] == {"ok": 120, "bad_image": 3, "no_text": 3}
    assert found["kept"] == sum(row["clean"] is True for row in rows)
    assert found["beta"]["value"] == 0.4 and found["class_counts"] == []
    assert 0 < found["calibration"]["expected"]["clean_precision"] <= 1


def test_one_row_and_no_row(run: Path) -> None:
    tables = RunTables(run)
    expected = next(row for row in rows_of(run) if row["shard"] == "x-02" and row["index"] == 17)
    assert tables.row("x-02", 17) == expected | {"review": None, "review_label": None}
    assert tables.row("x-02", 42) is None and tables.row("x-02", -1) is None
    assert tables.row("../x-02", 0) is None and tables.row("x-07", 0) is None


def test_answers_follow_the_files(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "tables"
    copy.mkdir()
    for name in ("_run.json", "x-00.parquet", "x-01.parquet", "x-02.parquet"):
        (copy / name).write_bytes((run / name).read_bytes())
    tables = RunTables(copy)
    first = tables.choose("worst", Filters())
    assert tables.choose("worst", Filters()) is first  # cached
    (copy / "x-01.parquet").unlink()
    assert tables.choose("worst", Filters()).total == 80
    (copy / "_run.json").unlink()
    with pytest.raises(TableError):
        tables.choose("worst", Filters())


def test_what_cannot_be_asked_is_named(run: Path) -> None:
    tables = RunTables(run)
    with refused("view", "borderline"):
        tables.choose("borderline", Filters(), by="knn_consistency")
    with refused("column", "key"):
        tables.histogram("key", Filters())


def test_usual_places_are_those_of_the_two_kinds() -> None:
    rng = np.random.default_rng(0)
    wrong, right = rng.normal(0.15, 0.03, 4000), rng.normal(0.30, 0.03, 6000)
    found = usual_similarities(calibrate_pairs(np.concatenate([wrong, right]), rng.normal(0.15, 0.03, 8000)))
    assert found["wrong"] == pytest.approx((0.15 - 0.049, 0.15, 0.15 + 0.049), abs=0.01)
    assert found["right"] == pytest.approx((0.30 - 0.049, 0.30, 0.30 + 0.049), abs=0.01)


def test_clean_data_has_no_usual_place_for_wrong_pairs() -> None:
    rng = np.random.default_rng(0)
    found = usual_similarities(calibrate_pairs(rng.normal(0.5, 0.03, 3000), rng.normal(0.1, 0.03, 3000)))
    assert found["wrong"] is None and found["right"] is not None
