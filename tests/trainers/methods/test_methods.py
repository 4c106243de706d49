"""Methods against hand-worked batches, and the weights of labels against loops over the embeddings."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from noisegate.pipeline.estimators import ModelSpec, load_estimator
from noisegate.pipeline.labels.anchors import Anchors, anchors_file
from noisegate.pipeline.pairs.beta import Beta, measure_beta
from noisegate.pipeline.pairs.osa import osa_weight
from noisegate.pipeline.runs.embeddings import read_embeddings
from noisegate.pipeline.runs.table import RunFolder, read_metadata, read_table
from noisegate.trainers.config import TrainConfig, build_method
from noisegate.trainers.data import Batch
from noisegate.trainers.losses import info_nce
from noisegate.trainers.methods import METHODS, Method, Seen
from noisegate.trainers.methods.table_inputs import image_weights, prompt_weights
from tests.commands import called
from tests.errors import refused

S = torch.tensor([[0.9, 0.1, 0.3, 0.2], [0.2, 0.5, 0.6, 0.1], [0.0, 0.4, 0.7, 0.3], [0.5, 0.1, 0.2, 0.4]])


class FakeRun:
    """A run over four rows whose network always sees `S`, on one rank."""

    task, seed, epoch, step = "retrieval", 0, 0, 0
    total_rows = 4
    device = torch.device("cpu")

    def __init__(self, columns: Mapping[str, NDArray[Any]] | None = None, table: Path | None = None) -> None:
        self.columns, self.table = columns or {}, table or Path("tables")
        self.stems = list(RunFolder(table).stems()) if table else []
        self.forwards, self.notes = 0, list[str]()

    def forward(self, batch: Batch, network: int = 0) -> Seen:
        self.forwards += 1
        tau = torch.tensor(0.5)
        return Seen(batch.rows, {"vectors": S}, tau, similarity=S, logits=S, labels=batch.labels, columns=batch.columns)

    def gather(self, rows: Tensor) -> Tensor:
        return rows

    def column(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def row_mean(self, values: NDArray[Any]) -> float:
        return float(np.nan_to_num(values).mean())

    def note(self, text: str) -> None:
        self.notes.append(text)


def method(task: str = "retrieval", **how: Any) -> Method:
    return build_method(TrainConfig.parse({"method": how, "task": {"name": task}}))


def batch(**columns: list[float]) -> Batch:
    return Batch(
        rows=torch.arange(4),
        keys=list("abcd"),
        labels=torch.tensor([0, 1, 2, 3]),
        columns={name: torch.tensor(values) for name, values in columns.items()},
    )


def test_names_are_those_of_the_command() -> None:
    assert set(METHODS) >= {"baseline", "select", "osa"}
    for name, kind in METHODS.items():
        assert kind.Config.model_fields["name"].default == name
        assert kind.__doc__


def test_baseline_is_the_plain_mean() -> None:
    step = method(name="baseline").loss({"all": batch()}, FakeRun())  # type: ignore[arg-type]
    assert step.loss is not None
    assert float(step.loss) == pytest.approx(float(info_nce(S, 0.5).mean()))
    fixed = method(name="baseline", temperature=0.1).loss({"all": batch()}, FakeRun())  # type: ignore[arg-type]
    assert fixed.loss is not None
    assert float(fixed.loss) == pytest.approx(float(info_nce(S, 0.1).mean()))


def test_select_narrows_the_data_by_its_rule() -> None:
    assert method(name="select").where() == "clean"
    assert method(name="select", rule="similarity > 0.3").where() == "similarity > 0.3"
    assert method(name="baseline").where() is None


def test_osa_weighs_each_sample_by_the_table() -> None:
    weight = [0.01, 0.0, 0.03, float("nan")]
    run = FakeRun({"osa_weight": np.array(weight, np.float32)})
    osa = method(name="osa")
    assert osa.columns() == ("osa_weight",)
    osa.prepare(run)  # type: ignore[arg-type]
    step = osa.loss({"all": batch(osa_weight=weight)}, run)  # type: ignore[arg-type]
    each = info_nce(S, 0.5)
    assert step.loss is not None
    expected = float(0.01 * each[0] + 0.03 * each[2]) / 4 / 0.01  # the mean weight of the four rows
    assert float(step.loss) == pytest.approx(expected, rel=1e-5)
    assert step.logs == {"weighted_share": 0.5}


def test_osa_can_take_doubtful_samples_out_of_the_negatives() -> None:
    weight = [0.01, 0.01, 0.0, 0.02]
    run = FakeRun({"osa_weight": np.array(weight, np.float32)})
    osa = method(name="osa", drop_negatives=True, mode="raw")
    osa.prepare(run)  # type: ignore[arg-type]
    step = osa.loss({"all": batch(osa_weight=weight)}, run)  # type: ignore[arg-type]
    kept = [0, 1, 3]
    each = info_nce(S[kept][:, kept], 0.5)
    assert step.loss is not None
    assert float(step.loss) == pytest.approx(float((each * torch.tensor([0.01, 0.01, 0.02])).sum() / 4), rel=1e-5)


def test_a_batch_without_weight_is_not_even_encoded() -> None:
    run = FakeRun({"osa_weight": np.array([0, 0, 0, 0.1], np.float32)})
    osa = method(name="osa")
    osa.prepare(run)  # type: ignore[arg-type]
    assert osa.loss({"all": batch(osa_weight=[0.0] * 4)}, run).loss is None  # type: ignore[arg-type]
    assert run.forwards == 0


def test_no_weight_at_all_is_refused() -> None:
    run = FakeRun({"osa_weight": np.zeros(4, np.float32)})
    with refused("method.weight", "auto"):
        method(name="osa").prepare(run)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("weight", "notes"),
    [
        ([0.1, 0.1, 0.1, 0.1], ["every sample has a weight by osa_weight: nothing is taken for wrong"]),
        ([0.1, 0.0, 0.0, 0.1], []),
        ([0.1] + [0.0] * 19, ["only 5.0% of the samples have a weight by osa_weight: β may be too high"]),
    ],
)
def test_a_cut_that_cuts_nothing_or_nearly_all_is_told(weight: list[float], notes: list[str]) -> None:
    run = FakeRun({"osa_weight": np.array(weight, np.float32)})
    method(name="osa").prepare(run)  # type: ignore[arg-type]
    assert run.notes[1:] == notes


@pytest.mark.parametrize(
    ("weight", "share"), [([0.2, 0.2, 0.2, 0.2], "100%"), ([0.1, 0.0, 0.0, 0.1], "50%"), ([0.3, 0.1], "80%")]
)
def test_what_weights_are_worth_is_told(weight: list[float], share: str) -> None:
    """Kish's effective number: (Σw)² / Σw²; .4² / .1 = 1.6 of 2."""
    run = FakeRun({"osa_weight": np.array(weight, np.float32)})
    method(name="osa").prepare(run)  # type: ignore[arg-type]
    assert run.notes[0] == f"the weights by osa_weight leave an effective sample size of {share} of the data"


