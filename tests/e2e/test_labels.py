"""Wrong labels on drawn scenes (36 classes, shape and colour), by three kinds of noise, and on real photos."""

import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from noisegate import read_table
from noisegate.pipeline.datasets.noise.label_inputs import load_class_map
from noisegate.pipeline.datasets.noise.labels import LabelNoise, asymmetric, instance_dependent, symmetric
from noisegate.pipeline.inspect.evaluation import LabelEvaluation, evaluate_labels
from noisegate.pipeline.labels.anchors import Anchors
from noisegate.pipeline.rescore import score_embeddings
from noisegate.pipeline.runs.embeddings import read_embeddings
from noisegate.pipeline.runs.table import RunFolder
from noisegate.pipeline.system.array_types import Index
from tests.commands import called, run_noisegate
from tests.embeddings import Rows, saved
from tests.fakes import write_tar

PHOTOS = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "cifar10n-000000.tar"
LABEL_COLUMNS = ("knn_consistency", "anchor_consistency", "consistency", "probe_consistency", "label_quality")


def pictures(labelled_run: Path) -> tuple[Rows, Index]:
    """The scenes' embeddings (N, d) and their true classes (N,)."""
    run = RunFolder(labelled_run / "tables")
    rows = np.concatenate([read_embeddings(run.embeddings(stem), "image") for stem in run.stems()])
    return rows, pq.read_table(labelled_run / "noisy" / "noise.parquet")["clean_label"].to_numpy()


def judged(labelled_run: Path, out: Path, true: Index, noise: LabelNoise) -> tuple[LabelEvaluation, list[float]]:
    """The figures of these labels on the scenes' pictures, and the interval of the noise rate."""
    rows, _ = pictures(labelled_run)
    anchors = Anchors.load(labelled_run / "tables" / "anchors.safetensors")
    images = saved(out, images=rows)["images"]
    summary = score_embeddings(out / "tables", images, labels=noise.labels, anchors=anchors)
    truth = pa.table({"key": [f"{row:09d}" for row in range(len(true))], "noisy": noise.noisy, "clean_label": true})
    pq.write_table(truth, out / "truth.parquet")
    assert summary.labels is not None
    return evaluate_labels(out / "tables", out / "truth.parquet"), summary.labels["noise_interval"]


def test_the_commands_find_and_mend_wrong_labels(labelled_run: Path) -> None:
    done = run_noisegate("evaluate", "tables", "--what", "labels", "--json", cwd=labelled_run)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["labels"]
    learned = json.loads((labelled_run / "summary.json").read_text())["labels"]
    rate = found["noisy"] / found["samples"]
    assert found["samples"] == 2000
    assert rate == pytest.approx(0.4, abs=0.03)
    assert found["aurocs"]["label_quality"] >= 0.97
    assert found["aurocs"]["label_quality"] > max(v for k, v in found["aurocs"].items() if k != "label_quality")
    assert found["refined_accuracy"] >= 0.95
    assert learned["noise_interval"][0] <= rate <= learned["noise_interval"][1]
    assert abs(learned["noise_rate"] - rate) < 0.03
    assert abs(learned["expected"]["clean_precision"] - found["fused"]["clean_precision"]) < 0.03


def next_shape(labelled_run: Path) -> Index:
    """(36,) for each class the one of the same colour and the next shape, which the embedded model confuses most."""
    names = (labelled_run / "clean" / "classes.txt").read_text().splitlines()
    shapes = list(dict.fromkeys(name.split()[1] for name in names))
    after = dict(zip(shapes, shapes[1:] + shapes[:1], strict=True))
    return np.array([names.index(f"{colour} {after[shape]}") for colour, shape in (name.split() for name in names)])


@pytest.mark.parametrize("kind", ["symmetric", "asymmetric", "next-shape", "instance-dependent"])
def test_forty_percent_of_noise_is_found_and_mended(kind: str, labelled_run: Path, tmp_path: Path) -> None:
    rows, true = pictures(labelled_run)
    rng = np.random.default_rng(1)
    noise = {
        "symmetric": lambda: symmetric(true, 36, 0.4, rng),
        "asymmetric": lambda: asymmetric(true, load_class_map("next", 36).target, 0.4, rng),
        "next-shape": lambda: asymmetric(true, next_shape(labelled_run), 0.4, rng),
        "instance-dependent": lambda: instance_dependent(true, rows, 36, 0.4, rng),
    }[kind]()
    found, (low, high) = judged(labelled_run, tmp_path, true, noise)
    assert noise.rate == pytest.approx(0.4, abs=0.03)
    assert found.aurocs["label_quality"] >= 0.97
    assert found.refined_accuracy is not None
    assert found.refined_accuracy >= (0.91 if kind == "next-shape" else 0.95)
    assert low <= noise.rate <= high


