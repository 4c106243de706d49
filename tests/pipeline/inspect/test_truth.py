"""What is known to be wrong, and label scores judged by it: from noisy shards, from a file, and where there is none."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import f1_score, roc_auc_score

from noisegate import read_table
from noisegate.pipeline.datasets.noise.label_shards import noise_labels
from noisegate.pipeline.errors import MismatchError, TableError
from noisegate.pipeline.inspect.evaluation import LABEL_SCORES, evaluate, evaluate_labels, evaluate_neighbourhood
from noisegate.pipeline.inspect.truth import read_truth
from noisegate.pipeline.runs.table import RunFolder
from noisegate.pipeline.settings import DecodeOptions
from tests.commands import called
from tests.embeddings import captions, clusters, scored
from tests.errors import refused
from tests.fakes import picture, write_tar
from tests.jobs import score

IMAGES, TRUE = clusters(count=160)
GIVEN = np.where(np.arange(160) % 5 == 1, (TRUE + 1) % 4, TRUE)
NAMES = ("red", "green", "blue")


def truth_file(path: Path, **columns: Any) -> Path:
    noisy = pa.array(GIVEN != TRUE)
    pq.write_table(pa.table({"key": [f"{row:09d}" for row in range(160)], "noisy": noisy, **columns}), path)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labels of which a fifth are wrong, two rows without a label or an embedding; tests only read it."""
    folder, images, given = tmp_path_factory.mktemp("run"), IMAGES.copy(), GIVEN.copy()
    images[3], given[6] = 0, -1
    scored(folder, images, labels=given)
    return folder / "out"


def test_label_figures_are_those_of_the_definitions(run: Path, tmp_path: Path) -> None:
    found = evaluate_labels(run, truth_file(tmp_path / "t.parquet", clean_label=TRUE))
    table, kept = read_table(run), np.setdiff1d(np.arange(160), [3, 6])
    noisy = (GIVEN != TRUE)[kept]
    assert (found.samples, found.noisy, found.unscored) == (158, int(noisy.sum()), 2)
    assert list(found.aurocs) == [name for name in LABEL_SCORES if name != "anchor_consistency"]
    for name, auroc in found.aurocs.items():
        values = np.array(table[name].to_pylist(), float)[kept]
        assert auroc == pytest.approx(roc_auc_score(~noisy, values)), name
    for rule, metrics in (("clean", found.fused), ("clean_tango", found.tango)):
        chosen = np.array(table[rule].to_pylist())[kept].astype(bool)
        assert metrics.clean_f1 == pytest.approx(f1_score(~noisy, chosen))
        assert metrics.noise_recall == pytest.approx((~chosen[noisy]).mean())
    refined = np.array(table["refined_label"].to_pylist(), float)
    assert found.given_accuracy == pytest.approx((GIVEN == TRUE)[kept].mean())
    assert found.refined_accuracy == pytest.approx((refined == TRUE)[kept].mean())
    predicted = np.array(table["predicted_label"].to_pylist(), float)
    assert found.predicted_accuracy == pytest.approx((predicted == TRUE)[kept].mean())
    assert found.refined_accuracy > 0.95 > found.given_accuracy


def test_right_labels_may_be_known_in_part_or_not_at_all(run: Path, tmp_path: Path) -> None:
    none = evaluate_labels(run, truth_file(tmp_path / "t.parquet"))
    assert (none.given_accuracy, none.predicted_accuracy, none.refined_accuracy) == (None, None, None)
    some = pa.array(np.where(np.arange(160) < 20, TRUE, 0), mask=np.arange(160) >= 20)
    part = evaluate_labels(run, truth_file(tmp_path / "t.parquet", clean_label=some))
    seen = [row for row in range(20) if row not in (3, 6)]
    assert part.given_accuracy == pytest.approx((GIVEN == TRUE)[seen].mean())
    words = truth_file(tmp_path / "t.parquet", clean_label=["cat"] * 160)
    with refused("truth", words) as caught:
        evaluate_labels(run, words)
    assert '160 of 160 are neither, such as "cat"; this run knows no names: annotate with --classes' in str(
        caught.value
    )


def test_arrays_and_runs_without_labels_say_what_is_missing(run: Path, tmp_path: Path) -> None:
    for judge in (evaluate_labels, evaluate):
        scored(tmp_path / judge.__name__, IMAGES, captions(IMAGES))
        folder = tmp_path / judge.__name__ / "out"
        with refused("truth", None) as caught:
            judge(folder)
        assert "was made from arrays, which hold no truth; give --truth FILE" in str(caught.value)
    with refused("task", folder, TableError):
        evaluate_labels(folder, truth_file(tmp_path / "t.parquet"))
    with refused("run", run, TableError):
        evaluate(run, truth_file(tmp_path / "t.parquet"))
    assert evaluate(folder, truth_file(tmp_path / "t.parquet")).samples == 160


