"""Scores without a model: other settings and back again, arrays from anywhere, and nothing lost when it cannot work."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from noisegate import read_table
from noisegate.pipeline.errors import LockedError, MismatchError, NoisegateError, TableError
from noisegate.pipeline.labels.anchors import Anchors
from noisegate.pipeline.labels.classes import ClassSet
from noisegate.pipeline.rescore import rescore, score_embeddings
from noisegate.pipeline.runs.embeddings import write_embeddings
from noisegate.pipeline.runs.lock import folder_lock
from noisegate.pipeline.runs.table import RunFolder, read_metadata
from noisegate.pipeline.settings import DecodeOptions, ScoreSettings
from noisegate.pipeline.system import output_files
from noisegate.pipeline.system.output_files import temporary_name
from tests.commands import ROOT, called
from tests.embeddings import captions, clusters, saved, scored, split, tables_of
from tests.errors import refused
from tests.fakes import picture, write_tar
from tests.jobs import files_of, score

IMAGES, TRUE = clusters(count=120)
TEXTS = captions(IMAGES, wrong=30)
GIVEN = np.where(np.arange(120) % 5 == 1, (TRUE + 1) % 4, TRUE)
ANCHORS = Anchors(("a", "b", "c", "d"), np.eye(4, 12, dtype=np.float32), np.arange(4))
CLASSES = ClassSet(("red", "green", "blue"), (("it is red.",), ("it is green.",), ("it is blue.",)))
LABELS = DecodeOptions(tasks=("labels",))
Change = Callable[[Mapping[str, Any]], ScoreSettings]


def change(**changes: Any) -> Change:
    """The recorded settings with some of them changed, as the command does it."""

    def settings(recorded: Mapping[str, Any]) -> ScoreSettings:
        known = {name: value for name, value in recorded.items() if name != "classes"}
        return ScoreSettings(**{**known, "tasks": tuple(recorded["tasks"]), **changes})

    return settings


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Two shards of coloured pictures with captions and classes, some of both wrong, and one sample that fails."""
    for part in range(2):
        members = []
        for i in range(30 * part, 30 * part + 30):
            colour, name = CLASSES.names[i % 3], f"{i:05d}"
            members.append((f"{name}.png", picture(colour, (16 + i, 16))))
            members.append((f"{name}.txt", f"number {i} is {colour if i % 5 else 'brown'}".encode()))
            members.append((f"{name}.cls", str((i + (i % 4 == 0)) % 3).encode()))
        write_tar(tmp_path / "shards" / f"x-{part}.tar", [*members, (f"bad{part}.png", b"junk")])
    return tmp_path / "shards"


# --- rescore ---------------------------------------------------------------------------------------------------------


def test_the_same_settings_change_no_byte(shards: Path, tmp_path: Path) -> None:
    score(shards, tmp_path / "out", options=DecodeOptions(tasks=("pairs", "labels")), classes=CLASSES, beta="auto")
    before = tables_of(tmp_path / "out")
    tables = {path: path.stat().st_ino for path in (tmp_path / "out").glob("*.parquet")}
    summary = rescore(tmp_path / "out", change())
    assert tables_of(tmp_path / "out") == before
    assert {path: path.stat().st_ino for path in tables} == tables  # not even written again
    assert (summary.samples, dict(summary.statuses)) == (62, {"ok": 60, "bad_image": 2})


def test_other_settings_and_back_restore_every_byte(shards: Path, tmp_path: Path) -> None:
    score(shards, tmp_path / "out", options=DecodeOptions(tasks=("pairs", "labels")), classes=CLASSES, beta="auto")
    before = tables_of(tmp_path / "out")
    recorded = json.loads(before["_run.json"])
    auto = read_metadata(tmp_path / "out" / "x-0.parquet")["beta"]
    made: dict[str, Any] = {}
    for changes in ({"beta": "fixed:0.7"}, {"k": 3}, {"seed": 9}, {"tasks": ("pairs",)}):
        last = tables_of(tmp_path / "out")
        rescore(tmp_path / "out", change(**(made := {**made, **changes})))
        changed = tables_of(tmp_path / "out")
        assert changed["x-1.parquet"] != last["x-1.parquet"], changes
        assert json.loads(changed["_run.json"])["scoring"] == json.loads(json.dumps({**recorded["scoring"], **made}))
    rescore(tmp_path / "out", change(beta="auto", k=None, tasks=("pairs", "labels"), seed=0))
    assert tables_of(tmp_path / "out") == before
    assert recorded["beta"] == auto
    score(shards, tmp_path / "out", options=DecodeOptions(tasks=("pairs", "labels")), classes=CLASSES, beta="auto")
    assert tables_of(tmp_path / "out") == before  # and annotate finds its own run again