def test_osa_weighs_classes_too() -> None:
    run = FakeRun({"label_quality": np.array([0.5, 0, 0, 0], np.float32)})
    osa = method("classification", name="osa", weight="label_quality", mode="batch_sum")
    osa.prepare(run)  # type: ignore[arg-type]
    step = osa.loss({"all": batch(label_quality=[0.5, 0.0, 0.0, 0.0])}, run)  # type: ignore[arg-type]
    assert step.loss is not None
    assert float(step.loss) == pytest.approx(float(-S[0].log_softmax(0)[0]))


@pytest.mark.parametrize(
    ("how", "weights"),
    [
        # the table's β is 0.4 (see the fixture): margins .1, 0, .4, .5, over the largest: .2, 0, .8, 1
        ({"mode": "reference"}, [0.04 * 0.96, 0.0, 0.64 * 0.36, 0.0]),
        ({"mode": "raw", "monotone": True}, [0.01 * 0.9, 0.0, 0.16 * 0.6, 0.25 * 0.5]),
    ],
)
def test_weights_from_cosine_and_beta(scored: Path, how: dict[str, Any], weights: list[float]) -> None:
    similarity = [0.5, 0.3, 0.8, 0.9]
    run = FakeRun({"similarity": np.array(similarity, np.float32)}, scored / "tables")
    osa = method(name="osa", **how)
    assert osa.columns() == ("similarity",)
    osa.prepare(run)  # type: ignore[arg-type]
    step = osa.loss({"all": batch(similarity=similarity)}, run)  # type: ignore[arg-type]
    assert step.loss is not None
    expected = float((info_nce(S, 0.5) * torch.tensor(weights)).sum() / 4)
    assert float(step.loss) == pytest.approx(expected, rel=1e-5)