def test_the_truth_may_be_a_csv_or_another_column(run: Path, tmp_path: Path) -> None:
    whole = evaluate_labels(run, truth_file(tmp_path / "t.parquet", clean_label=TRUE))
    keys = [f"{row:09d}" for row in range(160)]
    for name, separator in (("t.csv", ","), ("t.tsv", "\t")):
        rows = [("key", "right", "bad")]
        rows += [(k, str(t), str(bool(g != t)).lower()) for k, t, g in zip(keys, TRUE, GIVEN, strict=True)]
        lines = [separator.join(row) for row in rows]
        (tmp_path / name).write_text("\n".join(lines))
        assert evaluate_labels(run, tmp_path / name, "right") == whole
        by_flag = evaluate_labels(run, tmp_path / name, "bad")
        assert (by_flag.aurocs, by_flag.given_accuracy) == (whole.aurocs, None)
        with refused("truth", tmp_path / name):
            evaluate_labels(run, tmp_path / name)
        with refused("truth", tmp_path / name):
            evaluate_labels(run, tmp_path / name, "other")
    (tmp_path / "short.csv").write_text("key,noisy\n7,true\n")
    with refused("truth", tmp_path / "short.csv") as caught:
        evaluate_labels(run, tmp_path / "short.csv")
    assert "000000000; its first is 7" in str(caught.value)
    classes = truth_file(tmp_path / "c.parquet", right=TRUE)
    scored(tmp_path / "pairs", IMAGES, captions(IMAGES))
    with refused("truth", classes):
        evaluate(tmp_path / "pairs" / "out", classes, "right")


def test_the_right_class_may_be_given_by_its_name(tmp_path: Path) -> None:
    scored(tmp_path, IMAGES, labels=GIVEN, class_names=[*NAMES, "grey"])
    named = [(*NAMES, "grey")[number] for number in TRUE]
    file = truth_file(tmp_path / "t.parquet", right=TRUE, named=named, odd=["pink", *named[1:]], lists=[[1]] * 160)
    assert evaluate_labels(tmp_path / "out", file, "named") == evaluate_labels(tmp_path / "out", file, "right")
    for column in ("odd", "lists"):
        with refused("truth", file):
            evaluate_labels(tmp_path / "out", file, column)
    from_one = truth_file(tmp_path / "one.parquet", right=TRUE + 1)
    with refused("truth", from_one) as caught:
        evaluate_labels(tmp_path / "out", from_one, "right")
    assert "has class 4, and the run has classes 0 to 3; is right counted from 1?" in str(caught.value)


def test_ones_and_zeros_are_true_and_false_where_there_are_more_classes(run: Path, tmp_path: Path) -> None:
    flags = (GIVEN != TRUE).astype(int)
    whole = evaluate_labels(run, truth_file(tmp_path / "t.parquet"))
    assert evaluate_labels(run, truth_file(tmp_path / "t.parquet", bad=flags), "bad") == whole
    scored(tmp_path / "pairs", IMAGES, captions(IMAGES))
    assert evaluate(tmp_path / "pairs" / "out", tmp_path / "t.parquet", "bad").noisy == flags.sum()
    scored(tmp_path / "two", IMAGES, labels=GIVEN % 2)
    classes = truth_file(tmp_path / "t.parquet", right=TRUE % 2, noisy=flags)
    assert evaluate_labels(tmp_path / "two" / "out", classes, "right").noisy == (GIVEN % 2 != TRUE % 2).sum()
    assert evaluate_labels(tmp_path / "two" / "out", classes, "noisy").noisy == flags.sum()


def test_classes_that_pandas_wrote_as_floats_are_read(run: Path, tmp_path: Path) -> None:
    lines = [f"{row:09d},{TRUE[row]}.0" if row != 6 else "000000006," for row in range(160)]  # row 6 has no label
    (tmp_path / "T.CSV").write_text("\n".join(["key,right", *lines]))
    whole = evaluate_labels(run, truth_file(tmp_path / "t.parquet", clean_label=TRUE))
    assert evaluate_labels(run, tmp_path / "T.CSV", "right") == whole
    floats = np.where(np.arange(160) == 6, np.nan, TRUE)
    assert evaluate_labels(run, truth_file(tmp_path / "f.parquet", right=floats), "right") == whole
    with refused("truth"):
        evaluate_labels(run, truth_file(tmp_path / "f.parquet", right=floats + 0.5), "right")


