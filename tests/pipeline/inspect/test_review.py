"""Agreement with people's marks, the random sample, the fitted cut, and marks as files: against scipy and plain loops."""

import csv
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from noisegate import read_table
from noisegate.pipeline.inspect.report import write_report
from noisegate.pipeline.inspect.review import (
    Share,
    fit_cut,
    random_places,
    read_figures,
    recalibrate,
    share,
)
from noisegate.pipeline.inspect.review_files import export_marks, import_marks
from noisegate.pipeline.runs import Mark, Reviews, RunFolder, replace_columns, sample_order
from noisegate.pipeline.runs.table import read_metadata
from tests.commands import called
from tests.errors import refused
from tests.fakes import pairs, write_tar
from tests.jobs import score

CHANCE = np.random.default_rng(7).random(120).astype(np.float32)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two shards of 60 and a broken picture each; P(clean) is drawn, clean above 1/2, classes are 0."""
    for i in range(2):
        write_tar(tmp_path / "s" / f"x-{i}.tar", [*pairs(60, 60 * i), ("zz.png", b"junk"), ("zz.txt", b"red")])
    score(tmp_path / "s", tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    for i in range(2):
        part = np.append(CHANCE[60 * i : 60 * i + 60], np.nan)
        clean = [bool(value > 0.5) for value in part[:60]] + [None]
        columns = {"clean_probability": part, "clean": clean, "label": [0] * 61, "predicted_label": [2] * 61}
        run.write_table(f"x-{i}", replace_columns(run.read(f"x-{i}"), columns, read_metadata(run.table(f"x-{i}"))))
    return run.path


def rows_of(run: Path) -> list[dict[str, Any]]:
    return read_table(run).to_pylist()


def mark(run: Path, wanted: dict[int, str], **more: Any) -> None:
    """Mark rows by their number in the whole run; relabelled ones get the class 2."""
    rows = rows_of(run)
    labels = {"relabel": 2}
    Reviews(run).write([Mark.of_row(rows[n], what, labels.get(what), **more) for n, what in wanted.items()])


@pytest.mark.parametrize(("hits", "of"), [(0, 1), (1, 1), (3, 10), (97, 100), (1234, 5000)])
def test_shares_have_wilsons_interval(hits: int, of: int) -> None:
    z, p = 1.959963984540054, hits / of  # the formula, by hand
    centre, width = p + z * z / (2 * of), z * np.sqrt(p * (1 - p) / of + z * z / (4 * of * of))
    found = share(hits, of).interval
    assert found == pytest.approx(((centre - width) / (1 + z * z / of), (centre + width) / (1 + z * z / of)), abs=1e-9)
    oracle = binomtest(hits, of).proportion_ci(method="exact")
    assert found is not None and oracle.low - 0.1 <= found[0] <= p <= found[1] <= oracle.high + 0.1
    assert share(0, 0) == Share(0, 0, None)


def test_agreement_is_counted_as_a_loop_counts_it(run: Path) -> None:
    assert read_figures(run) is None
    rng = np.random.default_rng(1)
    chosen = {int(n): str(rng.choice(["keep", "drop", "relabel"])) for n in rng.permutation(122)[:50]}
    mark(run, chosen)
    rows, figures = rows_of(run), read_figures(run)
    decided = {n: what for n, what in chosen.items() if rows[n]["clean"] is not None}
    agreed = sum((what == "keep") == rows[n]["clean"] for n, what in decided.items())
    assert figures is not None and figures.agreed == share(agreed, len(decided))
    assert figures.marks == {what: list(chosen.values()).count(what) for what in ("keep", "drop", "relabel")}
    assert figures.suggested.hits == figures.suggested.of == figures.marks["relabel"]
    for part in figures.bins:
        here = {n: w for n, w in decided.items() if part.low <= rows[n]["clean_probability"] < part.high}
        assert part.kept == share(sum(w == "keep" for w in here.values()), len(here))
        assert part.agreed == share(sum((w == "keep") == rows[n]["clean"] for n, w in here.items()), len(here))
    assert sum(part.kept.of for part in figures.bins) == len(decided)


def test_the_random_figure_ends_at_the_first_sample_without_a_mark(run: Path) -> None:
    rows = rows_of(run)
    numbers = {(row["shard"], row["index"]): n for n, row in enumerate(rows)}
    keys = {n: sample_order(row["shard"], 61)[row["index"]] for n, row in enumerate(rows) if row["clean"] is not None}
    order = sorted(keys, key=lambda n: keys[n])
    assert [numbers[place] for place in random_places(RunFolder(run))] == order
    marked = [*order[:12], *order[13:20]]  # the 13th was skipped
    mark(run, dict.fromkeys(marked, "keep"))
    figures = read_figures(run)
    first = [rows[n]["clean"] for n in order[:12]]
    assert figures is not None and figures.random == share(sum(first), 12)
    assert figures.kept_right == share(sum(first), sum(first))
    assert figures.dropped_right == share(0, 12 - sum(first))
    mark(run, {order[12]: "drop"})
    figures = read_figures(run)
    assert figures is not None and figures.random.of == 20
    mark(run, {order[0]: "drop"})
    Reviews(run).write([Mark.of_row(rows[order[0]], None)])  # taken back
    figures = read_figures(run)
    assert figures is not None and figures.random == Share(0, 0, None)


def test_a_random_sample_is_not_biased_by_the_other_marks() -> None:
    """Marking the worst first must not push the random figure: the mean over many runs is the share of the whole."""
    rng, found = np.random.default_rng(0), []
    for trial in range(200):
        right = np.arange(100) >= 30  # the tool is wrong on the worst 30
        order = np.argsort(sample_order(f"trial-{trial}", 100))
        marked = {*range(30), *order[: rng.integers(20, 40)].tolist()}
        head = list(itertools.takewhile(marked.__contains__, order.tolist()))
        found.append(np.mean(right[head]))
    assert np.mean(found) == pytest.approx(0.7, abs=0.03)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=25))
def test_the_cut_has_the_fewest_disagreements(marks: list[tuple[int, bool]]) -> None:
    scores, keep = np.array([s / 8 for s, _ in marks]), np.array([k for _, k in marks])
    tried = [sum((s >= c) != k for s, k in zip(scores, keep, strict=True)) for c in np.arange(-0.5, 9.5, 0.5) / 8]
    assert ((scores >= fit_cut(scores, keep)) != keep).sum() == min(tried)


def test_recalibration_finds_where_people_start_to_keep(run: Path) -> None:
    rows = rows_of(run)
    worst = sorted((n for n, row in enumerate(rows) if row["clean"] is not None), key=lambda n: chance(rows[n]))
    with refused("run", run):
        mark(run, dict.fromkeys(worst[:30], "drop"))
        recalibrate(run)
    mark(run, {n: "keep" if chance(rows[n]) > 0.3 else "drop" for n in worst[:70]})  # lowest first, not at random
    found = recalibrate(run)
    below, above = (f([chance(r) for r in rows if r["clean"] is not None and (chance(r) > 0.3) == side])
                    for f, side in ((max, False), (min, True)))  # fmt: skip
    assert found.column == "clean_probability" and below <= found.value <= above
    assert found.interval[0] <= found.value <= found.interval[1]
    assert found.agreed == share(70, 70) and found.agreed_now.hits < 70 and found.held_out > found.held_out_now
    assert found.rule == f'review = "keep" or (review is null and clean_probability >= {found.value:g})'
    assert found.keeps == sum(row["clean"] is not None and chance(row) > 0.3 for row in rows)
    assert recalibrate(run) == found  # seeded


def chance(row: dict[str, Any]) -> float:
    return float(row["clean_probability"])


def test_marks_go_to_files_and_come_back(run: Path, tmp_path: Path) -> None:
    mark(run, {0: "keep", 70: "drop", 3: "relabel"}, reviewer="Ada, B.", at=1_700_000_000.5)
    before = Reviews(run).read()
    for suffix in ("csv", "parquet"):
        file = tmp_path / f"marks.{suffix}"
        assert export_marks(run, file) == 3
        Reviews(run).path.unlink()
        assert import_marks(run, file) == (3, 0)
        assert Reviews(run).read() == before
    rows = list(csv.DictReader((tmp_path / "marks.csv").open()))
    assert [(row["shard"], row["mark"], row["label"]) for row in rows] == [
        ("x-0", "keep", ""), ("x-1", "drop", ""), ("x-0", "relabel", "2")
    ]  # fmt: skip
    rows[0]["image_sha256"] = "00" * 32
    pq.write_table(pa.Table.from_pylist(rows[:2]).drop_columns(["index"]), tmp_path / "changed.parquet")
    assert import_marks(run, tmp_path / "changed.parquet") == (1, 1)


@pytest.mark.parametrize(
    "text",
    [
        "shard,key,mark\nx-0,00003,maybe\n",
        "shard,key,mark\nx-0,00003,\n",
        "shard,key,mark\nx-0,00003,relabel\n",
        "shard,key,mark\nx-9,00003,keep\n",
        "shard,key,mark\nx-0,nothing,keep\n",
        "shard,index,mark\nx-0,61,keep\n",
        "shard,index,mark,at\nx-0,6,keep,yesterday\n",
        "shard,index,mark,label\nx-0,6,relabel,cat\n",
        "key,mark\n00003,keep\n",  # in which of two shards?
        "shard,key\nx-0,00003\n",
        "",
    ],
)
def test_files_that_cannot_be_taken_change_nothing(run: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "marks.csv").write_text(text)
    with refused("import", tmp_path / "marks.csv"):
        import_marks(run, tmp_path / "marks.csv")
    assert not Reviews(run).path.exists()


def test_the_report_has_a_section_where_there_are_marks(run: Path, tmp_path: Path) -> None:
    write_report(run, tmp_path / "before.html", pictures=False)
    assert 'id="review"' not in (tmp_path / "before.html").read_text()
    mark(run, {0: "keep", 1: "drop", 2: "relabel"})
    write_report(run, tmp_path / "after.html", pictures=False)
    section = (tmp_path / "after.html").read_text().split('<section id="review"')[1].split("</section>")[0]
    figures = read_figures(run)
    assert figures is not None and all(value in section for _, value in figures.rows())


def test_the_command_prints_figures_and_what_to_do_next(run: Path, tmp_path: Path) -> None:
    empty = called("review", run, cwd=tmp_path)
    assert empty.returncode == 0 and "noisegate serve --run" in empty.stdout
    rows = rows_of(run)
    mark(run, {n: "keep" if n % 2 else "drop" for n in range(38)})
    few = called("review", run, cwd=tmp_path)  # 19 of each: one too few for a cut
    assert "--export marks.csv" in few.stdout and "--recalibrate" not in few.stdout
    mark(run, {n: "keep" if n % 2 else "drop" for n in range(60)})
    done = called("review", run, "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert found["marks"] == {"keep": 30, "drop": 30, "relabel": 0} and found["cut"] is None
    assert found["agreed"]["hits"] == sum((n % 2 == 1) == rows[n]["clean"] for n in range(60))
    said = called("review", run, "--recalibrate", "--export", "marks.csv", cwd=tmp_path)
    assert said.returncode == 0 and (tmp_path / "marks.csv").exists(), said.stderr
    assert "clean_probability >=" in said.stdout and "--where" in said.stdout
    none = called("review", tmp_path, cwd=tmp_path)
    assert none.returncode == 2 and "holds no run" in none.stderr
