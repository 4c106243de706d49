"""People's marks: two reviewers at once, a killed one, changed samples, and marks as columns in rules and exports."""

import csv
import signal
import sqlite3
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from noisegate import read_table
from noisegate.pipeline.errors import TableError
from noisegate.pipeline.export import export
from noisegate.pipeline.runs import Mark, Reviews, RunFolder, parse_where, replace_columns, sample_order
from noisegate.pipeline.runs.table import read_metadata
from noisegate.pipeline.system.mirror import copy_folder
from tests.errors import refused
from tests.fakes import pairs, write_tar
from tests.jobs import files_of, score

WRITER = """
import sys
from pathlib import Path
from noisegate.pipeline.runs.reviews import Mark, Reviews
reviews, name, count = Reviews(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
for i in range(count):
    reviews.write([Mark("x", i, f"k{i}", None, None, "keep", reviewer=name)])
    print(i, flush=True)
"""
# writes in a transaction that it never ends, with the pages already in the file
HANGS = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("pragma cache_size = 1")
database.execute("begin immediate")
for i in range(2000):
    database.execute("insert into marks (shard, 'index', key, mark, at) values ('x', 0, 'k', 'drop', 1)")
print("begun", flush=True)
sys.stdin.read()
"""


def mark(index: int, what: str | None, label: int | None = None, **changes: Any) -> Mark:
    return replace(Mark("x", index, f"k{index}", b"i" * 32, b"t" * 32, what, label), **changes)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Ten samples with classes, which the fake model does not judge."""
    members = [*pairs(10), *((f"{i:05d}.cls", b"1") for i in range(10))]
    write_tar(tmp_path / "s" / "x.tar", sorted(members, key=lambda member: member[0]))
    score(tmp_path / "s", tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    labelled = replace_columns(run.read("x"), {"label": [1] * 10}, read_metadata(run.table("x")))
    run.write_table("x", labelled)
    return run.path


def of_run(run: Path, index: int, what: str | None, label: int | None = None) -> Mark:
    row = read_table(run).to_pylist()[index]
    return Mark("x", index, row["key"], row["image_sha256"], row["text_sha256"], what, label)


def test_the_last_mark_counts_and_all_are_kept(tmp_path: Path) -> None:
    reviews = Reviews(tmp_path)
    assert reviews.read() == [] and not reviews.path.exists()  # looking makes no file
    reviews.write([mark(0, "keep"), mark(1, "drop", reviewer="Ada", at=5.0), mark(2, "relabel", 3)])
    reviews.write([mark(0, "drop"), mark(2, None)])
    assert [(m.index, m.mark, m.reviewer) for m in reviews.read()] == [(1, "drop", "Ada"), (0, "drop", None)]
    assert [(m.index, m.mark, m.label) for m in reviews.history()] == [
        (0, "keep", None), (1, "drop", None), (2, "relabel", 3), (0, "drop", None), (2, None, None)
    ]  # fmt: skip
    assert reviews.history()[1].at == 5.0 and reviews.history()[0].at > 1.7e9
    assert reviews.read("y") == []


def test_marks_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    for what, label in (("maybe", None), ("relabel", None), ("keep", 3), (None, 3)):
        with refused("mark", what):
            mark(0, what, label)
    with refused("label", -1):
        mark(0, "relabel", -1)


def test_two_reviewers_at_once_lose_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    both = [subprocess.Popen([*command, name, "60"], stdout=subprocess.DEVNULL) for name in ("Ada", "Bob")]
    assert [process.wait(60) for process in both] == [0, 0]
    history = Reviews(tmp_path).history()
    for name in ("Ada", "Bob"):
        assert [m.index for m in history if m.reviewer == name] == list(range(60))
    assert len(Reviews(tmp_path).read()) == 60  # the same samples


def test_a_killed_reviewer_leaves_whole_marks(tmp_path: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path), "Ada", "100000"], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    said = [writer.stdout.readline() for _ in range(5)]
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    confirmed = len(said) + len(writer.stdout.readlines())
    kept = Reviews(tmp_path).read()
    assert confirmed <= len(kept) <= confirmed + 1  # it may have died between the mark and the word
    before = Reviews(tmp_path).history()
    hanging = subprocess.Popen(
        [sys.executable, "-c", HANGS, str(Reviews(tmp_path).path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert hanging.stdout is not None and hanging.stdout.readline() == "begun\n"
    hanging.send_signal(signal.SIGKILL)
    hanging.wait()
    assert Reviews(tmp_path).path.with_name("_reviews.sqlite-journal").exists()
    assert Reviews(tmp_path).history() == before
    Reviews(tmp_path).write([mark(0, "drop")])
    assert len(Reviews(tmp_path).history()) == len(before) + 1


def test_the_first_mark_is_not_there_before_it_is_whole(tmp_path: Path) -> None:
    path = Reviews(tmp_path).path
    path.touch()  # SQLite makes the file before its first transaction ends
    assert Reviews(tmp_path).read() == []
    Reviews(tmp_path).write([mark(0, "keep")])
    assert len(Reviews(tmp_path).read()) == 1


def test_marks_need_no_new_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sqlite_schema` is the name of `sqlite_master` from SQLite 3.33 on only."""
    statements: list[str] = []
    connect = sqlite3.connect

    def traced(*arguments: Any, **settings: Any) -> sqlite3.Connection:
        database = connect(*arguments, **settings)
        database.set_trace_callback(statements.append)
        return database

    monkeypatch.setattr(sqlite3, "connect", traced)
    Reviews(tmp_path).write([mark(0, "keep")])
    assert len(Reviews(tmp_path).read()) == 1
    assert any("sqlite_master" in statement for statement in statements)
    assert not any("sqlite_schema" in statement for statement in statements)


def test_files_that_are_no_marks_are_named(tmp_path: Path) -> None:
    path = Reviews(tmp_path).path
    path.write_bytes(b"no database, " * 100)
    with refused("reviews", path, TableError):
        Reviews(tmp_path).read()
    path.unlink()
    newer = sqlite3.connect(path)
    newer.execute("pragma user_version = 2")
    newer.close()
    with refused("reviews", path, TableError):
        Reviews(tmp_path).write([mark(0, "keep")])
    with refused("reviews", error=TableError):
        Reviews(tmp_path / "nowhere").write([mark(0, "keep")])


_LOOSE = 'create table marks (id integer, shard, "index", key, image_sha256, text_sha256, mark, label, reviewer, at)'
_ENDLESS = """
create view marks as with recursive c(id) as (select 1 union all select id + 1 from c)
select id, 'x' shard, 0 "index", 'k' key, null image_sha256, null text_sha256, 'keep' mark, null label, null reviewer, 0.0 at
from c
"""


@pytest.mark.parametrize(
    ("schema", "row"),
    [
        (_LOOSE, ("x", "many", "k", b"", b"", "keep", None, None, 0.0)),
        (_LOOSE, ("x", -1, "k", b"", b"", "keep", None, None, 0.0)),
        (_LOOSE, ("x", 0, None, b"", b"", "keep", None, None, 0.0)),
        (_LOOSE, ("x", 0, "k", b"", b"", "burn", None, None, 0.0)),
        (_LOOSE, ("x", 0, "k", b"", b"", "keep", None, None, 1e300)),
        (_LOOSE, ("x", 0, "k", b"", b"", "keep", None, None, "yesterday")),
        (_LOOSE.replace("reviewer,", "reviewer as (zeroblob(900000000)),"), ()),
        (_ENDLESS, ()),
    ],
)
def test_a_hostile_file_of_marks_is_one_error(tmp_path: Path, schema: str, row: tuple[Any, ...]) -> None:
    """It may come with somebody's run; a view would be computed, for ever where it has no end."""
    path = Reviews(tmp_path).path
    hostile = sqlite3.connect(path)
    hostile.execute(schema)
    if row:
        hostile.execute("insert into marks values (1, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    hostile.execute("pragma user_version = 1")
    hostile.commit()
    hostile.close()
    with refused("reviews", path, TableError):
        Reviews(tmp_path).read()


def test_marks_are_not_written_to_a_copy_of_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    copy = copy_folder("memory://bucket/run", "read")
    with refused("reviews", copy, TableError):
        Reviews(copy).write([mark(0, "keep")])


def test_marks_are_columns_of_rules_and_tables(run: Path) -> None:
    tables = {name: data for name, data in files_of(run).items() if not name.startswith("_reviews")}
    marks = [of_run(run, 2, "keep"), of_run(run, 3, "drop"), of_run(run, 4, "relabel", 2)]
    Reviews(run).write(marks)
    table = read_table(run, ["review", "key", "review_label", "clean"])
    assert table.column_names == ["shard", "review", "key", "review_label", "clean"]
    wanted = [None, None, "keep", "drop", "relabel", *[None] * 5]
    assert table["review"].to_pylist() == wanted
    assert table["review_label"].to_pylist() == [2 if what == "relabel" else None for what in wanted]
    clean = table["clean"].to_pylist()
    rule = parse_where("review = 'keep' or (review is null and clean)")
    expected = [what == "keep" or (what is None and kept is True) for what, kept in zip(wanted, clean, strict=True)]
    assert rule.rows(RunFolder(run), "x").tolist() == expected
    assert parse_where("review_label = 2 and shard = 'x'").rows(RunFolder(run), "x").tolist() == [
        what == "relabel" for what in wanted
    ]
    assert "review" not in read_table(run).column_names  # only where asked for
    assert {name: data for name, data in files_of(run).items() if not name.startswith("_reviews")} == tables


def test_a_mark_does_not_apply_to_a_changed_sample(run: Path) -> None:
    same = of_run(run, 2, "keep")
    other = replace(of_run(run, 3, "drop"), image_sha256=b"?" * 32)
    moved, beyond = replace(of_run(run, 4, "drop"), key="another"), replace(of_run(run, 5, "drop"), index=10)
    Reviews(run).write([same, other, moved, beyond])
    assert read_table(run, ["review"])["review"].to_pylist() == [None, None, "keep", *[None] * 7]


def test_exports_carry_marks_and_labels_of_people(run: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "before.csv", "csv")
    assert "review" not in (tmp_path / "before.csv").read_text().splitlines()[0]
    Reviews(run).write([of_run(run, 0, "keep"), of_run(run, 4, "relabel", 2)])
    export(run, tmp_path / "plain.csv", "csv")
    rows = list(csv.DictReader((tmp_path / "plain.csv").open()))
    assert [row["review"] for row in rows] == ["keep", "", "", "", "relabel", "", "", "", "", ""]
    assert [row["review_label"] for row in rows] == ["", "", "", "", "2", "", "", "", "", ""]
    assert {row["label"] for row in rows} == {"1"}
    done = export(run, tmp_path / "right.csv", "csv", review_labels=True, where="review is not null", columns=["label"])
    assert done.kept == 2 and (tmp_path / "right.csv").read_text().split() == ['"label"', "1", "2"]
    export(run, tmp_path / "shards", "shards", review_labels=True)
    with tarfile.open(tmp_path / "shards" / "x.tar") as tar:
        classes = [tar.extractfile(name).read() for name in tar.getnames() if name.endswith(".cls")]  # type: ignore[union-attr]
    assert classes == [b"2" if i == 4 else b"1" for i in range(10)]


def test_the_random_order_is_uniform_and_fixed() -> None:
    order = np.concatenate([sample_order(f"shard-{i}", 1000) for i in range(20)])
    assert len(np.unique(order)) == 20_000 and order.min() >= 0 and order.max() < 1
    counts = np.histogram(order, 20, (0, 1))[0]
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.03
    assert sample_order("shard-3", 500).tolist() == order[3000:3500].tolist()
