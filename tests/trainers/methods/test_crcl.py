"""CRCL by hand: its losses, the noise-tolerance identity and bounds, the course of the labels, and whole runs of seconds."""

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from noisegate import train
from noisegate.pipeline.methods.crcl import log_matching_probabilities, matching_probability
from noisegate.trainers.config import TrainConfig, build_method
from noisegate.trainers.data import Batch
from noisegate.trainers.loop.checkpoint import read_checkpoint
from noisegate.trainers.methods import Seen
from noisegate.trainers.methods.crcl import (
    Crcl,
    active_complementary_loss,
    complementary_loss,
    correct_labels,
    split_epochs,
)
from tests.errors import refused
from tests.trainers.runs import curve, same_weights, settings

S = torch.tensor([[0.9, 0.1, 0.3], [0.2, 0.5, 0.6], [0.0, 0.4, 0.7]], dtype=torch.float64)
TAU = 0.5


class FakeRun:
    """Three pairs that a network always sees as `similarity`; counts restarts."""

    task, seed, step, total_rows = "retrieval", 0, 0, 3
    device, table = torch.device("cpu"), None

    def __init__(self, similarity: Tensor = S, scale: float | None = None, from_scratch: bool = True) -> None:
        self.similarity, self.epoch = similarity, 0
        self.restarts: list[int | None] = []
        self.temperature = torch.tensor(0.05 if scale is None else 1 / scale)
        logit_scale = None if scale is None else torch.nn.Parameter(torch.tensor(math.log(scale)))
        self.target = SimpleNamespace(logit_scale=logit_scale, config=SimpleNamespace(from_scratch=from_scratch))

    def forward(self, batch: Batch, network: int = 0) -> Seen:
        rows = batch.rows
        return Seen(rows, {}, self.temperature, similarity=self.similarity[rows][:, rows])

    def network(self, network: int = 0) -> Any:
        return self.target

    def restart(self, epochs: int | None = None) -> None:
        self.restarts.append(epochs)

    def note(self, text: str) -> None: ...


def crcl(epochs: int = 20, **how: Any) -> Crcl:
    method = build_method(TrainConfig.parse({"method": {"name": "crcl", **how}}))
    assert isinstance(method, Crcl)
    method.epochs(epochs)
    return method


def step(method: Crcl, run: FakeRun, rows: tuple[int, ...] = (0, 1, 2)) -> float:
    found = method.loss({"all": Batch(rows=torch.tensor(rows), keys=list("abc"))}, run)  # type: ignore[arg-type]
    assert found.loss is not None
    return float(found.loss)


def p_hat(similarity: Tensor = S, tau: float = TAU) -> np.ndarray:
    return matching_probability(*log_matching_probabilities(similarity, tau)).numpy().astype(np.float32)


def by_hand(similarity: Tensor, labels: list[float], tau: float, weight: float) -> float:
    """Eq. 3, 6, 8 and 9 with math alone, sum by sum."""
    n = len(labels)
    e = [[math.exp(float(similarity[i, j]) / tau) for j in range(n)] for i in range(n)]
    rows = [[e[i][j] / sum(e[i]) for j in range(n)] for i in range(n)]
    columns = [[e[i][j] / sum(e[k][j] for k in range(n)) for i in range(n)] for j in range(n)]
    total = 0.0
    for i, y in enumerate(labels):
        total -= y * (math.log(rows[i][i]) + math.log(columns[i][i]))
        for p in (rows[i], columns[i]):
            tangents = [math.tan(value) for value in p]
            total += weight * sum(t for j, t in enumerate(tangents) if j != i) / sum(tangents) ** (1 - y)
    return total / n


# --- losses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [0.9, 0.0, 0.35]])
def test_active_complementary_loss_is_eq_8(labels: list[float]) -> None:
    images, texts = log_matching_probabilities(S, TAU)
    found = active_complementary_loss(images, texts, torch.tensor(labels, dtype=torch.float64), 5.0)
    assert float(found.mean()) == pytest.approx(by_hand(S, labels, TAU, 5.0), rel=1e-12)


def distributions(n: int) -> list[Tensor]:
    rng = torch.Generator().manual_seed(0)
    drawn = [torch.randn(n, generator=rng, dtype=torch.float64).mul(spread).softmax(0) for spread in (0.1, 1, 3, 9)]
    return [torch.full((n,), 1 / n, dtype=torch.float64), torch.eye(n, dtype=torch.float64)[0], *drawn]