def test_a_json_field_of_any_name_may_be_the_truth(tmp_path: Path) -> None:
    parts = []
    for i in range(30):
        record = {"human": i % 3, "other": i % 5 == 0, "name": NAMES[i % 3]}
        parts += [(f"{i:05d}.png", picture(NAMES[i % 3], (16 + i, 16))), (f"{i:05d}.json", json.dumps(record).encode())]
        parts += [(f"{i:05d}.cls", str((i + (i % 6 == 0)) % 3).encode())]
    write_tar(tmp_path / "s" / "x.tar", sorted(parts))
    score(tmp_path / "s", tmp_path / "out", options=DecodeOptions(tasks=("labels",)))
    found = read_truth(RunFolder(tmp_path / "out"), read_table(tmp_path / "out"), None, "human")
    assert found.noisy.tolist() == [i % 6 == 0 for i in range(30)]
    other = read_truth(RunFolder(tmp_path / "out"), read_table(tmp_path / "out"), None, "other")
    assert other.noisy.tolist() == [i % 5 == 0 for i in range(30)] and other.clean_label is None
    done = called("evaluate", "out", "--truth-field", "human", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["labels"]["noisy"] == 5
    assert "--truth-field" in called("evaluate", "out", cwd=tmp_path).stderr
    words = called("evaluate", "out", "--truth-field", "name", cwd=tmp_path).stderr
    assert 'x.tar has "red" in its json field name' in words


def labelled(count: int) -> list[tuple[str, bytes]]:
    members = []
    for i in range(count):
        members.append((f"{i:05d}.png", picture(NAMES[i % 3], (16 + i, 16))))
        members += [(f"{i:05d}.cls", str(i % 3).encode())] if i % 7 else []
    return members


def test_noisy_shards_bring_their_truth_with_them(tmp_path: Path) -> None:
    write_tar(tmp_path / "clean" / "x.tar", labelled(60))
    noise_labels(tmp_path / "clean", tmp_path / "noisy", rate=0.3, seed=1)
    score(tmp_path / "noisy", tmp_path / "out", options=DecodeOptions(tasks=("labels",)))
    recorded = pq.read_table(tmp_path / "noisy" / "noise.parquet")
    found = read_truth(RunFolder(tmp_path / "out"), read_table(tmp_path / "out"), None)
    assert found.noisy.tolist() == recorded["noisy"].to_pylist()
    assert found.clean_label is not None
    assert found.clean_label.tolist() == [i % 3 if i % 7 else -1 for i in range(60)]
    judged = evaluate_labels(tmp_path / "out")
    assert judged == evaluate_labels(tmp_path / "out", tmp_path / "noisy" / "noise.parquet")
    assert (judged.samples, judged.unscored) == (51, 9)
    table = next((tmp_path / "out").glob("*.parquet"))
    whole = pq.read_table(table)
    pq.write_table(whole.slice(1), table)
    with refused("table", str(table), TableError):
        evaluate_labels(tmp_path / "out")
    pq.write_table(whole, table)
    noise_labels(tmp_path / "clean", tmp_path / "noisy", rate=0.3, seed=2)
    with refused("shards", error=MismatchError):
        evaluate_labels(tmp_path / "out")


def test_a_right_label_that_is_no_number_is_not_known(tmp_path: Path) -> None:
    records = [{"noisy": False, "clean_label": 2}, {"noisy": True, "clean_label": True}, {"noisy": True}]
    parts = [member for member in labelled(30) if member[0] >= "00001" and member[0] < "00004"]
    parts += [(f"{i:05d}.json", json.dumps(record).encode()) for i, record in enumerate(records, 1)]
    write_tar(tmp_path / "s" / "x.tar", sorted(parts))
    score(tmp_path / "s", tmp_path / "out", options=DecodeOptions(tasks=("labels",)))
    found = read_truth(RunFolder(tmp_path / "out"), read_table(tmp_path / "out"), None)
    assert found.noisy.tolist() == [False, True, True]
    assert found.clean_label is not None
    assert found.clean_label.tolist() == [2, -1, -1]


def test_the_command_judges_what_the_run_scored_unless_told(run: Path, tmp_path: Path) -> None:
    truth = truth_file(tmp_path / "t.parquet", clean_label=TRUE)
    done = called("evaluate", run, "--truth", truth, "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert found["labels"]["samples"] == 158
    assert found["clean_auroc"] == found["labels"]["aurocs"]["label_quality"]
    shown = called("evaluate", run, "--truth", truth, cwd=tmp_path)
    assert "158 labels, 31 of them wrong (19.6 %)" in shown.stdout
    assert "Right labels: 80.4 % as given" in shown.stdout
    assert "2 samples have no label score and are left out." in shown.stdout
    for words, message in (
        (["--what", "pairs"], "scored without pairs"),
        (["--what", "images"], "what 'images' is unknown; use pairs or labels"),
    ):
        done = called("evaluate", run, "--truth", truth, *words, cwd=tmp_path)
        assert done.returncode == 2
        assert message in done.stderr
    done = called("evaluate", tmp_path / "none", cwd=tmp_path)
    assert done.returncode == 2
    assert "holds no run" in done.stderr


def test_where_captions_are_judged_too_the_label_rule_is_judged_by_those_that_pass(tmp_path: Path) -> None:
    scored(tmp_path, IMAGES, captions(IMAGES, wrong=60), labels=GIVEN)
    found = evaluate_labels(tmp_path / "out", truth_file(tmp_path / "t.parquet"))
    table = read_table(tmp_path / "out", ["osa_weight", "clean"]).to_pydict()
    passes = np.array(table["osa_weight"]) > 0
    kept, noisy = np.array(table["clean"])[passes], (GIVEN != TRUE)[passes]
    assert 60 < found.captioned == passes.sum() < 160 == found.samples
    assert found.fused.clean_f1 == pytest.approx(f1_score(~noisy, kept))
    said = called(
        "evaluate", tmp_path / "out", "--truth", tmp_path / "t.parquet", "--what", "labels", cwd=tmp_path
    ).stdout
    assert f"judged by the {found.captioned} labels whose caption passes" in " ".join(said.split())


def two_encoders(folder: Path, count: int) -> tuple[Path, Path, np.ndarray]:
    """A run of images and texts that share no space, 30 % of the texts shifted, and the truth."""
    images, topic = clusters(seed=1, count=count, classes=8)
    texts = np.random.default_rng(2).standard_normal((8, 5))[topic]
    texts += 0.1 * np.random.default_rng(3).standard_normal(texts.shape)
    noisy = np.arange(count) < 0.3 * count
    texts[noisy] = np.roll(texts[noisy], 1, axis=0)
    scored(folder, images, texts.astype(np.float32))
    truth = folder / "t.parquet"
    pq.write_table(pa.table({"key": [f"{row:09d}" for row in range(count)], "noisy": noisy}), truth)
    return folder / "out", truth, noisy


def test_neighbourhoods_are_judged_where_there_is_no_cosine(tmp_path: Path) -> None:
    out, truth, noisy = two_encoders(tmp_path, 400)
    found, table = evaluate_neighbourhood(out, truth), read_table(out, ["neighbourhood", "clean"]).to_pydict()
    kept = np.array(table["clean"])
    assert (found.samples, found.noisy, found.unscored) == (400, 120, 0)
    assert found.clean_auroc == pytest.approx(roc_auc_score(~noisy, table["neighbourhood"])) and found.clean_auroc > 0.9
    assert found.selection is not None
    assert found.selection.clean_f1 == pytest.approx(f1_score(~noisy, kept))
    assert found.selection.noise_recall == pytest.approx((~kept[noisy]).mean())
    assert found.best.balanced_accuracy >= found.selection.balanced_accuracy - 1e-12
    said = called("evaluate", out, "--truth", truth, cwd=tmp_path)
    assert said.returncode == 0 and "AUROC of the neighbourhood" in said.stdout
    with refused("run", out, TableError):
        evaluate(out, truth)


def test_too_few_neighbourhoods_for_a_cut_still_have_their_auroc(tmp_path: Path) -> None:
    out, truth, _ = two_encoders(tmp_path, 16)
    found = evaluate_neighbourhood(out, truth)
    assert (found.samples, found.cut, found.selection) == (16, None, None)
    assert "too few pairs to choose a cut" in called("evaluate", out, "--truth", truth, cwd=tmp_path).stdout


def test_without_neighbourhoods_there_is_nothing_to_judge_by_them(run: Path, tmp_path: Path) -> None:
    with refused("neighbourhood", run, TableError):
        evaluate_neighbourhood(run, truth_file(tmp_path / "t.parquet"))