def test_a_smaller_k_takes_the_first_of_the_lists_that_are_there(tmp_path: Path) -> None:
    files, said = saved(tmp_path, images=IMAGES, texts=TEXTS), list[str]()
    for name, k in (("fresh", 4), ("kept", 12)):
        settings = ScoreSettings(k=k, neighbourhood=True)
        score_embeddings(tmp_path / name, files["images"], texts=files["texts"], labels=GIVEN, settings=settings)
    graphs = {path: path.stat().st_ino for path in (tmp_path / "kept").glob("*neighbours.safetensors")}
    rescore(tmp_path / "kept", change(k=4), note=said.append)
    assert [line for line in said if "searching" in line] == []
    assert {path: path.stat().st_ino for path in graphs} == graphs
    assert len(graphs) == 2
    assert read_table(tmp_path / "kept") == read_table(tmp_path / "fresh")
    rescore(tmp_path / "kept", change(k=13), note=said.append)
    assert "neighbours: searching 120 rows, k = 13" in said
    changed = RunFolder(tmp_path / "kept").embeddings("images")
    write_embeddings(
        changed, IMAGES[::-1].copy(), TEXTS, {"shard": read_metadata(tmp_path / "kept" / "images.parquet")["shard"]}
    )
    said.clear()
    rescore(tmp_path / "kept", change(k=4), note=said.append)
    assert "neighbours: searching 120 rows, k = 4" in said  # longer lists of other rows are of no use


def test_a_new_beta_is_in_the_weights_the_tables_and_the_record(shards: Path, tmp_path: Path) -> None:
    score(shards, tmp_path / "out", beta="fixed:0.1")
    summary = rescore(tmp_path / "out", change(beta="fixed:0.75"))
    assert summary.beta is not None
    assert summary.beta.value == 0.75
    table = read_table(tmp_path / "out")
    kept = [w > 0 for w in table["osa_weight"].drop_null().to_pylist()]
    assert kept == [s > 0.75 for s in table["similarity"].drop_null().to_pylist()]
    assert table["clean"].drop_null().to_pylist() == kept
    assert RunFolder(tmp_path / "out").read_run()["beta"]["value"] == 0.75  # type: ignore[index]
    assert read_metadata(tmp_path / "out" / "x-1.parquet")["beta"]["value"] == 0.75


def test_a_task_added_later_scores_as_if_it_had_been_there(shards: Path, tmp_path: Path) -> None:
    both = DecodeOptions(tasks=("pairs", "labels"))
    score(shards, tmp_path / "both", options=both)
    score(shards, tmp_path / "later")
    assert read_table(tmp_path / "later")["label_quality"].null_count == 62
    summary = rescore(tmp_path / "later", change(tasks=("pairs", "labels")))
    assert read_table(tmp_path / "later") == read_table(tmp_path / "both")
    assert summary.labels is not None
    assert summary.labels["classes"] == 3
    rescore(tmp_path / "later", change(tasks=("labels",)))
    alone = read_table(tmp_path / "later")
    assert alone["osa_weight"].null_count == 62
    assert alone["label_quality"] == read_table(tmp_path / "both")["label_quality"]