def over_candidates(p: Tensor, q: float) -> float:
    """Sum of L_r° over all N texts that could be the match of one image: row k takes text k for it."""
    n = len(p)
    return float(complementary_loss(p.expand(n, n), torch.full((n,), q, dtype=torch.float64)).sum())


@pytest.mark.parametrize("n", [2, 7, 128])
def test_g7_noise_tolerance(n: int) -> None:
    """q = 1: the sum over candidates is N - 1 whatever p is (Lemma 1); q = 0: (N - 1) Σ tan p."""
    for p in distributions(n):
        assert over_candidates(p, 1.0) == pytest.approx(n - 1, rel=1e-9)
        total = math.fsum(math.tan(value) for value in p.tolist())
        assert over_candidates(p, 0.0) == pytest.approx((n - 1) * total, rel=1e-9)
        assert n * math.tan(1 / n) - 1e-9 <= total <= math.tan(1.0) + 1e-9
        assert over_candidates(p, 0.5) == pytest.approx((n - 1) * math.sqrt(total), rel=1e-9)


@pytest.mark.parametrize(
    ("noise", "q", "bound"),
    [(0.2, 0, -0.2792434), (0.2, 0.5, -0.1242202), (0.2, 1, 0.0), (0.6, 0, -1.6921481), (0.6, 0.5, -0.7527444)],
)
def test_g7_excess_risk_of_128_candidates(noise: float, q: float, bound: float) -> None:
    """C of Eq. 7 from the losses themselves: A^(1-q) is the sum over candidates over N - 1, least at uniform p."""
    n = 128
    uniform, certain = distributions(n)[:2]
    least, most = over_candidates(uniform, q) / (n - 1), over_candidates(certain, q) / (n - 1)
    if q == 0:
        assert (least, most) == (pytest.approx(1.0000203455, abs=1e-10), pytest.approx(1.5574077, abs=1e-7))
    assert 2 * noise * (least - most) / (1 - n * noise / (n - 1)) == pytest.approx(bound, abs=1e-6)


def test_loss_is_finite_and_smooth_where_probabilities_are_extreme() -> None:
    for similarity in (torch.eye(4) * 1e4, -torch.eye(4) * 1e4, torch.zeros(4, 4)):
        similarity = similarity.clone().requires_grad_()
        images, texts = log_matching_probabilities(similarity, 0.05)
        loss = active_complementary_loss(images, texts, torch.tensor([1.0, 0.0, 0.3, 0.5]), 5.0).mean()
        loss.backward()
        assert torch.isfinite(loss)
        assert similarity.grad is not None
        assert torch.isfinite(similarity.grad).all()


@pytest.mark.parametrize("masked", [False, True])
def test_gradient(masked: bool) -> None:
    same = torch.eye(3, dtype=torch.bool)
    same[0, 2] = same[2, 0] = masked
    labels = torch.tensor([1.0, 0.0, 0.4], dtype=torch.float64)

    def loss(similarity: Tensor) -> Tensor:
        return active_complementary_loss(*log_matching_probabilities(similarity, TAU, same), labels, 5.0)

    assert torch.autograd.gradcheck(loss, (S.clone().requires_grad_(),))


def test_pairs_with_the_same_picture_are_left_out_of_the_softmax() -> None:
    same = torch.zeros(3, 3, dtype=torch.bool)
    same[0, 1] = same[1, 0] = True
    images, texts = log_matching_probabilities(S, TAU, same)
    e = (S / TAU).exp()
    assert float(images[0, 0].exp()) == pytest.approx(float(e[0, 0] / (e[0, 0] + e[0, 2])))
    assert float(texts[1, 1].exp()) == pytest.approx(float(e[1, 1] / (e[1, 1] + e[2, 1])))
    assert images.exp()[0, 1] == 0
    assert float(images[2, 0].exp()) == pytest.approx(float(e[2, 0] / e[2].sum())), "the third pair meets both"


# --- labels -----------------------------------------------------------------------------------------------------------


