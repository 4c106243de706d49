"""`show` on every kind of run: finished or not, of pairs, labels or arrays, with or without its shards."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from noisegate import read_table
from noisegate.pipeline.cli.show import format_sample
from noisegate.pipeline.errors import TableError
from noisegate.pipeline.inspect.show import (
    BINS,
    Histogram,
    bin_width,
    draw_histogram,
    one_line,
    read_captions,
    read_overview,
)
from noisegate.pipeline.labels.anchors import Anchors, anchors_file
from noisegate.pipeline.runs.table import RunFolder
from noisegate.pipeline.settings import DecodeOptions
from tests.commands import called
from tests.errors import refused
from tests.fakes import pairs, picture, write_tar
from tests.jobs import Notes, files_of, score

EVIL = "wrong\x1b[2J \u202ecaption\r\nof a 図 " + "very " * 50 + "long kind"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two shards in `run`; its worst pair has a caption that a terminal must not see as it is."""
    folder = tmp_path_factory.mktemp("show")
    evil = [("evil.png", picture("red")), ("evil.txt", EVIL.encode())]
    write_tar(folder / "shards" / "x-0.tar", pairs(14))
    write_tar(folder / "shards" / "x-1.tar", [*pairs(14, 20), *evil, ("bad.png", b"no picture"), ("bad.txt", b"red")])
    score(folder / "shards", folder / "run")
    return folder


# --- what is drawn ----------------------------------------------------------------------------------------------------
counts = st.lists(st.integers(0, 10**7), min_size=1, max_size=30).filter(any)


@given(counts, st.one_of(st.none(), st.integers(-3, 40)), st.integers(24, 80))
def test_a_histogram_fits_and_its_bars_keep_the_order_of_the_counts(
    counts: list[int], mark: int | None, width: int
) -> None:
    edges = tuple(0.05 * i for i in range(len(counts) + 1))
    cut = None if mark is None else 0.05 * mark
    lines = draw_histogram(Histogram("similarity", edges, tuple(counts), cut, "β"), width)
    assert all(len(line) <= max(width, 24) for line in lines)
    marks = [i for i, line in enumerate(lines) if "┄" in line]
    assert marks == ([] if mark is None else [min(max(mark, 0), len(counts))])
    bars = [sum(c in "█▉▊▋▌▍▎▏" for c in line) for line in lines if "┄" not in line]
    order = np.argsort(counts, kind="stable")
    assert (np.diff(np.array(bars)[order]) >= 0).all()
    assert [bar > 0 for bar in bars] == [count > 0 for count in counts]


@given(st.floats(0, 50))
def test_bins_are_few_and_round(spread: float) -> None:
    width = bin_width(spread)
    assert spread / width <= BINS * (1 + 1e-9)
    assert f"{width:e}"[0] in "125"


@given(st.text())
def test_captions_are_printable_in_one_line(text: str) -> None:
    assert one_line(text, 20).replace(" ", "").isprintable()
    assert len(one_line(text, 20)) <= 20


# --- runs of pairs ----------------------------------------------------------------------------------------------------
def test_the_histogram_counts_every_score_and_beta_is_an_edge(folder: Path) -> None:
    found = read_overview(folder / "run")
    (histogram,) = found.histograms
    similarity = np.array(read_table(folder / "run")["similarity"].drop_null())
    assert sum(histogram.counts) == len(similarity) == 29
    expected = [
        ((low <= similarity) & (similarity < high)).sum()
        for low, high in zip(histogram.edges, histogram.edges[1:], strict=False)
    ]
    assert list(histogram.counts) == expected
    assert (histogram.mark, histogram.mark_name) == (0.4, "β")
    assert min(abs(edge - 0.4) for edge in histogram.edges) < 1e-9
    assert found.finished
    assert found.summary.samples == 30
    assert found.summary.beta is not None


def test_the_worst_pairs_come_first_with_harmless_captions(folder: Path) -> None:
    found = read_overview(folder / "run", top=4)
    worst = found.worst["similarity"]
    rows = sorted(
        (row for row in read_table(folder / "run").to_pylist() if row["similarity"] is not None),
        key=lambda row: row["similarity"],
    )
    assert [(one.shard, one.key, one.index) for one in worst] == [(r["shard"], r["key"], r["index"]) for r in rows[:4]]
    assert [one.score for one in worst] == [row["similarity"] for row in rows[:4]]
    assert worst[0].key == "evil"
    assert worst[0].caption is not None
    assert worst[0].caption.startswith("wrong [2J caption of a 図 very")
    assert worst[1].caption == f"number {int(worst[1].key)} is {worst[1].caption.split()[-1]}"  # type: ignore[union-attr]


def test_the_summary_is_that_of_the_run(folder: Path, tmp_path: Path) -> None:
    made = score(folder / "shards", tmp_path / "run")
    found = read_overview(tmp_path / "run").summary
    mine, theirs = found.to_dict(), made.to_dict()
    for timing in ("encoded", "pairs_per_second", "seconds"):
        del mine[timing], theirs[timing]
    quantiles = mine.pop("similarity_quantiles"), theirs.pop("similarity_quantiles")
    assert quantiles[0] == pytest.approx(quantiles[1])
    assert mine == theirs


def test_nothing_is_written(folder: Path) -> None:
    before = files_of(folder / "run")
    read_overview(folder / "run")
    assert files_of(folder / "run") == before