def test_anchors_of_the_run_are_used_and_can_be_replaced(shards: Path, tmp_path: Path) -> None:
    score(shards, tmp_path / "out", options=LABELS, classes=CLASSES)
    own = read_table(tmp_path / "out")["anchor_consistency"].to_pylist()
    rescore(tmp_path / "out", change(k=9))
    assert read_table(tmp_path / "out")["anchor_consistency"].to_pylist() == own
    before, run = Anchors.load(tmp_path / "out" / "anchors.safetensors"), RunFolder(tmp_path / "out")
    turned = Anchors(before.names, before.embeddings, np.roll(before.labels, 1))
    rescore(tmp_path / "out", change(), anchors=turned)
    assert read_table(tmp_path / "out")["anchor_consistency"].to_pylist() != own
    assert run.read_run()["scoring"]["classes"] == turned.digest  # type: ignore[index]
    assert Anchors.load(tmp_path / "out" / "anchors.safetensors").digest == turned.digest
    rescore(tmp_path / "out", change(), anchors=before)
    assert read_table(tmp_path / "out")["anchor_consistency"].to_pylist() == own


def test_what_cannot_work_leaves_every_byte(shards: Path, tmp_path: Path) -> None:
    score(shards, tmp_path / "out", options=LABELS, classes=CLASSES)
    before = tables_of(tmp_path / "out")
    narrow = Anchors(("a", "b", "c"), np.eye(3, dtype=np.float32), np.arange(3))
    few = Anchors(("a",), np.ones((1, 24), np.float32), np.zeros(1, np.int64))
    cases: list[tuple[Change, Anchors | None, str]] = [
        (change(), narrow, "anchors"),
        (change(), few, "classes"),
        (change(tasks=("pairs",)), narrow, "anchors"),
        (change(tasks=("pairs",), beta="random_inputs"), None, "beta"),
    ]
    for settings, anchors, setting in cases:
        with refused(setting):
            rescore(tmp_path / "out", settings, anchors=anchors)
        assert tables_of(tmp_path / "out") == before


def test_folders_that_hold_no_whole_run_are_refused(shards: Path, tmp_path: Path) -> None:
    with refused("run", tmp_path / "nowhere", TableError):
        rescore(tmp_path / "nowhere", change())
    assert not (tmp_path / "nowhere").exists()
    score(shards, tmp_path / "dropped", keep_embeddings=False)
    with refused("folder", str(tmp_path / "dropped"), TableError):
        rescore(tmp_path / "dropped", change())
    score(shards, tmp_path / "out")
    with folder_lock(tmp_path / "out"), refused("out", tmp_path / "out", LockedError):
        rescore(tmp_path / "out", change())
    run = RunFolder(tmp_path / "out")
    whole = run.embeddings("x-1").read_bytes()
    shard = read_metadata(run.table("x-1"))["shard"]
    for damage in (lambda p: p.write_bytes(whole[:-4]), lambda p: _shorter(p, shard)):
        damage(run.embeddings("x-1"))
        with refused("folder", str(tmp_path / "out"), TableError):
            rescore(tmp_path / "out", change())
    run.embeddings("x-1").write_bytes(whole)
    table = pq.read_table(run.table("x-1"))
    pq.write_table(table.slice(1), run.table("x-1"))
    with refused("table", str(run.table("x-1")), TableError):
        rescore(tmp_path / "out", change())
    pq.write_table(table, run.table("x-1"))
    recorded = run.read_run()
    assert recorded is not None
    run.write_run({**recorded, "complete": False})
    with refused("folder", str(tmp_path / "out"), TableError):
        rescore(tmp_path / "out", change())


def _shorter(path: Path, shard: dict[str, Any]) -> None:
    write_embeddings(path, np.ones((3, 24)), np.ones((3, 24)), {"shard": shard})