def test_g8_momentum() -> None:
    """y_t = p + (1 - p) .8^t; with p = 0 first below .1 at t = 11."""
    for p in (0.0, 0.3, 1.0):
        y = np.ones(1, np.float32)
        for t in range(1, 13):
            y = correct_labels(y, np.float32([p]), 0.8)
            assert float(y[0]) == pytest.approx(p + (1 - p) * 0.8**t, abs=1e-6)
            if p == 0:
                assert (y[0] < 0.1) == (t >= 11)


def epoch(method: Crcl, run: FakeRun, number: int, similarity: Tensor = S) -> float:
    run.epoch, run.similarity = number, similarity
    method.begin_epoch(run)  # type: ignore[arg-type]
    return step(method, run)


def test_paper_takes_the_last_epochs_prediction_over_and_then_by_momentum() -> None:
    method, run = crcl(temperature=TAU, pieces=[5, 3]), FakeRun()
    method.prepare(run)  # type: ignore[arg-type]
    other = S.flip(0)
    first, second, third = p_hat(S), p_hat(other), p_hat(S * 0.5)
    assert epoch(method, run, 0) == pytest.approx(by_hand(S, [1, 1, 1], TAU, 5), rel=1e-5), "frozen: all are believed"
    epoch(method, run, 1, other)
    np.testing.assert_array_equal(method.labels, 1)
    found = epoch(method, run, 2, S * 0.5)  # t = e_f + 1 of the first piece: y is p̂ of epoch t - 1 as it is
    np.testing.assert_allclose(method.labels, second, rtol=1e-6)
    used = np.where(second < 0.1, 0, second)
    assert found == pytest.approx(by_hand(S * 0.5, used.tolist(), TAU, 5), rel=1e-5)
    epoch(method, run, 3)
    np.testing.assert_allclose(method.labels, 0.8 * second + 0.2 * third, rtol=1e-5)
    epoch(method, run, 4)
    last = 0.8 * (0.8 * second + 0.2 * third) + 0.2 * first
    np.testing.assert_allclose(method.labels, last, rtol=1e-5)
    assert run.restarts == [5]
    for number in (5, 6):  # the second piece: frozen again, at what the first one came to
        epoch(method, run, number, other)
        np.testing.assert_allclose(method.labels, last, rtol=1e-5)
    assert run.restarts == [5, None], "the last piece has all that is left, 3"
    epoch(method, run, 7)
    np.testing.assert_allclose(
        method.labels, 0.8 * last + 0.2 * second, rtol=1e-5, err_msg="mixed at once from here on"
    )


def test_code_moves_labels_with_the_current_batch() -> None:
    method, run = crcl(temperature=TAU, preset="code", pieces=[2, 1]), FakeRun()
    assert method.lengths == (4, 3), "e_f epochs on top of each piece"
    method.prepare(run)  # type: ignore[arg-type]
    other = S.flip(0)
    first, second = p_hat(S), p_hat(other)
    epoch(method, run, 0)
    np.testing.assert_array_equal(method.labels, 1)
    assert epoch(method, run, 1) == pytest.approx(by_hand(S, [1, 1, 1], TAU, 5), rel=1e-5), (
        "the loss still believes all"
    )
    np.testing.assert_allclose(method.labels, first, rtol=1e-6, err_msg="and the memory is p̂ already")
    mixed = 0.8 * first + 0.2 * second
    assert epoch(method, run, 2, other) == pytest.approx(by_hand(other, mixed.tolist(), TAU, 5), rel=1e-5)
    np.testing.assert_allclose(method.labels, mixed, rtol=1e-6)
    epoch(method, run, 3, other)
    again = 0.8 * mixed + 0.2 * second
    for number in (4, 5):
        epoch(method, run, number)
        np.testing.assert_allclose(method.labels, again, rtol=1e-6)
    assert run.restarts == [4, None], "the last piece has all that is left, 3"
    epoch(method, run, 6)
    np.testing.assert_allclose(method.labels, 0.8 * again + 0.2 * first, rtol=1e-6)


