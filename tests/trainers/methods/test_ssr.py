"""SSR-style selection by hand: relabelling, the balanced vote with the sample itself, class weights, and runs of seconds."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from noisegate import train
from noisegate.pipeline.neighbours import find_neighbours
from noisegate.trainers.config import TrainConfig, build_method
from noisegate.trainers.data import Batch
from noisegate.trainers.methods import Seen
from noisegate.trainers.methods.ssr import Ssr, class_weights, relabel, select_clean
from tests.errors import refused
from tests.trainers.runs import TARGET, curve, same_weights, settings
from tests.trainers.small_targets import small


class FakeRun:
    """Nine rows in three clear groups; the network's logits and features are given."""

    task, seed, epoch, step, total_rows = "classification", 0, 0, 0, 9
    device, table = torch.device("cpu"), None

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.truth = np.repeat([0, 1, 2], 3)
        self.vectors = (np.eye(3)[self.truth] + 0.05 * rng.standard_normal((9, 3))).astype(np.float32)
        self.labels = np.array([0, 0, 1, 1, 1, 1, 2, 2, 2])
        self.logits = np.zeros((9, 3), np.float32)
        self.target = small("clip", classes=("dog", "cat", "bird"), head="linear")
        self.measured = 0

    def measure(
        self, function: Callable[[Seen], Mapping[str, Tensor]], network: int = 0, *, texts: bool = True
    ) -> dict[str, NDArray[Any]]:
        self.measured += 1
        seen = Seen(
            torch.arange(9), {"vectors": torch.from_numpy(self.vectors)}, torch.tensor(1.0),
            logits=torch.from_numpy(self.logits), labels=torch.from_numpy(self.labels),
        )  # fmt: skip
        return {name: values.float().numpy() for name, values in function(seen).items()}

    def on_device(self, batch: Batch) -> Batch:
        return batch

    def network(self, network: int = 0) -> Any:
        return self.target

    def encode_images(self, images: Tensor, network: int = 0) -> dict[str, Tensor]:
        return self.target.encode_images(images)

    def gather(self, rows: Tensor) -> Tensor:
        return rows

    def random(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng(3)

    def note(self, text: str) -> None: ...


def ssr(**how: Any) -> Ssr:
    how = {"name": "ssr", "warmup": 0, **how}
    method = build_method(TrainConfig.parse({"method": how, "task": {"name": "classification"}}))
    assert isinstance(method, Ssr)
    return method


def test_relabelling_wants_more_than_the_threshold_and_a_label() -> None:
    found = relabel(np.array([0, 0, -1]), np.array([1, 1, 1]), np.array([0.9, 0.901, 0.99]), 0.9)
    assert found.tolist() == [0, 1, -1]


def by_loops(vectors: NDArray[Any], labels: NDArray[Any], classes: int, k: int, threshold: float) -> list[bool]:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    size = np.bincount(labels, minlength=classes)
    found = []
    for i in range(len(labels)):
        order = sorted(range(len(labels)), key=lambda j: -float(unit[i] @ unit[j]))
        nearest = [i, *[j for j in order if j != i]][:k]
        vote = [sum(1 / size[c] for j in nearest if labels[j] == c) for c in range(classes)]
        found.append(vote[labels[i]] >= threshold * max(vote) - 1e-9)
    return found


@pytest.mark.parametrize(("k", "threshold"), [(4, 1.0), (7, 1.0), (7, 0.6)])
def test_selection_is_the_balanced_vote_with_itself(k: int, threshold: float) -> None:
    rng = np.random.default_rng(1)
    vectors, labels = rng.standard_normal((40, 5)), rng.integers(0, 3, 40)
    neighbours = find_neighbours(vectors.astype(np.float32), k, include_self=True)
    found = select_clean(neighbours, np.ones(40, bool), labels, 3, threshold)
    assert found.tolist() == by_loops(vectors, labels, 3, k, threshold)
    assert 0 < found.sum() < 40


def test_rows_without_label_or_feature_are_never_selected() -> None:
    rng = np.random.default_rng(1)
    vectors, labels = rng.standard_normal((10, 5)), np.zeros(10, np.int64)
    labels[2], vectors[5] = -1, np.nan
    valid = np.isfinite(vectors).all(axis=1) & (labels >= 0)
    neighbours = find_neighbours(vectors.astype(np.float32), 4, include_self=True)
    assert np.flatnonzero(~select_clean(neighbours, valid, labels, 1, 1.0)).tolist() == [2, 5]


def test_class_weights_have_mean_one_and_equal_class_sums() -> None:
    labels = np.array([0, 0, 0, 0, 2, 2, 1, 1])
    clean = np.array([True, True, True, True, True, True, False, False])
    found = class_weights(labels, clean)
    assert found[clean].mean() == pytest.approx(1)
    assert [found[labels == c].sum() for c in (0, 1, 2)] == pytest.approx([3, 0, 3])
    assert class_weights(labels, np.zeros(8, bool)).tolist() == [0] * 8


def test_an_epoch_relabels_by_confidence_and_selects_by_neighbours() -> None:
    method, run = ssr(k=3), FakeRun()
    method.prepare(run)  # type: ignore[arg-type]
    method.begin_epoch(run)  # type: ignore[arg-type]
    assert method.labels.tolist() == run.labels.tolist(), "nobody is sure yet"
    assert method.clean.tolist() == [True, True, False, *[True] * 6], "row 2 stands among dogs and is called a cat"
    run.logits[2] = [9, 0, 0]
    method.begin_epoch(run)  # type: ignore[arg-type]
    assert method.labels.tolist() == run.truth.tolist()
    assert method.clean.all()
    columns = method.sample_columns()
    assert columns["refined_label"].tolist() == run.truth.tolist()
    assert columns["refined_confidence"][2] == pytest.approx(np.exp(9) / (np.exp(9) + 2))
    assert columns["refined_confidence"][0] == pytest.approx(1 / 3), "what the network gives the label that stayed"
    assert method.streams(run)["all"].rows is None  # type: ignore[arg-type]


def test_warm_up_takes_everything_as_given() -> None:
    method, run = ssr(warmup=2), FakeRun()
    method.prepare(run)  # type: ignore[arg-type]
    run.epoch = 1
    method.begin_epoch(run)  # type: ignore[arg-type]
    assert run.measured == 0
    assert method.sample_columns() == {}
    run.epoch = 2
    method.begin_epoch(run)  # type: ignore[arg-type]
    assert run.measured == 1
    rows = method.streams(run)["all"].rows  # type: ignore[arg-type]
    assert rows is not None
    assert rows.tolist() == method.clean.tolist()


def test_a_network_that_does_not_say_what_the_neighbours_say_trains_plainly() -> None:
    method, run = ssr(k=3, warmup=None), FakeRun()
    method.prepare(run)  # type: ignore[arg-type]
    for right, plain in ((5, True), (6, False)):  # of nine
        run.logits[:] = np.eye(3)[(run.truth + 1) % 3]
        run.logits[:right] = np.eye(3)[run.truth[:right]]
        method.begin_epoch(run)  # type: ignore[arg-type]
        assert method.plain[0] == plain
        assert method.clean.all() == plain == (method.sample_columns() == {})
        again = ssr(k=3)
        again.load_state_dict(method.state_dict())
        assert again.plain[0] == plain


def test_loss_is_weighted_cross_entropy_of_mixed_pictures() -> None:
    method, run = ssr(k=3), FakeRun()
    method.prepare(run)  # type: ignore[arg-type]
    method.begin_epoch(run)  # type: ignore[arg-type]
    rows = [0, 3, 6, 8]
    images = torch.randint(0, 256, (4, 3, 16, 16), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    work = {"all": Batch(rows=torch.tensor(rows), keys=list("abcd"), images=images, labels=torch.tensor([0, 1, 2, 2]))}
    step = method.loss(work, run)  # type: ignore[arg-type]
    rng = run.random("mixup")
    share = rng.beta(4, 4)
    share = max(share, 1 - share)
    order = rng.permutation(4)
    pixels = run.target.pixels(images)
    with torch.no_grad():
        logits = run.target.class_logits(run.target.encode_images(share * pixels + (1 - share) * pixels[order]))
    logs, labels, weights = logits.log_softmax(1), [0, 1, 2, 2], method.weights[rows]
    total = 0.0
    for i in range(4):
        for part, j in ((share, i), (1 - share, order[i])):
            total -= part * float(weights[j]) * float(logs[i, labels[j]])
    assert step.loss is not None
    assert float(step.loss.detach()) == pytest.approx(total / 4, rel=1e-5)
    assert len(set(weights.tolist())) > 1


def test_a_warm_up_of_all_epochs_is_refused() -> None:
    for name in ("ssr", "tango"):
        method = build_method(
            TrainConfig.parse({"method": {"name": name, "warmup": 5}, "task": {"name": "classification"}})
        )
        with refused("method.warmup", 5):
            method.epochs(5)
        assert method.epochs(6) == 6


def test_labels_only() -> None:
    with refused("task.name", "retrieval"):
        build_method(TrainConfig.parse({"method": {"name": "ssr"}}))


def test_a_run_resumes_exactly(scored: Path, tmp_path: Path) -> None:
    target = {**TARGET, "classes": str(scored / "clean" / "classes.txt")}
    plain = settings(
        scored, tmp_path, "ssr", task={"name": "classification"}, target=target, loop__epochs=4,
        loop__evaluate_every=0, method={"name": "ssr", "warmup": 1, "k": 5}, data__batch_size=16,
    )  # fmt: skip
    whole = train(plain, quiet=True)
    part = train(plain, settings=["loop.max_steps=11"], quiet=True)
    done = train(resume=part.folder, settings=["loop.max_steps=null"], quiet=True)
    assert curve(done.folder) == curve(whole.folder)
    assert same_weights(done.folder / "last.safetensors", whole.folder / "last.safetensors")
    for name, values in whole.sample_columns.items():
        np.testing.assert_array_equal(done.sample_columns[name], values)
    assert not whole.sample_columns["clean"].all()
    assert whole.steps == 40, "ten batches an epoch, however few samples are selected"