def test_monotone_holds_the_weight_beyond_two_thirds(scored: Path) -> None:
    similarity = np.array([1.0, 0.4 + 2 / 3, 0.9, 0.3], np.float32)
    run = FakeRun({"similarity": similarity}, scored / "tables")
    osa = method(name="osa", monotone=True, mode="raw")
    osa.prepare(run)  # type: ignore[arg-type]
    steep = osa.weights(batch(similarity=[1.2, 0.4 + 2 / 3, 0.9, 0.3]))  # type: ignore[attr-defined]
    np.testing.assert_allclose(steep, [4 / 27, 4 / 27, 0.125, 0.0], rtol=1e-5)


# --- labels ----------------------------------------------------------------------------------------------------------


def embedded(folder: Path) -> tuple[NDArray[np.float64], NDArray[np.int64], list[str]]:
    """Unit image rows, labels and stems of a run, in order."""
    run = RunFolder(folder)
    stems = list(run.stems())
    images = np.concatenate([read_embeddings(run.embeddings(stem), "image") for stem in stems]).astype(np.float64)
    images /= np.linalg.norm(images, axis=1, keepdims=True)
    return images, read_table(folder, ["label"])["label"].to_numpy(), stems


def test_prompt_weights_are_eq_5_of_the_mean_cosine_to_the_classs_prompts(scored: Path) -> None:
    folder = scored / "tables"
    images, labels, stems = embedded(folder)
    anchors = Anchors.load(anchors_file(RunFolder(folder)))
    found = prompt_weights(folder, stems, beta="fixed:0.05")
    for row in (0, 7, 99, 159):
        cosines = anchors.embeddings[anchors.labels == labels[row]].astype(np.float64) @ images[row]
        assert found.weights[row] == pytest.approx(osa_weight(float(cosines.mean()), 0.05), abs=1e-6)
    assert found.beta.value == 0.05
    assert (found.weights > 0).any()


def test_prompt_weights_take_the_models_beta_of_random_inputs(scored: Path, tmp_path: Path) -> None:
    """Measured by the run's own model, and as the run recorded it."""
    folder = tmp_path / "tables"
    shutil.copytree(scored / "tables", folder)
    run, stems, model = RunFolder(folder), list(RunFolder(folder).stems()), load_estimator("embedded")
    by_embedded = {"model": ModelSpec("embedded").to_dict(), "scorer": model.identity.to_dict()}
    run.write_run({**(run.read_run() or {}), **by_embedded})
    beta = measure_beta(model)
    found = prompt_weights(folder, stems, beta="random_inputs")
    assert found.beta == beta
    np.testing.assert_array_equal(found.weights, prompt_weights(folder, stems, beta=f"fixed:{beta.value}").weights)
    run.write_run({**(run.read_run() or {}), "random_inputs": Beta(0.125, "random_inputs").to_dict()})
    assert prompt_weights(folder, stems, beta="random_inputs").beta.value == 0.125


