"""DivideMix-style learning by hand: labels, losses, the swap of the halves, the course of λ_u, and runs of seconds."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.mixture import GaussianMixture
from torch import Tensor

from noisegate import train
from noisegate.trainers.config import TrainConfig, build_method
from noisegate.trainers.data import Batch
from noisegate.trainers.losses import cross_entropy
from noisegate.trainers.methods import Seen
from noisegate.trainers.methods.dividemix import DivideMix, mixmatch_loss, refine_labels, sharpen
from noisegate.trainers.methods.mixup import one_hot
from tests.errors import refused
from tests.trainers.runs import TARGET, curve, same_weights, settings
from tests.trainers.small_targets import small

CLASSES = ("dog", "cat", "bird")
ROWS = 60


class FakeRun:
    """Sixty rows; each of two networks has losses of its own, and two small targets that encode pictures."""

    task, seed, epoch, step, total_rows = "classification", 0, 1, 0, ROWS
    device, table = torch.device("cpu"), None

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.labels = rng.integers(0, 3, ROWS)
        self.targets = [small("clip", seed=seed, classes=CLASSES, head="linear") for seed in (0, 1)]
        self.logits = [rng.standard_normal((ROWS, 3)).astype(np.float32) for _ in range(2)]
        for k in range(2):  # network 0 is sure of the first half, network 1 of the even rows
            sure = np.arange(ROWS) < ROWS // 2 if k == 0 else np.arange(ROWS) % 2 == 0
            self.logits[k][np.arange(ROWS), self.labels] += np.where(sure, 6, -6)

    def measure_each(
        self, function: Callable[[Seen, int], Mapping[str, Tensor]], *, texts: bool = True
    ) -> list[dict[str, NDArray[Any]]]:
        found = []
        for k in range(2):
            seen = Seen(
                torch.arange(ROWS), {}, torch.tensor(1.0), logits=torch.from_numpy(self.logits[k]),
                labels=torch.from_numpy(self.labels),
            )  # fmt: skip
            found.append({name: values.float().numpy() for name, values in function(seen, k).items()})
        return found

    def forward(self, batch: Batch, network: int = 0) -> Seen:
        assert batch.images is not None
        logits = self.targets[network].class_logits(self.targets[network].encode_images(batch.images))
        return Seen(batch.rows, {}, torch.tensor(1.0), logits=logits, labels=batch.labels)

    def on_device(self, batch: Batch) -> Batch:
        return batch

    def network(self, network: int = 0) -> Any:
        return self.targets[network]

    def encode_images(self, images: Tensor, network: int = 0) -> dict[str, Tensor]:
        return self.targets[network].encode_images(images)

    def gather(self, rows: Tensor) -> Tensor:
        return rows

    def random(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng(len(purpose) + ord(purpose[-1]))

    def note(self, text: str) -> None: ...


def dividemix(epochs: int = 5, **how: Any) -> DivideMix:
    config = {"method": {"name": "dividemix", **how}, "task": {"name": "classification"}}
    method = build_method(TrainConfig.parse(config))
    assert isinstance(method, DivideMix)
    method.epochs(epochs)
    return method


def divided(run: FakeRun, **how: Any) -> DivideMix:
    method = dividemix(**how)
    method.prepare(run)  # type: ignore[arg-type]
    method.begin_epoch(run)  # type: ignore[arg-type]
    return method


def pictures(rows: list[int], labels: NDArray[Any], seed: int) -> Batch:
    images = torch.randint(
        0, 256, (len(rows), 3, 16, 16), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8
    )
    return Batch(
        rows=torch.tensor(rows), keys=[str(r) for r in rows], images=images, labels=torch.from_numpy(labels[rows])
    )


# --- labels and losses -----------------------------------------------------------------------------------------------------


def test_sharpening_and_refinement_by_hand() -> None:
    found = sharpen(torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64), 0.5)[0]
    total = 0.25 + 0.09 + 0.04
    assert found.tolist() == pytest.approx([0.25 / total, 0.09 / total, 0.04 / total])
    assert sharpen(found[None], 1.0)[0].tolist() == pytest.approx(found.tolist())
    y, p = one_hot(torch.tensor([0, 2]), 3), torch.tensor([[0.2, 0.7, 0.1], [0.6, 0.3, 0.1]])
    soft = refine_labels(y, p, torch.tensor([1.0, 0.25]))
    assert soft[0].tolist() == pytest.approx([1, 0, 0])
    mixed = [0.75 * 0.6, 0.75 * 0.3, 0.25 + 0.75 * 0.1]
    squares = [value**2 for value in mixed]
    assert soft[1].tolist() == pytest.approx([value / sum(squares) for value in squares])


def test_loss_by_hand() -> None:
    labelled = torch.tensor([[1.0, 0.0], [0.5, -0.5]], dtype=torch.float64)
    unlabelled = torch.tensor([[0.0, 2.0]], dtype=torch.float64)
    y = torch.tensor([[1.0, 0.0], [0.4, 0.6]], dtype=torch.float64)
    guess = torch.tensor([[0.3, 0.7]], dtype=torch.float64)

    def share(a: float, b: float) -> tuple[float, float]:
        return math.exp(a) / (math.exp(a) + math.exp(b)), math.exp(b) / (math.exp(a) + math.exp(b))

    p = [share(1, 0), share(0.5, -0.5), share(0, 2)]
    l_x = -(math.log(p[0][0]) + 0.4 * math.log(p[1][0]) + 0.6 * math.log(p[1][1])) / 2
    l_u = ((p[2][0] - 0.3) ** 2 + (p[2][1] - 0.7) ** 2) / 2
    mean = [sum(each[c] for each in p) / 3 for c in range(2)]
    l_reg = sum(0.5 * math.log(0.5 / value) for value in mean)
    found = mixmatch_loss(labelled, y, unlabelled, guess, weight=25.0)
    assert float(found) == pytest.approx(l_x + 25 * l_u + l_reg, rel=1e-12)
    none = torch.zeros(0, 2, dtype=torch.float64)
    alone = mixmatch_loss(labelled, y, none, none, weight=25.0)
    mean = [(p[0][c] + p[1][c]) / 2 for c in range(2)]
    assert float(alone) == pytest.approx(l_x + sum(0.5 * math.log(0.5 / value) for value in mean), rel=1e-12)
    assert torch.isfinite(mixmatch_loss(none, none, unlabelled, guess, weight=1.0))


def test_gradient() -> None:
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 3, generator=rng, dtype=torch.float64).requires_grad_()
    soft = torch.randn(7, 3, generator=rng, dtype=torch.float64).softmax(1)
    assert torch.autograd.gradcheck(lambda x: mixmatch_loss(x[:4], soft[:4], x[4:], soft[4:], weight=3.0), (logits,))


# --- an epoch ----------------------------------------------------------------------------------------------------------------


def test_each_network_learns_by_the_others_division() -> None:
    run = FakeRun()
    method = divided(run)
    first, even = np.arange(ROWS) < ROWS // 2, np.arange(ROWS) % 2 == 0
    assert method.clean(0).tolist() == first.tolist()
    assert method.clean(1).tolist() == even.tolist()
    streams = method.streams(run)  # type: ignore[arg-type]
    rows = {name: stream.rows.tolist() for name, stream in streams.items() if stream.rows is not None}
    assert rows == {
        "a_labelled": even.tolist(), "a_unlabelled": (~even).tolist(),
        "b_labelled": first.tolist(), "b_unlabelled": (~first).tolist(),
    }  # fmt: skip
    assert [streams[name].order for name in rows] == [0, 0, 1, 1]
    assert set(divided(run, mixmatch=False).streams(run)) == {"a_labelled", "b_labelled"}  # type: ignore[arg-type]


def test_division_is_a_gaussian_mixture_of_the_losses() -> None:
    run = FakeRun()
    method = divided(run)
    loss = cross_entropy(torch.from_numpy(run.logits[0]), torch.from_numpy(run.labels)).numpy().astype(np.float64)
    x = ((loss - loss.min()) / np.ptp(loss))[:, None]
    fitted = GaussianMixture(2, max_iter=100, tol=1e-6, reg_covar=5e-4, random_state=0).fit(x)
    posterior = fitted.predict_proba(x)[:, int(fitted.means_.argmin())]
    np.testing.assert_allclose(method.confidence[0], posterior, atol=0.05)


def test_columns_are_of_both_networks() -> None:
    run = FakeRun()
    method = divided(run)
    w = method.confidence.mean(axis=0)
    p = sum(torch.from_numpy(logits).softmax(1).numpy() for logits in run.logits) / 2
    soft = w[:, None] * np.eye(3)[run.labels] + (1 - w)[:, None] * p
    columns = method.sample_columns()
    np.testing.assert_allclose(columns["clean_probability"], w, rtol=1e-6)
    assert columns["clean"].tolist() == (w > 0.5).tolist()
    assert columns["refined_label"].tolist() == soft.argmax(axis=1).tolist()
    np.testing.assert_allclose(columns["refined_confidence"], soft.max(axis=1), rtol=1e-5)


def test_the_unlabelled_weight_rises_in_a_line() -> None:
    method = dividemix(40, warmup=4, ramp=16)
    assert [method.unlabelled_weight(epoch) for epoch in (4, 8, 20, 39)] == [0, 6.25, 25, 25]
    assert dividemix(40, ramp=0).unlabelled_weight(4) == 25
    assert [dividemix(epochs).warmup for epochs in (2, 19, 300)] == [1, 6, 10]


# --- a step ---------------------------------------------------------------------------------------------------------------


def test_step_adds_the_mixmatch_losses_of_both_networks() -> None:
    """The labelled part with the partner's w and the own prediction, the other part with both networks' guesses."""
    run = FakeRun()
    method = divided(run, ramp=0, mixup=4.0)
    work = {
        "a_labelled": pictures([0, 2, 4, 6], run.labels, 0), "a_unlabelled": pictures([1, 3], run.labels, 1),
        "b_labelled": pictures([5, 7], run.labels, 2), "b_unlabelled": pictures([40, 41], run.labels, 3),
    }  # fmt: skip
    step = method.loss(work, run)  # type: ignore[arg-type]
    expected = 0.0
    for k, name in enumerate("ab"):
        own, other = run.targets[k], run.targets[1 - k]
        labelled, unlabelled = work[f"{name}_labelled"], work[f"{name}_unlabelled"]
        x = torch.cat([own.pixels(labelled.images), own.pixels(unlabelled.images)])  # type: ignore[arg-type]
        count = len(labelled)
        with torch.no_grad():
            p, q = (t.class_logits(t.encode_images(x)).softmax(1) for t in (own, other))
            w = torch.from_numpy(method.confidence[1 - k][labelled.rows.numpy()])[:, None]
            soft = torch.cat([w * one_hot(labelled.labels, 3) + (1 - w) * p[:count], (p[count:] + q[count:]) / 2])  # type: ignore[arg-type]
            soft = soft**2 / (soft**2).sum(1, keepdim=True)
            rng = run.random(f"mixup {k}")
            share = rng.beta(4, 4)
            share = max(share, 1 - share)
            order = rng.permutation(len(x))
            logits = own.class_logits(own.encode_images(share * x + (1 - share) * x[order]))
            soft = share * soft + (1 - share) * soft[order]
            expected += float(mixmatch_loss(logits[:count], soft[:count], logits[count:], soft[count:], weight=25.0))
    assert step.loss is not None
    assert float(step.loss.detach()) == pytest.approx(expected, rel=1e-5)
    step.loss.backward()
    assert all(p.grad is not None for t in run.targets for p in t.model.visual.parameters())


def test_the_other_network_guesses_in_evaluation_mode() -> None:
    """As published: the one that learns is in training mode, the one that is asked about unlabelled pictures is not."""
    run = FakeRun()
    method = divided(run)
    modes: list[tuple[int, bool]] = []
    for k, target in enumerate(run.targets):
        target.train()
        target.model.visual.register_forward_pre_hook(lambda *_, k=k, t=target: modes.append((k, t.training)))
    method.loss({"a_unlabelled": pictures([1, 3], run.labels, 1)}, run)  # type: ignore[arg-type]
    assert modes == [(0, True), (1, False), (0, True)], "own guess, the other's, the mixed pictures"
    assert all(target.training for target in run.targets)


@pytest.mark.parametrize(("epochs", "given", "alpha"), [(49, None, 0.1), (50, None, 4.0), (5, 2.0, 2.0)])
def test_short_runs_hardly_mix(epochs: int, given: float | None, alpha: float) -> None:
    notes: list[str] = []

    class NotedRun(FakeRun):
        def note(self, text: str) -> None:
            notes.append(text)

    method = dividemix(epochs, mixup=given)
    method.prepare(NotedRun())  # type: ignore[arg-type]
    assert method.mixup == alpha
    assert [("hardly mixed" in text) for text in notes] == ([True] if alpha == 0.1 else [])


def test_warm_up_and_plain_co_teaching_take_the_given_labels() -> None:
    run = FakeRun()
    run.epoch = 0
    method = dividemix()
    method.prepare(run)  # type: ignore[arg-type]
    method.begin_epoch(run)  # type: ignore[arg-type]
    assert method.sample_columns() == {}
    assert set(method.streams(run)) == {"a", "b"}  # type: ignore[arg-type]
    one, two = pictures([0, 1, 2], run.labels, 0), pictures([3, 4], run.labels, 1)
    both = sum(
        float(cross_entropy(run.forward(b, k).logits, b.labels).mean().detach())  # type: ignore[arg-type]
        for k, b in enumerate((one, two))
    )
    step = method.loss({"a": one, "b": two}, run)  # type: ignore[arg-type]
    assert step.loss is not None
    assert float(step.loss.detach()) == pytest.approx(both, rel=1e-6)
    run.epoch = 1
    plain = divided(run, mixmatch=False)
    step = plain.loss({"a_labelled": one, "b_labelled": two}, run)  # type: ignore[arg-type]
    assert step.loss is not None
    assert float(step.loss.detach()) == pytest.approx(both, rel=1e-6)


def test_a_step_without_one_half_goes_on() -> None:
    run = FakeRun()
    method = divided(run)
    only = method.loss({"a_unlabelled": pictures([1, 3], run.labels, 1)}, run)  # type: ignore[arg-type]
    assert only.loss is not None
    assert torch.isfinite(only.loss)
    assert method.loss({}, run).loss is None  # type: ignore[arg-type]


def test_settings_that_cannot_work() -> None:
    with refused("method.warmup", 5):
        dividemix(5, warmup=5)
    with refused("task.name", "retrieval"):
        build_method(TrainConfig.parse({"method": {"name": "dividemix"}}))


def test_a_run_resumes_exactly(scored: Path, tmp_path: Path) -> None:
    """Stopped in the middle of the first divided epoch."""
    target = {**TARGET, "classes": str(scored / "clean" / "classes.txt"), "head": "linear"}
    plain = settings(
        scored, tmp_path, "dividemix", task={"name": "classification"}, target=target, loop__epochs=3,
        loop__evaluate_every=0, method={"name": "dividemix", "ramp": 1},
    )  # fmt: skip
    whole = train(plain, quiet=True)
    part = train(plain, settings=["loop.max_steps=7"], quiet=True)
    done = train(resume=part.folder, settings=["loop.max_steps=null"], quiet=True)
    assert curve(done.folder) == curve(whole.folder)
    files = [path.name for path in done.folder.glob("last*.safetensors")]
    assert len(files) == 2
    for name in files:
        assert same_weights(done.folder / name, whole.folder / name)
    for name, values in whole.sample_columns.items():
        np.testing.assert_array_equal(done.sample_columns[name], values)
    assert whole.sample_columns["clean_probability"].shape == (160,)