def test_code_forgets_what_it_truncates_and_the_paper_does_not() -> None:
    """y = .09 is refused by both; the paper's memory keeps it, the code's needs p̂ >= .5 to come back."""
    for preset, remembered in (("paper", 0.09), ("code", 0.0)):
        method, run = crcl(preset=preset, temperature=TAU), FakeRun()
        method.prepare(run)  # type: ignore[arg-type]
        method.labels[:] = [0.09, 0.5, 1.0]
        assert step(method, run) == pytest.approx(by_hand(S, [0.0, 0.5, 1.0], TAU, 5), rel=1e-5)
        assert method.labels[0] == pytest.approx(remembered)
        assert method.sample_columns()["clean"].tolist() == [False, True, True]
    y = np.zeros(2, np.float32)
    assert (correct_labels(y, np.float32([0.499, 0.501]), 0.8) >= 0.1).tolist() == [False, True]


def test_a_pair_that_was_not_shown_keeps_its_label() -> None:
    method, run = crcl(temperature=TAU, freeze=1), FakeRun()
    method.prepare(run)  # type: ignore[arg-type]
    step(method, run, rows=(0, 2))
    run.epoch = 1
    method.begin_epoch(run)  # type: ignore[arg-type]
    assert method.labels[1] == 1
    assert method.labels[0] == pytest.approx(float(p_hat(S[[0, 2]][:, [0, 2]])[0]))


@pytest.mark.parametrize("preset", ["paper", "code"])
def test_ablations_of_table_4(preset: str) -> None:
    """L_d alone and L_r alone by hand, with q = 1 - ŷ and fixed; without SCC labels stay 1, whatever is predicted."""
    images, texts = (np.exp(S.double().numpy() / TAU) / np.exp(S.double().numpy() / TAU).sum(axis=axis, keepdims=True)
                     for axis in (1, 0))  # fmt: skip

    def only_complementary(q: float) -> float:
        total = 0.0
        for p in (images, texts.T):
            tangents = np.tan(p)
            total += float(((tangents.sum(axis=1) - tangents.diagonal()) / tangents.sum(axis=1) ** q).mean())
        return 5 * total

    run = FakeRun()
    for how, expected in (
        ({"complementary": 0.0}, by_hand(S, [1, 1, 1], TAU, 0)),
        ({"direct": False}, only_complementary(0)),
        ({"direct": False, "q": 1.0}, only_complementary(1)),
        ({"direct": False, "q": 0.25, "correct": False}, only_complementary(0.25)),
        ({"q": 1.0}, by_hand(S, [1, 1, 1], TAU, 0) + only_complementary(1)),
    ):
        method = crcl(temperature=TAU, preset=preset, **how)
        method.prepare(run)  # type: ignore[arg-type]
        assert step(method, run) == pytest.approx(expected, rel=1e-4), how
    still = crcl(temperature=TAU, preset=preset, freeze=0, correct=False)
    still.prepare(run)  # type: ignore[arg-type]
    for run.epoch in range(3):
        still.begin_epoch(run)  # type: ignore[arg-type]
        assert step(still, run) == pytest.approx(by_hand(S, [1, 1, 1], TAU, 5), rel=1e-4)
    assert (still.labels == 1).all()


def test_one_pair_alone_is_skipped() -> None:
    method, run = crcl(), FakeRun()
    method.prepare(run)  # type: ignore[arg-type]
    one = {"all": Batch(rows=torch.tensor([1]), keys=["a"])}
    assert method.loss(one, run).loss is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("run", "how", "tau"),
    [
        (FakeRun(), {}, 0.05),
        (FakeRun(scale=14.3), {}, 0.05),
        (FakeRun(scale=100.0, from_scratch=False), {}, 0.01),
        (FakeRun(scale=100.0, from_scratch=False), {"temperature": 0.2}, 0.2),
    ],
)
def test_temperature_is_the_models_own_only_where_it_was_pretrained(
    run: FakeRun, how: Mapping[str, Any], tau: float
) -> None:
    method = crcl(**how)
    method.prepare(run)  # type: ignore[arg-type]
    assert step(method, run) == pytest.approx(by_hand(S, [1, 1, 1], tau, 5), rel=1e-4)