# --- what may be missing ----------------------------------------------------------------------------------------------
def test_a_run_without_its_shards_has_no_captions_and_says_so(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "shards", tmp_path / "shards")
    score(tmp_path / "shards", tmp_path / "run")
    write_tar(tmp_path / "shards" / "x-1.tar", pairs(16, 50))  # other keys: not the captions of these rows
    (tmp_path / "shards" / "x-0.tar").unlink()
    found = read_overview(tmp_path / "run")
    assert len(found.worst["similarity"]) == 10
    assert all(one.caption is None for one in found.worst["similarity"])
    assert "captions are shown where the shards are" in found.notes[-1]


def test_captions_of_remote_shards_are_not_fetched(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    recorded = run.read_run()
    assert recorded is not None
    assert read_captions(run, [("x-0", 1, "00001")]) == {("x-0", 1): "number 1 is orange"}
    recorded["shards"][0]["url"] = "https://nowhere.invalid/x-0.tar"
    run.write_run(recorded)
    assert read_captions(run, [("x-0", 1, "00001")]) == {}


def test_an_unfinished_run_shows_what_there_is(tmp_path: Path, shards: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        score(shards, tmp_path / "run", progress=Notes(stop_after=4))
    done = len(list((tmp_path / "run").glob("*.parquet")))
    assert 0 < done < 3
    found = read_overview(tmp_path / "run")
    assert not found.finished
    assert f"{done} of 3 shards have a table" in found.notes[0]
    assert found.histograms[0].mark is None
    assert found.summary.beta is None
    for path in (tmp_path / "run").glob("*.parquet"):
        path.unlink()
    empty = read_overview(tmp_path / "run")
    assert (empty.summary.samples, empty.histograms) == (0, ())


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with refused("run", tmp_path, TableError):
        read_overview(tmp_path)
    with refused("top", -1):
        read_overview(tmp_path, top=-1)
    done = called("show", "nothing", cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "holds no run" in done.stderr
    (tmp_path / "demo" / "tables").mkdir(parents=True)
    (tmp_path / "demo" / "tables" / "_run.json").touch()
    above = called("show", "demo", cwd=tmp_path)
    assert "run demo holds no run, but demo/tables does" in above.stderr


# --- labels and arrays ------------------------------------------------------------------------------------------------
def test_labels_show_the_given_and_the_better_class_by_name(tmp_path: Path) -> None:
    labels = [str((i + (i % 15 == 7)) % 10).encode() for i in range(60)]
    members = [
        (name.replace("txt", "cls"), data if "png" in name else labels[i // 2])
        for i, (name, data) in enumerate(pairs(60))
    ]
    write_tar(tmp_path / "shards" / "x.tar", members)
    score(tmp_path / "shards", tmp_path / "run", options=DecodeOptions(tasks=("labels",)), k=4)
    found = read_overview(tmp_path / "run", top=4)
    assert set(found.worst) == {"label_quality"}
    table = pq.read_table(tmp_path / "run" / "x.parquet").to_pylist()
    first = min(table, key=lambda row: row["label_quality"])
    one = found.worst["label_quality"][0]
    assert (one.key, one.given, one.predicted) == (first["key"], str(first["label"]), str(first["predicted_label"]))
    assert one.confidence == first["predicted_confidence"]
    assert found.histograms[0].mark == 0.5
    names = tuple(f"name-{i}" for i in range(10))
    Anchors(names, np.eye(10, 24, dtype=np.float32), np.arange(10)).save(anchors_file(RunFolder(tmp_path / "run")))
    assert read_overview(tmp_path / "run").worst["label_quality"][0].given == f"name-{first['label']}"
    shown = called("show", "run", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    line = next(line for line in shown.stdout.splitlines() if f"x/{first['key']}" in line)
    assert f"given name-{first['label']}, looks like name-{first['predicted_label']}" in line
    other = replace(one, given="name-3", predicted="name-5", confidence=0.967, caption=None)
    assert format_sample(other) == f"{one.score:7.3f}  x/{first['key']}  given name-3, looks like name-5, 97 %"


def test_runs_of_arrays(array_runs: Path) -> None:
    joint = read_overview(array_runs / "joint", top=2)
    assert (sum(joint.histograms[0].counts), len(joint.worst["similarity"])) == (300, 2)
    apart = read_overview(array_runs / "apart")
    assert [histogram.score for histogram in apart.histograms] == ["neighbourhood"]


# --- the command ------------------------------------------------------------------------------------------------------
def test_the_command_fits_eighty_columns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = called("show", "run", cwd=folder)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("similarity of 29 samples"))
    drawn = [line for line in lines[start + 1 :] if "█" in line or "┄" in line]
    assert any("┄┄ β 0.4000" in line for line in drawn)
    assert max(map(cell_len, drawn)) <= 80
    assert "speed" not in done.stdout
    worst = next(line for line in lines if "x-1/evil" in line)
    assert cell_len(worst) <= 200
    assert worst.endswith("…")
    assert "\x1b" not in done.stdout


def test_json_is_one_object(folder: Path) -> None:
    done = called("show", "run", "--json", "--top", "3", cwd=folder)
    found = json.loads(done.stdout)
    assert found["samples"] == 30
    assert found["finished"] is True
    assert len(found["worst"]["similarity"]) == 3
    assert sum(found["histograms"][0]["counts"]) == 29