def test_a_rescoring_that_is_stopped_says_so_and_is_finished_by_another(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables are written one by one: after the first the folder holds two kinds of scores."""
    score(shards, tmp_path / "out")
    score(shards, tmp_path / "wanted")
    rescore(tmp_path / "wanted", change(beta="fixed:0.6"))
    with monkeypatch.context() as patch, refused("out"):
        patch.setattr(  # the second table cannot be written
            output_files,
            "temporary_name",
            lambda path: path / "x" if path.name == "x-1.parquet" else temporary_name(path),
        )
        rescore(tmp_path / "out", change(beta="fixed:0.6"))
    betas = {read_metadata(path)["beta"]["value"] for path in sorted((tmp_path / "out").glob("*.parquet"))}
    assert betas == {0.4, 0.6}
    with refused("run", tmp_path / "out", TableError):
        read_table(tmp_path / "out")
    rescore(tmp_path / "out", change())
    assert tables_of(tmp_path / "out") == tables_of(tmp_path / "wanted")


def make_older(folder: Path) -> None:
    """Take from a run what releases before suggestions did not write."""
    recorded = json.loads((folder / "_run.json").read_text())
    del recorded["scoring"]["repair"]
    (folder / "_run.json").write_text(json.dumps(recorded))
    for path in folder.glob("*.parquet"):
        table, metadata = pq.read_table(path), read_metadata(path)
        newer = ("noise_model", "repair", "changed", "changed_wrong")
        facts = metadata["labels"] and {k: v for k, v in metadata["labels"].items() if k not in newer}
        texts = {f"noisegate.{k}": json.dumps(v) for k, v in (metadata | {"labels": facts}).items()}
        table = table.drop_columns(["predicted_label", "predicted_confidence", "pair_quality"]).replace_schema_metadata(
            texts
        )
        pq.write_table(table, path)


def test_a_run_of_labels_from_an_earlier_release_is_read_and_rescored(tmp_path: Path) -> None:
    images, true = clusters(count=600)
    scored(tmp_path, images, labels=np.where(np.arange(600) % 5 == 1, (true + 1) % 4, true))
    before = tables_of(tmp_path / "out")
    make_older(tmp_path / "out")
    shown = called("show", "out", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"labels changed +1\d\d *\n", shown.stdout) and "looks like –" in shown.stdout
    assert called("verify", "out", cwd=tmp_path).returncode == 0
    assert called("report", "out", "--out", "report.html", cwd=tmp_path).returncode == 0
    assert "No label is more likely wrong" not in (tmp_path / "report.html").read_text()
    assert called("export", "out", "--as", "cleanlab", "--out", "issues.csv", cwd=tmp_path).returncode == 0
    rescore(tmp_path / "out", change())
    assert tables_of(tmp_path / "out") == before


def test_the_command_of_an_earlier_release_goes_on_in_its_folder(shards: Path, tmp_path: Path) -> None:
    score(shards, tmp_path / "out")
    make_older(tmp_path / "out")
    assert score(shards, tmp_path / "out").encoded == 0
    with refused("out", tmp_path / "out", MismatchError):
        score(shards, tmp_path / "out", repair="never")


# --- score-embeddings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["pairs", "labels", "both", "two widths", "separate", "anchors"])
def test_each_kind_of_arrays_fills_its_columns(what: str, tmp_path: Path) -> None:
    kinds: dict[str, tuple[dict[str, Any], set[str]]] = {
        "pairs": ({"texts": TEXTS}, {"similarity", "osa_weight"}),
        "labels": ({"labels": GIVEN}, {"label", "knn_consistency", "label_quality", "refined_label"}),
        "both": ({"texts": TEXTS, "labels": GIVEN}, {"osa_weight", "label_quality"}),
        "two widths": ({"texts": TEXTS[:, :7]}, {"neighbourhood"}),
        "separate": ({"texts": TEXTS, "joint": False}, {"neighbourhood"}),
        "anchors": ({"labels": GIVEN, "anchors": ANCHORS}, {"anchor_consistency", "label_quality"}),
    }
    given, filled = kinds[what]
    summary = scored(tmp_path, IMAGES, **given)
    table = read_table(tmp_path / "out")
    always = {"clean", "clean_probability"}
    assert {name for name in table.column_names if table[name].null_count == 0} >= filled | always
    others = {"similarity", "osa_weight", "label_quality", "neighbourhood", "anchor_consistency"} - filled
    empty = {name for name in others if table[name].null_count == 120}
    assert empty == (others - {"similarity"} if what == "both" else others)
    assert (summary.samples, summary.shards, dict(summary.statuses)) == (120, 1, {"ok": 120})
    recorded = RunFolder(tmp_path / "out").read_run()
    assert recorded is not None
    assert recorded["complete"] and recorded["finished"]
    assert recorded["scorer"] == read_metadata(tmp_path / "out" / "images.parquet")["scorer"]
    before = tables_of(tmp_path / "out")
    rescore(tmp_path / "out", change())
    assert tables_of(tmp_path / "out") == before


def test_classes_of_arrays_have_names(tmp_path: Path) -> None:
    saved(tmp_path, i=IMAGES, y=GIVEN)
    (tmp_path / "names.txt").write_text("ant\nbee\ncat\ndog\n")
    words = ["score-embeddings", "--images", "i.npy", "--labels", "y.npy", "--out", "out"]
    done = called(*words, "--class-names", "names.txt", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "given bee, looks like ant" in called("show", "out", cwd=tmp_path).stdout
    (tmp_path / "names.txt").write_text("ant\nbee\n")
    done = called(*words, "--overwrite", "--class-names", "names.txt", cwd=tmp_path)
    assert done.returncode == 2 and "2 are given, but there are 4 classes" in done.stderr
    with refused("labels"):
        score_embeddings(tmp_path / "other", tmp_path / "i.npy", texts=tmp_path / "i.npy", class_names=("a", "b"))


def test_the_repair_can_be_chosen_and_chosen_again(tmp_path: Path) -> None:
    images, true = clusters(count=600)
    given = np.where(np.arange(600) % 5 == 1, (true + 1) % 4, true)
    saved(tmp_path, i=images, y=given)
    words = ["score-embeddings", "--images", "i.npy", "--labels", "y.npy", "--out", "out"]
    never = json.loads(called(*words, "--repair", "never", "--json", cwd=tmp_path).stdout)
    assert (never["repaired"], never["labels"]["repair"], never["labels"]["changed"]) == (0, "never", 0)
    sure = json.loads(called("rescore", "out", "--repair", "sure", "--json", cwd=tmp_path).stdout)
    assert sure["repaired"] == sure["labels"]["changed"] > 100
    assert json.loads(called("rescore", "out", "--json", cwd=tmp_path).stdout)["labels"]["repair"] == "sure"
    done = called("rescore", "out", "--repair", "always", cwd=tmp_path)
    assert done.returncode == 2 and "repair 'always' is unknown; use never, sure, likely" in done.stderr
    columns = read_table(tmp_path / "out", ["label", "predicted_label", "refined_label"]).to_pydict()
    assert np.mean(np.array(columns["predicted_label"]) == true) > 0.98
    assert np.mean(np.array(columns["refined_label"]) == true) > 0.98


def test_parts_score_as_one_array_would(tmp_path: Path) -> None:
    scored(tmp_path, IMAGES, TEXTS, labels=GIVEN)
    for name, rows in (("img_emb", IMAGES), ("text_emb", TEXTS)):
        split(tmp_path / "parts" / name, name, rows, 11)
    score_embeddings(tmp_path / "split", tmp_path / "parts", labels=GIVEN)
    whole, parts = read_table(tmp_path / "out"), read_table(tmp_path / "split")
    for name in ("key", "similarity", "label", "knn_consistency", "consistency"):
        assert parts[name].to_pylist() == whole[name].to_pylist(), name


@pytest.mark.parametrize("count", [1, 2, 19])
def test_few_rows_are_scored_as_far_as_they_can_be(count: int, tmp_path: Path) -> None:
    images, texts = IMAGES[:count], TEXTS[:count]
    settings = ScoreSettings(beta="fixed:0.5", k=500, neighbourhood=True)
    summary = scored(tmp_path, images, texts, labels=GIVEN[:count], settings=settings)
    assert (summary.samples, summary.scored) == (count, count)
    assert read_table(tmp_path / "out")["label_quality"].null_count == 0
    with refused("beta", "auto"):  # without a model β needs some
        score_embeddings(tmp_path / "auto", **saved(tmp_path / "few", images=images, texts=texts))


def test_no_rows_are_no_reason_to_fail(tmp_path: Path) -> None:
    for name, more in (("joint", {"settings": ScoreSettings(beta="fixed:0.5")}), ("apart", {"joint": False})):
        assert scored(tmp_path / name, IMAGES[:0], TEXTS[:0], **more).samples == 0
    with refused("task", "labels"):
        scored(tmp_path / "labels", IMAGES[:0], labels=GIVEN[:0])


@pytest.mark.parametrize(
    ("given", "setting", "value"),
    [
        ({}, "texts", None),
        ({"labels": GIVEN[:7]}, "labels", 7),
        ({"labels": GIVEN.astype(float)}, "labels", (120,)),
        ({"labels": np.full(120, -1)}, "task", "labels"),
        ({"labels": GIVEN + 70_000}, "labels", 70_003),
        (
            {"labels": GIVEN, "settings": ScoreSettings(neighbourhood=True)},
            "texts",
            None,
        ),
        ({"labels": GIVEN, "joint": False}, "texts", None),
        ({"texts": TEXTS, "anchors": ANCHORS}, "labels", None),
        (
            {"labels": GIVEN, "anchors": Anchors(("a",), np.ones((1, 5), np.float32), np.zeros(1, np.int64))},
            "anchors",
            5,
        ),
        (
            {"labels": GIVEN, "anchors": Anchors(("a",), np.ones((1, 12), np.float32), np.zeros(1, np.int64))},
            "classes",
            1,
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    given: dict[str, Any], setting: str, value: object, tmp_path: Path
) -> None:
    scored(tmp_path, IMAGES, labels=GIVEN)
    before = tables_of(tmp_path / "out")
    with refused(setting, value):
        scored(tmp_path, IMAGES, overwrite=True, **given)
    assert tables_of(tmp_path / "out") == before


def test_a_run_is_replaced_only_when_asked_and_nothing_else_ever(tmp_path: Path) -> None:
    scored(tmp_path, IMAGES, labels=GIVEN)
    with refused("out", str(tmp_path / "out")):
        scored(tmp_path, IMAGES, labels=TRUE)
    scored(tmp_path, IMAGES, labels=TRUE, overwrite=True)
    assert read_table(tmp_path / "out")["label"].to_pylist() == TRUE.tolist()
    (tmp_path / "file").write_text("mine")
    with refused("out", tmp_path / "file"):
        score_embeddings(tmp_path / "file", tmp_path / "arrays" / "images.npy", labels=TRUE)
    mine = tmp_path / "data" / "images.parquet"  # metadata beside the arrays, and --out there too
    mine.parent.mkdir()
    pq.write_table(read_table(tmp_path / "out", ["key"]).select(["key"]), mine)
    whole = mine.read_bytes()
    for overwrite in (False, True):
        with pytest.raises(NoisegateError, match=r"images\.parquet (in the way|is no weight table)"):
            score_embeddings(mine.parent, tmp_path / "arrays" / "images.npy", labels=TRUE, overwrite=overwrite)
        assert mine.read_bytes() == whole


def test_a_folder_of_annotate_is_not_taken_for_an_unfinished_one(shards: Path, tmp_path: Path) -> None:
    score(shards, tmp_path / "out")
    run = RunFolder(tmp_path / "out")
    recorded = run.read_run()
    assert recorded is not None
    run.write_run({**recorded, "complete": False, "finished": False})
    before = tables_of(tmp_path / "out")
    with refused("out", str(tmp_path / "out")):
        scored(tmp_path, IMAGES, labels=GIVEN)
    assert tables_of(tmp_path / "out") == before
    run.run_file.write_text("{")
    with refused("run", tmp_path / "out", TableError):
        scored(tmp_path, IMAGES, labels=GIVEN)
    scored(tmp_path, IMAGES, labels=GIVEN, overwrite=True)
    assert len(read_table(tmp_path / "out")) == 120


KILLED = """
import os, signal, sys
import numpy as np
from noisegate.pipeline.rescore import score_embeddings
score_embeddings(sys.argv[1], sys.argv[2], labels=np.load(sys.argv[3]),
                 note=lambda text: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_killed_half_way_it_says_so_and_starts_again(tmp_path: Path) -> None:
    files = saved(tmp_path / "arrays", images=IMAGES, labels=GIVEN)
    words = [sys.executable, "-c", KILLED, str(tmp_path / "out"), str(files["images"]), str(files["labels"])]
    assert subprocess.run(words, cwd=ROOT, check=False).returncode == -9
    assert (tmp_path / "out" / "images.parquet").exists()
    with refused("run", tmp_path / "out", TableError):
        read_table(tmp_path / "out")
    with refused("folder", str(tmp_path / "out"), TableError):
        rescore(tmp_path / "out", change())
    scored(tmp_path, IMAGES, labels=GIVEN)
    scored(tmp_path / "whole", IMAGES, labels=GIVEN)
    found, wanted = tables_of(tmp_path / "out"), tables_of(tmp_path / "whole" / "out")
    assert found.keys() == wanted.keys()
    assert {n: d for n, d in found.items() if n != "_run.json"} == {n: d for n, d in wanted.items() if n != "_run.json"}


def test_the_arrays_of_a_finished_run_can_be_rescored_in_any_way_they_allow(tmp_path: Path) -> None:
    scored(tmp_path / "labels", IMAGES, labels=GIVEN)
    with refused("task", "pairs", TableError):
        rescore(tmp_path / "labels" / "out", change(tasks=("pairs", "labels")))
    with refused("neighbourhood"):
        rescore(tmp_path / "labels" / "out", change(neighbourhood=True))
    scored(tmp_path / "apart", IMAGES, TEXTS, joint=False)
    with refused("neighbourhood", False):
        rescore(tmp_path / "apart" / "out", change(neighbourhood=False))
    with refused("task", "labels"):
        rescore(tmp_path / "apart" / "out", change(tasks=("pairs", "labels")))


# --- the commands ----------------------------------------------------------------------------------------------------


def test_two_encoders_are_told_what_their_neighbourhoods_promise(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(300, 5))
    images, texts = (hidden @ rng.normal(size=(5, width)) for width in (9, 7))
    saved(tmp_path, i=images, t=np.concatenate([texts[:100][::-1], texts[100:]]), y=np.arange(300) % 3)
    words = ["score-embeddings", "--images", "i.npy", "--texts", "t.npy", "--labels", "y.npy", "--out", "out"]
    done = called(*words, "--json", cwd=tmp_path)
    facts = json.loads(done.stdout)["neighbourhood"]
    table = read_table(tmp_path / "out", ["neighbourhood"])["neighbourhood"].to_numpy()
    right = np.arange(300) >= 100
    kept = table > facts["cut"]
    assert facts["expected"]["clean_precision"] == pytest.approx(right[kept].mean(), abs=0.05)
    assert facts["expected"]["clean_recall"] == pytest.approx(kept[right].mean(), abs=0.1)
    shown = " ".join(called("rescore", "out", cwd=tmp_path).stdout.split())
    promised = facts["expected"]["clean_precision"]
    assert f"cut neighbourhood > {facts['cut']:.2f}" in shown
    assert f"expected of the cut precision {100 * promised:.1f} %" in shown
    assert shown.count("calibration error") == 2  # of neighbourhoods, and of labels
    done = called(*words, "--no-neighbourhood", "--overwrite", cwd=tmp_path)
    assert done.returncode == 2
    assert "images have 9 numbers and texts 7; leave out --no-neighbourhood" in done.stderr


def test_the_commands_do_the_same_and_print_json(tmp_path: Path) -> None:
    saved(tmp_path, i=IMAGES, t=TEXTS, y=GIVEN, a=ANCHORS.embeddings, c=ANCHORS.labels)
    words = ["score-embeddings", "--images", "i.npy", "--texts", "t.npy", "--labels", "y.npy", "--out", "out", "--json"]
    done = called(*words, "--anchors", "a.npy", "--anchor-labels", "c.npy", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["samples"], found["labels"]["classes"], found["beta"]["mode"]) == (120, 4, "intersection")
    assert found["calibration"]["noise_interval"][0] <= 0.25 <= found["calibration"]["noise_interval"][1]
    numbered = Anchors(("0", "1", "2", "3"), ANCHORS.embeddings, ANCHORS.labels)
    scored(tmp_path / "same", IMAGES, TEXTS, labels=GIVEN, anchors=numbered)
    columns = ["similarity", "osa_weight", "anchor_consistency", "label_quality", "clean", "flags"]
    assert read_table(tmp_path / "out", columns).select(columns) == read_table(
        tmp_path / "same" / "out", columns
    ).select(columns)
    done = called("rescore", "out", "--beta", "fixed:0.9", "--k", "17", "--json", cwd=tmp_path)
    again = json.loads(done.stdout)
    assert (again["beta"]["value"], again["labels"]["k"], again["labels"]["classes"]) == (0.9, 17, 4)
    assert "neighbours: searching 120 rows, k = 17" in done.stderr
    shown = called("rescore", "out", "--task", "labels", cwd=tmp_path)
    assert "label noise rate" in shown.stdout
    assert "β" not in shown.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--texts", "narrow.npy"], "beta 'fixed:0.2' is for cosines, and two encoders have none"),
        (["--labels", "y.npy"], "beta 'fixed:0.2' is for pairs, and only labels are scored"),
    ],
)
def test_a_beta_that_nothing_can_be_compared_with_is_refused_and_the_default_is_not(
    words: list[str], message: str, tmp_path: Path
) -> None:
    saved(tmp_path, i=IMAGES, y=GIVEN, narrow=IMAGES[:, :7])
    done = called("score-embeddings", "--images", "i.npy", "--out", "out", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    before = files_of(tmp_path / "out")
    refused = called("rescore", "out", "--beta", "fixed:0.2", cwd=tmp_path)
    assert refused.returncode == 2
    assert message in refused.stderr
    assert files_of(tmp_path / "out") == before
    assert called("rescore", "out", "--seed", "3", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--labels", "none.npy"], "labels none.npy is no file"),
        (["--labels", "i.npy"], "labels i.npy holds float32 of shape (120, 12); want whole numbers (N,)"),
        (["--labels", "pickled.npy"], "labels pickled.npy is no whole .npy file of numbers"),
        (["--texts", "y.npy"], "texts y.npy holds int64 of shape (120,); want numbers (N, d)"),
        (["--labels", "y.npy", "--anchors", "i.npy"], "--anchors and --anchor-labels belong together; give both"),
        (["--labels", "y.npy", "--metadata", "y.npy"], "metadata y.npy is not a readable Parquet file"),
        (["--texts", "i.npy", "--separate-spaces", "--no-neighbourhood"], "leave out --no-neighbourhood"),
        (["--texts", "i.npy", "--beta", "random_inputs"], "beta random_inputs needs the model"),
        (
            ["--images", "same.npy", "--texts", "same.npy"],
            "beta auto needs 20 mismatched pairs, and only 0 can be made of 50 pairs",
        ),
        (
            ["--images", "same.npy", "--texts", "same.npy", "--beta", "intersection"],
            "beta intersection needs 2 mismatched pairs, and only 0 can be made of 50 pairs",
        ),
        (["--images", "few.npy", "--texts", "few.npy"], "beta auto needs at least 20 pairs when there is no model"),
        (["--texts", "narrow.npy", "--beta", "fixed:0.2"], "beta 'fixed:0.2' is for cosines"),
        (["--texts", "i.npy", "--separate-spaces", "--beta", "intersection"], "beta 'intersection' is for cosines"),
        (["--labels", "y.npy", "--beta", "fixed:0.2"], "beta 'fixed:0.2' is for pairs"),
        (["--texts", "i.npy", "--k", "0"], "k 0 is not a number of neighbours; use 50, or leave it out"),
        ([], "needs texts, labels or both"),
    ],
)
def test_every_mistake_is_one_line(words: list[str], message: str, tmp_path: Path) -> None:
    saved(tmp_path, i=IMAGES, y=GIVEN, same=np.repeat(IMAGES[:1], 50, axis=0), few=IMAGES[:9], narrow=IMAGES[:, :7])
    np.save(tmp_path / "pickled.npy", np.array([object()]), allow_pickle=True)
    done = called("score-embeddings", "--images", "i.npy", "--out", "out", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