def test_most_labels_may_be_wrong_as_long_as_no_wrong_one_is_common(labelled_run: Path, tmp_path: Path) -> None:
    _, true = pictures(labelled_run)
    noise = symmetric(true, 36, 0.6, np.random.default_rng(1))
    found, (low, high) = judged(labelled_run, tmp_path, true, noise)
    assert low <= noise.rate <= high
    assert found.fused.clean_f1 >= 0.9
    assert found.refined_accuracy is not None
    assert found.refined_accuracy >= 0.9


def test_right_labels_are_left_alone(labelled_run: Path, tmp_path: Path) -> None:
    _, true = pictures(labelled_run)
    nothing = LabelNoise.between(true, true, 36)
    found, (low, high) = judged(labelled_run, tmp_path, true, nothing)
    assert found.refined_accuracy is not None
    assert found.refined_accuracy >= 0.99
    assert found.fused.clean_recall >= 0.99
    assert (low, high < 0.2) == (0, True)


def test_pairs_and_labels_are_scored_in_one_run(labelled_run: Path) -> None:
    table = read_table(labelled_run / "tables")
    filled = (*LABEL_COLUMNS, "similarity", "osa_weight", "clean", "clean_probability", "clean_tango", "refined_label")
    assert {name: table[name].null_count for name in filled} == dict.fromkeys(filled, 0)
    assert set(table["status"].to_pylist()) == {"ok"}
    summary = json.loads((labelled_run / "summary.json").read_text())
    assert summary["calibration"]["noise_interval"][0] <= 0.01  # captions are right
    weight, clean = np.array(table["osa_weight"].to_pylist()), np.array(table["clean"].to_pylist())
    assert not clean[weight == 0].any()
    assert summary["kept"] == clean.sum()
    noisy = np.array(pq.read_table(labelled_run / "noisy" / "noise.parquet")["noisy"].to_pylist())
    assert (clean == ~noisy).mean() > 0.95


@pytest.mark.skipif(not PHOTOS.exists(), reason="the photos of CIFAR-10N are not beside the project")
def test_real_photos_get_all_label_columns(tmp_path: Path) -> None:
    """The embedded model knows nothing of photos, so this is about rows and columns, not about figures."""
    members, wrong = [], []
    with tarfile.open(PHOTOS) as tar:
        for member in tar:
            file = tar.extractfile(member)
            if len(members) < 4 * 250 and file is not None:
                members.append((member.name, file.read()))
    for name, data in members:
        if name.endswith(".json"):
            wrong.append(json.loads(data)["is_noisy"])
    members += [("broken.png", members[0][1][:50]), ("broken.cls", b"3"), ("bare.png", members[0][1])]
    write_tar(tmp_path / "photos.tar", members)
    done = called(
        "annotate", "photos.tar", "--task", "labels", "--classes", "cifar10", "-o", "out", "--workers", 0, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    table = read_table(tmp_path / "out")
    assert table["status"].to_pylist() == [*["ok"] * 250, "bad_image", "no_label"]
    given = [int(data) for name, data in members if name.endswith(".cls")]
    assert table["label"].to_pylist() == [*given, None]
    for name in (*LABEL_COLUMNS, "clean", "clean_tango", "clean_probability", "refined_label", "refined_confidence"):
        assert [row for row, value in enumerate(table[name].to_pylist()) if value is None] == [250, 251], name
    assert table["osa_weight"].null_count == 252
    assert re.search(r"classes +10,", done.stdout)
    truth = pa.table({"key": table["key"], "noisy": pa.array([*wrong, False, False], pa.bool_())})
    pq.write_table(truth, tmp_path / "t.parquet")
    done = called("evaluate", "out", "--truth", "t.parquet", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["labels"]["noisy"] == sum(wrong)
