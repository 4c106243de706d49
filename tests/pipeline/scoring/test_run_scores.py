"""The second half of a run: every column is what its function says, flags name the right rows, the graph is kept."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noisegate import osa_weight, read_table
from noisegate.pipeline.labels.scoring import score_labels
from noisegate.pipeline.neighbours import Neighbours, find_neighbours
from noisegate.pipeline.pairs.calibration import PairCalibration
from noisegate.pipeline.rescore import score_embeddings
from noisegate.pipeline.runs.embeddings import read_embeddings, write_embeddings
from noisegate.pipeline.runs.table import RunFolder, read_metadata
from noisegate.pipeline.scoring import DUPLICATE_COSINE, learn_scores, write_scores
from noisegate.pipeline.settings import DecodeOptions, ScoreSettings
from tests.embeddings import captions, clusters, scored, split, tables_of
from tests.errors import refused
from tests.fakes import picture, write_tar
from tests.jobs import BETA, score

BOTH = DecodeOptions(tasks=("pairs", "labels"))
LABELS = DecodeOptions(tasks=("labels",))
COLOURS = ("red", "green", "blue", "brown")


def values(table: pa.Table, name: str) -> Any:
    """A column with NaN for null."""
    return table[name].to_numpy(zero_copy_only=False).astype(float)


def samples(count: int, start: int = 0, text: bool = True, label: bool = True, image: bool = True) -> Any:
    members = []
    for i in range(start, start + count):
        colour = COLOURS[i % 4]
        members.append((f"{i:05d}.png", picture(colour, (16 + i, 16)) if image else b"junk"))
        members += [(f"{i:05d}.txt", f"number {i} is {colour}".encode())] if text else []
        members += [(f"{i:05d}.cls", str(i % 4).encode())] if label else []
    return members


def score_again(run: RunFolder, stems: list[str], settings: ScoreSettings, **options: Any) -> None:
    write_scores(run, stems, learn_scores(run, stems, settings, **options))


# --- columns ---------------------------------------------------------------------------------------------------------


def test_every_column_is_what_its_function_says(tmp_path: Path) -> None:
    images, true = clusters(count=160)
    images[5], texts = np.nan, captions(images, wrong=40)
    given = np.where(np.arange(160) % 5 == 1, (true + 1) % 4, true)
    given[9] = -1
    settings = ScoreSettings(beta="fixed:0.9", k=30, neighbourhood=True, seed=4)
    scored(tmp_path, images, texts, labels=given, settings=settings)
    table, run = read_table(tmp_path / "out"), RunFolder(tmp_path / "out")
    recorded = read_metadata(run.table("images"))
    cosine = values(table, "similarity").astype(np.float32)
    ok = np.arange(160) != 5
    kept = np.where(ok[:, None], read_embeddings(run.embeddings("images"), "image"), 0)
    graph = find_neighbours(kept, 30)
    wanted = score_labels([kept], np.where(ok, given, -1), graph, seed=4)
    for name in ("knn_consistency", "probe_consistency", "label_quality", "consistency", "refined_confidence"):
        np.testing.assert_array_equal(values(table, name), wanted.columns[name].astype(np.float32), err_msg=name)
    weight = osa_weight(cosine.astype(float), 0.9).astype(np.float32)
    np.testing.assert_array_equal(values(table, "osa_weight")[ok], weight[ok])
    labels_alone = wanted.columns["clean_probability"]
    calibration = PairCalibration.from_dict(recorded["calibration"])
    pairs_alone = calibration.clean_probability(cosine)
    assert (
        recorded["neighbourhood"]["weight"] == 0
    )  # the cosine is good here, so the pair's probability is the cosine's
    both = np.where(np.isnan(labels_alone), pairs_alone, np.minimum(labels_alone, pairs_alone))
    np.testing.assert_array_equal(values(table, "clean_probability")[ok], both[ok])
    clean = np.where(np.isnan(labels_alone), True, wanted.columns["clean"]) & (cosine > 0.9)
    assert [c for c, k in zip(table["clean"].to_pylist(), ok, strict=True) if k] == clean[ok].tolist()
    assert values(table, "anchor_consistency").tolist() == pytest.approx([np.nan] * 160, nan_ok=True)
    assert recorded["labels"] == wanted.facts()


def test_failed_samples_keep_null_in_every_score(tmp_path: Path) -> None:
    images, given = clusters(count=80)
    images[[2, 40]], texts = 0, captions(images)
    texts[3] = np.nan
    scored(tmp_path, images, texts, labels=given, settings=ScoreSettings(neighbourhood=True))
    table = read_table(tmp_path / "out")
    for row in (2, 3, 40):
        found = {name: value for name, value in table.slice(row, 1).to_pylist()[0].items() if value not in (None, [])}
        assert set(found) == {"shard", "key", "index", "status", "error", "label"}
    assert {name for name in table.column_names if table[name].null_count == 3} >= {"clean", "label_quality"}


def test_with_both_tasks_clean_means_what_is_there(tmp_path: Path) -> None:
    """A sample without caption is judged by its label, one without label by its caption, the others by both."""
    labelled = samples(240)
    for i in range(0, 240, 3):
        labelled[3 * i + 2] = (f"{i:05d}.cls", str((i + 1 + i % 2) % 4).encode())
    labelled[1] = ("00000.txt", b"number 0 is blue")  # its picture is red
    write_tar(tmp_path / "s" / "a.tar", labelled)
    write_tar(tmp_path / "s" / "b.tar", samples(120, 240, text=False))
    write_tar(tmp_path / "s" / "c.tar", samples(120, 360, label=False))
    score(tmp_path / "s", tmp_path / "out", options=BOTH)
    both = read_table(tmp_path / "out").to_pylist()
    alone = []
    for task in ("pairs", "labels"):
        score_again(RunFolder(tmp_path / "out"), ["a", "b", "c"], ScoreSettings(BETA, (task,)))
        alone.append(read_table(tmp_path / "out").to_pylist())
    for row, pair, label in zip(both, *alone, strict=True):
        assert (pair["clean"] is None) == (240 <= int(row["key"]) < 360)
        assert (label["clean"] is None) == (int(row["key"]) >= 360)
        assert row["clean"] == (pair["clean"] in (None, True) and label["clean"] in (None, True))
        known = [one["clean_probability"] for one in (pair, label) if one["clean_probability"] is not None]
        assert row["clean_probability"] == min(known)
        for name in ("label_quality", "refined_label", "refined_confidence", "clean_tango"):
            assert row[name] == label[name]
        assert row["refined_label"] is not None  # without a label it is what the label would be
    assert both[0]["clean"] is False
    assert sum(one["clean"] is False for one in alone[1]) > 60
    assert {flag for row in both for flag in row["flags"]} >= {"no_text", "no_label"}


def test_two_spaces_and_labels_are_judged_together(tmp_path: Path) -> None:
    images, given = clusters(count=200)
    texts = captions(images, wrong=40)[:, :9]
    scored(tmp_path, images, texts, labels=np.where(np.arange(200) % 5 == 4, (given + 1) % 4, given))
    table, facts = read_table(tmp_path / "out"), read_metadata(tmp_path / "out" / "images.parquet")
    by_texts = values(table, "neighbourhood") > facts["neighbourhood"]["cut"]
    clean = np.array(table["clean"].to_pylist())
    assert not clean[~by_texts].any()
    assert by_texts.sum() > clean.sum() > 100
    assert facts["beta"] is None
    assert table["osa_weight"].null_count == 200


def test_a_labels_run_takes_the_neighbourhood_as_a_column_only(tmp_path: Path) -> None:
    write_tar(tmp_path / "s" / "a.tar", samples(80))
    for name, more in (("plain", False), ("more", True)):
        score(tmp_path / "s", tmp_path / name, options=LABELS, neighbourhood=more, k=25)
    plain, more = (read_table(tmp_path / name) for name in ("plain", "more"))
    assert more["neighbourhood"].null_count == 0
    assert more.drop_columns("neighbourhood") == plain.drop_columns("neighbourhood")


@pytest.mark.parametrize("order", ["first", "last"])
def test_a_shard_in_which_everything_failed_does_not_stop_the_others(tmp_path: Path, order: str) -> None:
    name = "0.tar" if order == "first" else "z.tar"
    write_tar(tmp_path / "s" / "a.tar", samples(60))
    score(tmp_path / "s", tmp_path / "alone", options=BOTH, neighbourhood=True)
    write_tar(tmp_path / "s" / name, samples(6, 60, image=False, text=False))
    write_tar(tmp_path / "s" / f"1{name}", [])
    score(tmp_path / "s", tmp_path / "out", options=BOTH, neighbourhood=True)
    alone, rows = read_table(tmp_path / "alone"), read_table(tmp_path / "out").to_pylist()
    assert [row for row in rows if row["shard"] == "a"] == alone.to_pylist()
    assert [row["status"] for row in rows if row["shard"] != "a"] == ["bad_image"] * 6


def test_when_nothing_could_be_read_the_rows_say_why(tmp_path: Path) -> None:
    write_tar(tmp_path / "s" / "a.tar", samples(8, image=False))
    for task in (LABELS, BOTH):
        summary = score(tmp_path / "s", tmp_path / "out", options=task, neighbourhood=True, overwrite=True)
        assert dict(summary.statuses) == {"bad_image": 8}
        assert [warning[:27] for warning in summary.warnings] == ["no sample could be scored: "]
        assert summary.labels is None


def test_texts_without_labels_cannot_be_judged_as_labels(tmp_path: Path) -> None:
    write_tar(tmp_path / "s" / "a.tar", samples(8, label=False))
    with refused("task", "labels"):
        score(tmp_path / "s", tmp_path / "out", options=BOTH)
    with refused("neighbourhood"):
        write_tar(tmp_path / "t" / "a.tar", samples(8, text=False))
        score(tmp_path / "t", tmp_path / "other", options=LABELS, neighbourhood=True)


# --- flags -----------------------------------------------------------------------------------------------------------


def keyed(folder: Path, keys: list[str], parts: int) -> Path:
    folder.mkdir(parents=True)
    for i, rows in enumerate(np.array_split(np.array(keys), parts)):
        pq.write_table(pa.table({"key": rows}), folder / f"metadata_{i}.parquet")
    return folder


def test_duplicates_name_their_first_copy_in_whatever_shard_it_is(tmp_path: Path) -> None:
    images, given = clusters(count=120, spread=0.6)
    images[[30, 119]] = images[7]  # one part on, and the last row of all
    images[41] = images[40]
    images[60] = images[7] * 3 + 1e-3  # as good as the same
    images[[80, 81]] = 0  # failures are no copies of one another
    keys = [f"photo/{row}.jpg" for row in range(120)]
    metadata = keyed(tmp_path / "keys", keys, 4)
    score_embeddings(tmp_path / "out", split(tmp_path / "i", "img_emb", images, 4), labels=given, metadata=metadata)
    rows = read_table(tmp_path / "out").to_pylist()
    flagged = {row["key"]: [f for f in row["flags"] if f.startswith("duplicate_of:")] for row in rows}
    first = rows[7]["shard"].removesuffix(".tar")
    assert {key: flags for key, flags in flagged.items() if flags} == {
        "photo/30.jpg": [f"duplicate_of:{first}/photo/7.jpg"],
        "photo/60.jpg": [f"duplicate_of:{first}/photo/7.jpg"],
        "photo/119.jpg": [f"duplicate_of:{first}/photo/7.jpg"],
        "photo/41.jpg": ["duplicate_of:photo/40.jpg"],
    }
    assert len({row["shard"] for row in rows if row["key"] in ("photo/7.jpg", "photo/30.jpg")}) == 2
    assert float(images[7] @ images[60] / np.linalg.norm(images[60]) / np.linalg.norm(images[7])) > DUPLICATE_COSINE


def test_flags_of_reading_stay_and_those_of_scoring_do_not_pile_up(tmp_path: Path) -> None:
    members = samples(30)
    write_tar(tmp_path / "s" / "a.tar", [*members, *samples(1), *samples(10, 30, text=False)])
    score(tmp_path / "s", tmp_path / "out", options=BOTH, k=2)
    first = read_table(tmp_path / "out")["flags"].to_pylist()
    assert first[30][0] == "duplicate_key"
    assert any("indegree0" in flags for flags in first)
    assert all(flags[0] == "no_text" for flags in first[31:])
    run = RunFolder(tmp_path / "out")
    for _ in range(2):
        score_again(run, ["a"], ScoreSettings("fixed:0.3", ("pairs", "labels"), k=2))
        assert read_table(tmp_path / "out")["flags"].to_pylist() == first
    score_again(run, ["a"], ScoreSettings("fixed:0.3", ("pairs",)))
    left = read_table(tmp_path / "out")["flags"].to_pylist()
    assert left == [[f for f in flags if f in ("duplicate_key", "no_text")] for flags in first]


# --- the graph -------------------------------------------------------------------------------------------------------


def test_the_graph_is_kept_until_rows_change_k_grows_or_it_is_damaged(tmp_path: Path) -> None:
    images, given = clusters(count=90)
    said: list[str] = []

    def graph_note(**settings: Any) -> str:
        said.clear()
        score_again(run, ["images"], ScoreSettings(tasks=("labels",), **settings), note=said.append)
        return next(line for line in said if line.startswith("neighbours:"))

    scored(tmp_path, images, labels=given)
    run, path = RunFolder(tmp_path / "out"), tmp_path / "out" / "neighbours.safetensors"
    reused, searched = "neighbours: the graph is there already", "neighbours: searching 90 rows, k = {}"
    whole, stamp = path.read_bytes(), path.stat().st_ino
    kept = read_embeddings(run.embeddings("images"), "image")
    np.testing.assert_array_equal(Neighbours.load(path).indices, find_neighbours(kept, 11).indices)
    assert graph_note() == reused
    assert path.stat().st_ino == stamp
    assert graph_note(k=7) == reused  # the first of the lists that are there
    assert graph_note(k=13) == searched.format(13)
    assert graph_note(k=13) == reused
    path.unlink()
    assert graph_note() == searched.format(11)
    tables = tables_of(tmp_path / "out")
    for data in (whole[:-8], whole[:30], b"", b"junk" * 100):
        path.write_bytes(data)
        assert graph_note() == searched.format(11)
        np.testing.assert_array_equal(Neighbours.load(path).indices, find_neighbours(kept, 11).indices)
    assert tables_of(tmp_path / "out") == tables
    path.unlink()
    assert graph_note() == searched.format(11)
    shard = read_metadata(run.table("images"))["shard"]
    write_embeddings(run.embeddings("images"), kept[::-1], np.zeros((90, 0)), {"shard": shard})
    assert graph_note() == searched.format(11)
    assert Neighbours.load(path).indices[::-1].tolist() == (89 - find_neighbours(kept, 11).indices).tolist()


def test_labels_do_not_depend_on_whether_neighbourhoods_are_asked_for(tmp_path: Path) -> None:
    """The graph is as wide as the wider of the two wants it; labels see their own k."""
    images, given = clusters(count=18)
    texts = captions(images)
    for name, more in (("plain", False), ("more", True)):
        settings = ScoreSettings(beta="fixed:0.2", neighbourhood=more)
        scored(tmp_path / name, images, texts, labels=given, settings=settings)
    widths = [
        Neighbours.load(tmp_path / n / "out" / "neighbours.safetensors").indices.shape[1] for n in ("plain", "more")
    ]
    assert widths == [5, 17]
    tables = [read_table(tmp_path / name / "out") for name in ("plain", "more")]
    for column in ("knn_consistency", "label_quality", "refined_label"):
        assert tables[0][column] == tables[1][column]


def test_a_small_k_counts_on_both_sides_of_a_neighbourhood(tmp_path: Path) -> None:
    images, _ = clusters(count=60)
    scored(tmp_path, images, captions(images)[:, :8], settings=ScoreSettings(k=3))
    assert read_metadata(tmp_path / "out" / "images.parquet")["neighbourhood"]["k"] == 3
    assert Neighbours.load(tmp_path / "out" / "neighbours.safetensors").indices.shape == (60, 3)