def test_beta_of_random_inputs_is_refused_for_code_and_for_pictures(scored: Path) -> None:
    """A recorded model that is code is not run; pictures of a class have no texts to compare with."""
    with refused("method.beta", "random_inputs"):
        prompt_weights(scored / "tables", list(RunFolder(scored / "tables").stems()), beta="random_inputs")
    with refused("method.beta", "random_inputs"):
        method(task="image_retrieval", name="osa", beta="random_inputs")


def test_image_weights_are_eq_5_of_the_mean_cosine_to_the_class(scored: Path) -> None:
    folder = scored / "tables"
    images, labels, stems = embedded(folder)
    found = image_weights(folder, stems, beta="fixed:0.2")
    checked = 0
    for row in range(0, len(labels), 9):
        others = [i for i in np.flatnonzero(labels == labels[row]) if i != row]
        expected = osa_weight(float(np.mean(images[others] @ images[row])), 0.2, monotone=True) if others else 0.0
        assert found.weights[row] == pytest.approx(expected, abs=1e-5)
        checked += bool(others)
    assert checked > 10


@pytest.mark.parametrize("share", [0.0, 0.25])
def test_wrong_labels_lose_their_weight_and_right_ones_keep_it(tmp_path: Path, share: float) -> None:
    """Six clusters of fifty in pairs that are alike; β is found from the data, also where nothing is wrong."""
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(6), 50)
    centres = rng.standard_normal((6, 32)) + 0.5 * rng.standard_normal((3, 32)).repeat(2, axis=0)
    rows = centres[truth] + 0.6 * rng.standard_normal((300, 32))
    wrong = rng.random(300) < share
    np.save(tmp_path / "x.npy", rows.astype(np.float32))
    np.save(tmp_path / "y.npy", np.where(wrong, (truth + 1 + np.arange(300) % 5) % 6, truth))
    words = ("score-embeddings", "--images", "x.npy", "--labels", "y.npy", "--out", "tables")
    done = called(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = image_weights(tmp_path / "tables", list(RunFolder(tmp_path / "tables").stems()))
    assert (found.weights[~wrong] > 0).mean() > 0.95
    if share:
        assert (found.weights[wrong] == 0).mean() > 0.9


@pytest.mark.parametrize(("task", "weights"), [("classification", prompt_weights), ("image_retrieval", image_weights)])
def test_osa_of_labels_takes_its_weights_by_row(scored: Path, task: str, weights: Callable[..., Any]) -> None:
    run = FakeRun(table=scored / "tables")
    osa = method(task, name="osa")
    assert osa.columns() == ()
    osa.check(scored / "tables")
    osa.prepare(run)  # type: ignore[arg-type]
    expected = weights(scored / "tables", run.stems).weights
    assert osa.weights(batch()).tolist() == expected[:4].tolist()  # type: ignore[attr-defined]
    assert osa.sample_columns()["osa_weight"].shape == (160,)


def test_weights_of_labels_need_embeddings_and_anchors(scored: Path, tmp_path: Path) -> None:
    run = RunFolder(scored / "tables")
    for path in [run.run_file, *(run.table(stem) for stem in run.stems())]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    osa = method("classification", name="osa")
    with refused("method.weight", "auto") as caught:
        osa.check(tmp_path)
    assert "is not there; annotate without --drop-embeddings, or use method.weight=" in str(caught.value)
    (tmp_path / "embeddings").symlink_to(run.embeddings("x").parent)
    with refused("method.weight", "auto") as caught:
        osa.check(tmp_path)
    assert "is not there; annotate with --task labels --classes NAMES" in str(caught.value)
    method("image_retrieval", name="osa").check(tmp_path)


def test_the_fixture_is_what_these_tests_think(scored: Path) -> None:
    run = RunFolder(scored / "tables")
    metadata = read_metadata(run.table(next(run.stems())))
    assert metadata["beta"]["value"] == 0.4
    table = read_table(scored / "tables", ["osa_weight", "clean"])
    assert 0 < pc.sum(table["clean"]).as_py() < 160