@pytest.mark.parametrize(
    ("run", "how", "relative"),
    [
        (FakeRun(), {}, False),
        (FakeRun(scale=5.0, from_scratch=False), {}, True),
        (FakeRun(scale=5.0, from_scratch=False), {"label": "probability"}, False),
        (FakeRun(), {"label": "relative"}, True),
    ],
)
def test_labels_of_a_pretrained_target_are_relative_to_the_strongest_candidate(
    run: FakeRun, how: Mapping[str, Any], relative: bool
) -> None:
    """Of S: pair 2 has .5 beside .6 in its row and is the best of its column; the others are best both ways."""
    method = crcl(temperature=0.2, **how)
    method.prepare(run)  # type: ignore[arg-type]
    step(method, run)
    expected = [1, (math.exp(-0.1 / 0.2) + 1) / 2, 1] if relative else p_hat(tau=0.2)
    np.testing.assert_allclose(method.probabilities, expected, rtol=1e-5)


def test_pieces_fit_any_number_of_epochs() -> None:
    for wanted in range(1, 60):
        lengths = split_epochs(wanted, 2)
        assert sum(lengths) == wanted == crcl(wanted).epochs(wanted)
        assert all(length > 2 for length in lengths[:-1])
        assert sum(lengths[:-1]) <= wanted / 2
    assert crcl(pieces=[5, 5, 5, 30]).epochs(3) == 45


@pytest.mark.parametrize(
    ("how", "setting", "value"),
    [
        ({"method": {"name": "crcl"}, "task": {"name": "classification"}}, "task.name", "classification"),
        ({"method": {"name": "crcl", "loss": "triplet"}}, "method.loss", "triplet"),
    ],
)
def test_settings_that_cannot_work(how: dict[str, Any], setting: str, value: str) -> None:
    with refused(setting, value):
        build_method(TrainConfig.parse(how))
    with refused("method.pieces", (0, 3)):
        crcl(pieces=[0, 3])
    with refused("method.momentum", 1):
        build_method(TrainConfig.parse({"method": {"name": "crcl", "momentum": 1}}))


# --- whole runs --------------------------------------------------------------------------------------------------------


def config(scored: Path, out: Path, **changes: Any) -> dict[str, Any]:
    how = {"name": "crcl", "pieces": [2, 2], "freeze": 1, "temperature": 0.3}
    plain = {"loop__evaluate_every": 0, "optimizer": {"lr": 1e-3}}
    return settings(scored, out, "crcl", **{"method": how, **plain, **changes})


def test_a_run_in_pieces_resumes_to_the_same_labels(scored: Path, tmp_path: Path) -> None:
    """Two pieces of two epochs of five batches; stopped in the middle of the second piece's frozen epoch."""
    whole = train(config(scored, tmp_path), quiet=True)
    assert (whole.epochs, whole.steps) == (4, 20)
    part = train(config(scored, tmp_path), settings=["loop.max_steps=12"], quiet=True)
    done = train(resume=part.folder, settings=["loop.max_steps=null"], quiet=True)
    assert curve(done.folder) == curve(whole.folder)
    assert same_weights(done.folder / "last.safetensors", whole.folder / "last.safetensors")
    label = whole.sample_columns["crcl_label"]
    np.testing.assert_array_equal(done.sample_columns["crcl_label"], label)
    assert label.shape == (160,)
    assert len(np.unique(label)) > 100
    assert ((label > 0) & (label <= 1)).all()
    rates = [rate for _, _, rate, _ in curve(whole.folder)]
    assert rates[:10] == pytest.approx(rates[10:]), "the learning rate begins again with the piece"


def test_a_piece_begins_with_new_weights_and_an_empty_optimiser(scored: Path, tmp_path: Path) -> None:
    """With labels that stay 1, the second piece begins alike whatever the first one did."""
    how = {"name": "crcl", "pieces": [1, 1], "freeze": 1, "temperature": 0.3}
    one = train(config(scored, tmp_path, method=how), settings=["loop.max_steps=7"], quiet=True)
    other = train(
        config(scored, tmp_path, method=how, optimizer={"lr": 1e-3, "weight_decay": 0.0}),
        settings=["loop.max_steps=7"],
        quiet=True,
    )
    first, second = (curve(run.folder, "loss") for run in (one, other))
    assert first[4] != second[4], "the first pieces went apart"
    assert first[5] == second[5], "and the second ones begin alike"
    moments = read_checkpoint(one.folder / "state.safetensors").group("optimizer")
    counts = {float(value) for name, value in moments.items() if name.endswith(".step")}
    assert counts == {2.0}, "updates that the optimiser knows of, of seven"
