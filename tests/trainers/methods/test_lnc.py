"""LNC by its equations: hand-worked values, loops, gradients, the swap of halves, and whole runs."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from noisegate import train
from noisegate.pipeline.methods import gmm_split
from noisegate.pipeline.methods.lnc import predict_match
from noisegate.trainers.config import TrainConfig, build_method
from noisegate.trainers.losses import info_nce, triplet
from noisegate.trainers.methods.co_teaching import PartnerView, clean_rows, standardise
from noisegate.trainers.methods.lnc import abandon_noisy, momentum_loss, rectify, soft_margin, update_gamma
from tests.errors import refused
from tests.trainers.methods.two_networks import TwoNetworks, everything, noisy_run, prepared, units
from tests.trainers.runs import curve, same_weights, settings
from tests.trainers.small_targets import batch as rows_from

NAN = float("nan")


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# --- Eq. 11 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "how", "margin"),
    [
        (0.5, {"recast": "linear"}, 0.1),
        (0.5, {}, 0.0480506147),
        (0.25, {}, 0.0172950980),
        (0.75, {}, 0.1027425167),
        (0.5, {"base": 2.0}, 0.0828427),
        (0.5, {"base": 5.0}, 0.0618034),
        (0.5, {"base": 20.0}, 0.0365488),
        (0.5, {"base": 100.0}, 0.0181818),
        (0.3, {"base": 1.0}, 0.06),
        (0.5, {"recast": "sine"}, 0.1),
        (0.25, {"recast": "sine"}, 0.0292893),
        (0.7, {"recast": "sigmoid", "boundary": 0.6}, 0.2 / (1 + math.exp(-20 * 0.1))),
    ],
)
def test_g6_margins(label: float, how: dict[str, Any], margin: float) -> None:
    assert float(soft_margin(vector(label), **how)) == pytest.approx(margin, abs=1e-7)


@pytest.mark.parametrize("recast", ["linear", "exponential", "sine"])
def test_margins_go_from_nothing_to_all(recast: str) -> None:
    assert soft_margin(vector(-0.1, 0.0, 1.0, 1.2), 0.3, recast).tolist() == pytest.approx([0, 0, 0.3, 0.3])


@pytest.mark.parametrize("boundary", [0.05, 0.3, 0.4, 0.9])
def test_the_sigmoid_never_turns_round(boundary: float) -> None:
    margins = soft_margin(torch.linspace(0, 1, 20, dtype=torch.float64), recast="sigmoid", boundary=boundary)
    assert (margins.diff() > 0).all()


def test_unknown_recasts_are_named() -> None:
    with refused("recast", "cubic"):
        soft_margin(vector(0.5), recast="cubic")


# --- Eq. 4-6 --------------------------------------------------------------------------------------------------------------


def test_g9_momentum_recursion() -> None:
    gamma = torch.ones(2, dtype=torch.float64)
    for step in range(1, 12):
        gamma = update_gamma(gamma, vector(0.0, 0.25), 0.8)
        assert gamma.tolist() == pytest.approx([0.8**step, 0.25 + 0.75 * 0.8**step])
    assert gamma[0] < 0.1, "0.8^11 = 0.0859 is the first below .1"


def test_momentum_loss_and_its_gradient() -> None:
    prediction = vector(0.5, 1.0).requires_grad_()
    gamma = vector(1.0, 0.8).requires_grad_()
    loss = momentum_loss(prediction, gamma).mean()
    assert loss.item() == pytest.approx((0.25 + 0.04) / 2)
    loss.backward()
    assert prediction.grad is not None and prediction.grad.tolist() == pytest.approx([-0.5, 0.2])
    assert gamma.grad is None
    assert torch.autograd.gradcheck(lambda p: momentum_loss(p, gamma), vector(0.3, 0.9).requires_grad_())


def test_warm_up_loss_is_eq_6_and_moves_gamma() -> None:
    run = noisy_run(8, 2)
    lnc = prepared(run, name="lnc", momentum=0.75, momentum_weight=2.0)
    step = lnc.loss({"a": everything(run), "b": everything(run)}, run)
    expected = 0.0
    for network in (0, 1):
        s = run.images[network] @ run.texts[network].T
        p = predict_match(s)
        expected += float(triplet(s, 0.2).mean() + 2.0 * (p - 1).square().mean())
        np.testing.assert_allclose(lnc.gamma[network], 0.75 + 0.25 * p.numpy(), rtol=1e-6)
        np.testing.assert_allclose(lnc.prediction[network], p.numpy(), rtol=1e-6)
        np.testing.assert_allclose(lnc.division[network], standardise(triplet(s, 0.2)).numpy(), rtol=1e-4, atol=1e-6)
    assert float(step.loss) == pytest.approx(expected, rel=1e-6)
    plain = prepared(run, name="lnc", momentum_weight=0.0)
    plain.loss({"a": everything(run)}, run)
    assert (plain.gamma == 1).all()


# --- Eq. 7 ----------------------------------------------------------------------------------------------------------------


def test_abandon_takes_half_of_what_both_call_noisy() -> None:
    confidence = np.array([[0.1] * 7 + [0.9, 0.2, NAN], [0.2] * 7 + [0.1, 0.5, NAN]], np.float32)
    dropped = abandon_noisy(confidence, 0.5, 0.5, np.random.default_rng(0))
    assert dropped.sum() == 3, "floor(7 / 2)"
    assert not dropped[7:].any()
    again = [abandon_noisy(confidence, 0.5, 0.5, np.random.default_rng(i)) for i in range(40)]
    assert np.logical_or.reduce(again)[:7].all(), "any of them, by chance"
    assert abandon_noisy(confidence, 0.5, 0.0, np.random.default_rng(0)).sum() == 0


def test_abandon_leaves_enough_for_a_batch() -> None:
    dropped = abandon_noisy(np.zeros((2, 6), np.float32), 0.5, 1.0, np.random.default_rng(0))
    assert dropped.sum() == 4


def test_warm_up_epochs_leave_the_abandoned_out() -> None:
    run = noisy_run()
    lnc = prepared(run, name="lnc", warmup=3)
    lnc.begin_epoch(run)
    assert {name: stream.rows for name, stream in lnc.streams(run).items()} == {"a": None, "b": None}
    assert [stream.order for stream in lnc.streams(run).values()] == [0, 1], "other batches for each network"
    lnc.loss({"a": everything(run), "b": everything(run)}, run)
    run.epoch = 1
    lnc.begin_epoch(run)
    kept = lnc.streams(run)["a"].rows
    assert kept is not None
    both = (lnc.confidence < 0.5).all(axis=0)
    assert both.sum() == 6, "the six wrong ones"
    assert (~kept).sum() == 3 and both[~kept].all()
    assert (lnc.streams(run)["b"].rows == kept).all()
    run.epoch = 3
    lnc.begin_epoch(run)
    assert lnc.streams(run)["a"].rows is None, "training sees them all again"


# --- Eq. 3 and the swap ---------------------------------------------------------------------------------------------------


def test_levelled_losses_compare_across_batches() -> None:
    early, late = torch.tensor([2.0, 4.0, 6.0]), torch.tensor([0.2, 0.4, 0.6])
    torch.testing.assert_close(standardise(early), standardise(late))
    assert standardise(torch.ones(3)).tolist() == [0.0] * 3


def test_clean_rows_at_the_threshold() -> None:
    confidence = np.array([0.5, 0.4, 0.9, NAN], np.float32)
    assert clean_rows(confidence).tolist() == [True, False, True, True]
    assert clean_rows(confidence, inclusive=False).tolist() == [False, False, True, True]
    surely = np.linspace(0.6, 1, 100, dtype=np.float32)
    assert clean_rows(surely).all()
    assert clean_rows(surely, one_percent=True).sum() == 99


@pytest.fixture
def swapped() -> tuple[Any, TwoNetworks]:
    """A method in its training phase: A's losses call the first half noisy, B's the second."""
    run = noisy_run(12, 0)
    lnc = prepared(run, name="lnc", warmup=1, noisy_from=0)
    run.epoch = 1
    lnc.division[0] = [1.0 + 0.01 * i if i < 6 else 0.01 * i for i in range(12)]
    lnc.division[1] = [0.01 * i if i < 6 else 1.0 + 0.01 * i for i in range(12)]
    lnc.prediction[0], lnc.prediction[1] = 0.25, 0.75
    lnc.begin_epoch(run)
    return lnc, run


def test_each_network_learns_by_the_others_halves(swapped: tuple[Any, TwoNetworks]) -> None:
    lnc, run = swapped
    assert lnc.clean[0].tolist() == [False] * 6 + [True] * 6, "by A's losses"
    s = run.images[0] @ run.texts[0].T
    p = predict_match(s)
    w = torch.from_numpy(gmm_split(lnc.division[1].copy()).clean_probability).float()
    clean = torch.arange(12) < 6  # A learns by B's
    assert (w[:6] > 0.5).all() and (w[6:] < 0.5).all()
    label = torch.where(clean, w + (1 - w) * p, (p + 0.75) / 2)
    expected = triplet(s, soft_margin(label), hardest=True).mean()
    step = lnc.loss({"a": everything(run)}, run)
    assert float(step.loss) == pytest.approx(float(expected), rel=1e-5)
    assert float(step.logs["a/clean_share"]) == 0.5
    assert run.forwards == [0], "one pass of one network"


def test_streams_of_halves_are_the_partners(swapped: tuple[Any, TwoNetworks]) -> None:
    _, run = swapped
    lnc = prepared(run, name="lnc", warmup=1, procedure="paper", noisy_from=0)
    lnc.begin_epoch(run)
    assert run.passes == 1, "one pass over the data for both networks"
    for network in (0, 1):
        s = run.images[network] @ run.texts[network].T
        np.testing.assert_allclose(lnc.division[network], triplet(s, 0.2).numpy(), rtol=1e-5, atol=1e-7)
    lnc.clean[0], lnc.clean[1] = np.arange(12) < 4, np.arange(12) < 9
    streams = lnc.streams(run)
    assert list(streams) == ["a_clean", "a_noisy", "b_clean", "b_noisy"]
    assert {name: int(stream.rows.sum()) for name, stream in streams.items()} == {
        "a_clean": 9, "a_noisy": 3, "b_clean": 4, "b_noisy": 8
    }  # fmt: skip


def test_the_papers_procedure_asks_both_networks_about_noisy_pairs() -> None:
    run = noisy_run(12, 0)
    lnc = prepared(run, name="lnc", warmup=1, procedure="paper", noisy_from=0)
    run.epoch = 1
    lnc.clean[:] = False
    step = lnc.loss({"a_noisy": everything(run)}, run)
    predictions = [predict_match(run.images[k] @ run.texts[k].T) for k in (0, 1)]
    s = run.images[0] @ run.texts[0].T
    expected = triplet(s, soft_margin(sum(predictions) / 2), hardest=True).mean()
    assert float(step.loss) == pytest.approx(float(expected), rel=1e-5)
    assert (run.forwards, run.observed) == ([0], [0, 1]), "labels come from passes of their own, in evaluation mode"
    lnc.clean[:] = True
    lnc.loss({"b_clean": everything(run)}, run)
    assert (run.forwards, run.observed) == ([0, 1], [0, 1, 1]), "the other is not asked about clean ones"


def test_labels_are_predicted_in_evaluation_mode() -> None:
    """Networks that see something else in training: label and margin follow what they see in evaluation mode."""
    run = noisy_run(12, 0)
    shift = units(run.texts.roll(1, dims=1) + 0.5 * run.texts)
    run.observed_texts, run.texts = run.texts, shift
    lnc = prepared(run, name="lnc", warmup=1, procedure="paper", noisy_from=0)
    run.epoch = 1
    lnc.clean[:], lnc.confidence[:] = True, 0.25
    step = lnc.loss({"a_clean": everything(run)}, run)
    label = 0.25 + 0.75 * predict_match(run.images[0] @ run.observed_texts[0].T)
    expected = triplet(run.images[0] @ shift[0].T, soft_margin(label), hardest=True).mean()
    assert float(step.loss) == pytest.approx(float(expected), rel=1e-5)


def test_the_boundary_of_the_sigmoid_lies_between_the_halves_of_the_data() -> None:
    """Four clean rows with P = 1 and w = 1, four noisy ones with P = .2: div = .6, though a batch is all of one kind."""
    run = noisy_run(8, 0)
    lnc = prepared(run, name="lnc", warmup=1, recast="sigmoid", noisy_from=0)
    run.epoch = 1
    lnc.division[:] = np.array([0.0, 0.01, 0.02, 0.03, 1.0, 1.01, 1.02, 1.03])
    lnc.prediction[:] = np.array([1.0] * 4 + [0.2] * 4)
    lnc.begin_epoch(run)
    assert lnc.clean.tolist() == [[True] * 4 + [False] * 4] * 2
    assert lnc.boundary.tolist() == pytest.approx([0.6, 0.6], abs=1e-3)
    shares = soft_margin(vector(1.0, 0.2), 1.0, "sigmoid", boundary=0.6)
    assert shares.tolist() == pytest.approx([1 / (1 + math.exp(-8)), 1 / (1 + math.exp(8))])
    clean = lnc.loss({"a": rows_from(0, 4)}, run)
    s, w = (run.images[0] @ run.texts[0].T)[:4, :4], torch.from_numpy(lnc.confidence[1, :4])
    label = w + (1 - w) * predict_match(s)
    margin = soft_margin(label, 0.2, "sigmoid", boundary=float(lnc.boundary[0]))
    assert float(clean.loss) == pytest.approx(float(triplet(s, margin, hardest=True).mean()), abs=1e-6)


@pytest.mark.parametrize("name", ["lnc", "ncr", "gsl"])
@pytest.mark.parametrize(
    ("warmup", "epochs", "share", "first"), [(10, 30, 0.5, 20), (3, 43, 0.5, 23), (1, 4, 0.5, 2), (2, 4, 1.0, 4)]
)
def test_the_noisy_half_enters_after_half_of_the_epochs_that_follow_the_warm_up(
    name: str, warmup: int, epochs: int, share: float, first: int
) -> None:
    """COCO: 10 epochs of warm-up, 20 of training, the noisy half from epoch 20 on; an odd number is rounded down."""
    run = noisy_run()
    method = prepared(run, name=name, warmup=warmup, noisy_from=share, procedure="paper", epochs=epochs)
    entered = []
    for run.epoch in range(epochs):
        streams = method.streams(run)
        entered.append("a_noisy" in streams)
        assert ("a_clean" in streams) == (run.epoch >= warmup)
    assert entered == [epoch >= first for epoch in range(epochs)]


def test_an_epoch_with_nothing_clean_teaches_nothing_and_goes_on() -> None:
    run = noisy_run()
    lnc = prepared(run, name="lnc", warmup=1, procedure="paper")
    run.epoch = 1
    lnc.clean[:] = False
    streams = lnc.streams(run)
    assert [name for name, stream in streams.items() if stream.rows.any()] == ["a_noisy", "b_noisy"]
    assert float(lnc.loss({"a_noisy": everything(run)}, run).loss) == 0


def test_the_lean_procedure_never_passes_over_the_data() -> None:
    run = noisy_run()
    lnc = prepared(run, name="lnc", warmup=1)
    for epoch in range(4):
        run.epoch = epoch
        lnc.begin_epoch(run)
        lnc.loss({"a": everything(run), "b": everything(run)}, run)
    assert run.passes == 0
    assert run.forwards == [0, 1] * 4
    assert (lnc.clean[:, 6:]).all() and not lnc.clean[:, :6].any(), "the wrong captions are found"


# --- Eq. 8, 10 ------------------------------------------------------------------------------------------------------------


def test_rectified_by_hand() -> None:
    halves = PartnerView(
        torch.tensor([True, True, False, False]), vector(0.8, 1.0, 0.3, 0.0), vector(0.1, 0.1, 0.4, NAN)
    )
    assert rectify(halves, vector(0.5, 0.2, 0.6, 0.7)).tolist() == pytest.approx([0.9, 1.0, 0.5, 0.7])


@pytest.mark.parametrize("loss", ["triplet", "info_nce"])
def test_other_losses_take_the_same_labels(swapped: tuple[Any, TwoNetworks], loss: str) -> None:
    """All negatives alike with the soft margin, or InfoNCE weighed by the label; in the warm-up as given."""
    before, run = swapped
    lnc = prepared(run, name="lnc", warmup=1, loss=loss, momentum_weight=0.0, noisy_from=0)
    lnc.load_state_dict(before.state_dict())
    s = run.images[0] @ run.texts[0].T
    p = predict_match(s)
    w = torch.from_numpy(before.confidence[1])
    label = torch.where(w >= 0.5, w + (1 - w) * p, (p + 0.75) / 2)
    expected = triplet(s, soft_margin(label)) if loss == "triplet" else label * info_nce(s, 0.05)
    assert lnc.loss({"a": everything(run)}, run).loss.item() == pytest.approx(float(expected.mean()), rel=1e-5)
    run.epoch = 0
    given = triplet(s, 0.2) if loss == "triplet" else info_nce(s, 0.05)
    assert lnc.loss({"a": everything(run)}, run).loss.item() == pytest.approx(float(given.mean()), rel=1e-5)
    np.testing.assert_allclose(lnc.division[0], standardise(triplet(s, 0.2)), rtol=1e-4, atol=1e-5)


def test_each_pair_has_its_own_margin_in_its_row_and_its_column() -> None:
    """Hardest negatives: rows .3, .6, .4, .5; columns .5, .4, .6, .3 beside the diagonal .9, .5, .7, .4."""
    s = torch.tensor([[0.9, 0.1, 0.3, 0.2], [0.2, 0.5, 0.6, 0.1], [0.0, 0.4, 0.7, 0.3], [0.5, 0.1, 0.2, 0.4]])
    margin = torch.tensor([0.8, 0.1, 0.0, 0.2])
    expected = [0.2 + 0.4, 0.2 + 0.0, 0.0 + 0.0, 0.3 + 0.1]
    assert triplet(s, margin, hardest=True).tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("half", [True, False])
def test_one_half_alone_is_enough(half: bool) -> None:
    run = noisy_run(10, 3)
    lnc = prepared(run, name="lnc", warmup=1, recast="sigmoid")
    run.epoch = 1
    lnc.clean[:] = half
    lnc.confidence[:] = 1.0 if half else 0.0
    step = lnc.loss({"a": everything(run), "b": everything(run)}, run)
    assert math.isfinite(float(step.loss))
    assert float(step.logs["a/clean_share"]) == half


def test_a_batch_of_one_is_skipped() -> None:
    run = noisy_run()
    lnc = prepared(run, name="lnc")
    assert lnc.loss({"a": rows_from(0, 1), "b": rows_from(3, 1)}, run).loss is None
    assert np.isnan(lnc.division).all()
    step = lnc.loss({"a": rows_from(0, 1), "b": rows_from(0, 4)}, run)
    assert step.loss is not None and np.isnan(lnc.division[0]).all()


def test_losses_that_do_not_differ_leave_all_clean_and_say_so() -> None:
    run = TwoNetworks(units(torch.ones(2, 6, 3)), units(torch.ones(2, 6, 3)))
    lnc = prepared(run, name="lnc", warmup=1)
    lnc.loss({"a": everything(run), "b": everything(run)}, run)
    run.epoch = 1
    lnc.begin_epoch(run)
    assert lnc.clean.all() and (lnc.confidence == 1).all()
    assert run.said == [f"epoch 2: network {n} cannot tell clean from noisy (none: losses do not differ)" for n in "ab"]
    step = lnc.loss({"a": everything(run)}, run)
    assert math.isfinite(float(step.loss))


def test_rows_never_seen_keep_their_given_label() -> None:
    run = noisy_run(10, 3)
    lnc = prepared(run, name="lnc", warmup=1)
    lnc.loss({"a": rows_from(0, 8), "b": rows_from(0, 8)}, run)
    run.epoch = 1
    lnc.begin_epoch(run)
    assert lnc.clean[:, 8:].all() and np.isnan(lnc.confidence[:, 8:]).all()
    step = lnc.loss({"a": rows_from(6, 4)}, run)
    s = (run.images[0] @ run.texts[0].T)[6:, 6:]
    assert math.isfinite(float(step.loss)) and s.shape == (4, 4)
    columns = lnc.sample_columns()
    assert np.isnan(columns["lnc_prediction"][9]) == np.isnan(lnc.prediction[:, 9]).all()


def test_the_same_picture_several_times_is_masked() -> None:
    generator = torch.Generator().manual_seed(2)
    pictures = [0, 0, 0, 1, 1, 2]
    images = units(torch.randn(2, 3, 5, generator=generator))[:, pictures]
    texts = units(images + 0.1 * torch.randn(2, 6, 5, generator=generator))
    run = TwoNetworks(images, texts, pictures)
    step = prepared(run, name="lnc", momentum_weight=0.0).loss({"a": everything(run)}, run)
    s, same = images[0] @ texts[0].T, torch.tensor(pictures)[:, None] == torch.tensor(pictures)
    assert float(step.loss) == pytest.approx(float(triplet(s, 0.2, same=same).mean()))
    unmasked = prepared(run, name="lnc", momentum_weight=0.0, mask_same=False).loss({"a": everything(run)}, run)
    assert float(unmasked.loss) > float(step.loss) + 0.05


def test_what_was_learnt_is_told_by_row() -> None:
    run = noisy_run()
    lnc = prepared(run, name="lnc", warmup=1)
    lnc.loss({"a": everything(run), "b": everything(run)}, run)
    columns = lnc.sample_columns()
    assert set(columns) == {"lnc_confidence", "lnc_prediction", "lnc_label"}
    np.testing.assert_allclose(columns["lnc_prediction"], lnc.prediction.mean(axis=0), rtol=1e-6)
    assert (columns["lnc_confidence"][:6] < 0.5).all() and (columns["lnc_confidence"][6:] > 0.5).all()
    assert columns["lnc_label"][6:].min() > columns["lnc_label"][:6].max()


# --- settings and whole runs ----------------------------------------------------------------------------------------------


# --- ablations (Tables 4, 8 and 11) ---------------------------------------------------------------------------------------


def test_without_a_warm_up_the_first_epoch_divides_by_the_papers_pass() -> None:
    run = noisy_run(12, 4)
    lnc = prepared(run, name="lnc", warmup=0, procedure="paper")
    lnc.begin_epoch(run)
    assert run.passes == 1 and set(lnc.streams(run)) == {"a_clean", "b_clean"}
    np.testing.assert_allclose(lnc.confidence[0], gmm_split(lnc.division[0]).clean_probability, atol=1e-6)
    lean = prepared(run, name="lnc", warmup=0)
    lean.begin_epoch(run)
    assert lean.clean.all() and math.isfinite(lean.loss({"a": everything(run)}, run).loss.item())
    s = run.images[0] @ run.texts[0].T
    assert lean.loss({"a": everything(run)}, run).loss.item() == pytest.approx(
        float(triplet(s, 0.2, hardest=True).mean())
    )


def test_without_co_divide_all_learn_by_mean_predictions() -> None:
    run = noisy_run(8, 2)
    lnc = prepared(run, name="lnc", warmup=1, division="none")
    lnc.loss({"a": everything(run), "b": everything(run)}, run)
    run.epoch = 1
    lnc.begin_epoch(run)
    step = lnc.loss({"a": everything(run)}, run)
    similarities = [run.images[k] @ run.texts[k].T for k in (0, 1)]
    label = (predict_match(similarities[0]) + predict_match(similarities[1])) / 2
    expected = triplet(similarities[0], soft_margin(label), hardest=True).mean()
    assert step.loss.item() == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("procedure", ["lean", "paper"])
def test_without_co_rectify_the_clean_half_learns_as_given_and_the_noisy_half_never(procedure: str) -> None:
    run = noisy_run(8, 2)
    lnc = prepared(run, name="lnc", warmup=1, rectify=False, procedure=procedure)
    lnc.clean[1], run.epoch = np.arange(8) >= 2, 9
    s = run.images[0] @ run.texts[0].T
    if procedure == "lean":
        expected = triplet(s, 0.2, hardest=True)[2:].sum() / 8
        assert lnc.loss({"a": everything(run)}, run).loss.item() == pytest.approx(float(expected), rel=1e-5)
    else:
        assert set(lnc.streams(run)) == {"a_clean", "b_clean"}
    assert lnc.rectified(0, lnc.confidence, lnc.clean).tolist() == [0, 0, 1, 1, 1, 1, 1, 1]


def test_the_true_w_comes_from_the_table() -> None:
    run = noisy_run(8, 2)
    run.column = lambda name: np.array([False, None, *[True] * 6], object)  # type: ignore[attr-defined]
    lnc = prepared(run, name="lnc", warmup=1, division="table")
    run.epoch = 1
    lnc.begin_epoch(run)
    assert lnc.confidence.tolist() == [[0, 0, 1, 1, 1, 1, 1, 1]] * 2 and not lnc.clean[:, :2].any()
    assert lnc.table_columns() == ("clean",)
    with refused("data.table"):
        lnc.check(None)


def test_what_does_not_fit_is_said_in_one_line() -> None:
    with refused("task.name", "classification"):
        build_method(TrainConfig.parse({"method": {"name": "lnc"}, "task": {"name": "classification"}}))
    with refused("method.warmup", 3):
        build_method(TrainConfig.parse({"method": {"name": "lnc"}})).epochs(3)
    with refused("method.loss", "cross_entropy"):
        build_method(TrainConfig.parse({"method": {"name": "lnc", "loss": "cross_entropy"}}))
    with refused("method.rectify", False):
        build_method(TrainConfig.parse({"method": {"name": "lnc", "division": "none", "rectify": False}}))


def test_state_comes_back_whole() -> None:
    run = noisy_run()
    lnc, other = prepared(run, name="lnc", warmup=2), prepared(run, name="lnc", warmup=2)
    lnc.loss({"a": everything(run), "b": everything(run)}, run)
    run.epoch = 1
    lnc.begin_epoch(run)
    other.load_state_dict(lnc.state_dict())
    assert set(lnc.state_dict()) == {"division", "prediction", "confidence", "clean", "kept", "gamma", "boundary"}
    for name, values in lnc.state_dict().items():
        np.testing.assert_array_equal(other.state_dict()[name], values)
    assert other.kept is not lnc.kept and not lnc.kept.all()
    assert (other.streams(run)["a"].rows == lnc.streams(run)["a"].rows).all()


@pytest.mark.parametrize("procedure", ["lean", "paper"])
def test_a_run_that_stops_goes_on_as_if_it_had_not(scored: Path, tmp_path: Path, procedure: str) -> None:
    """Stopped in the second epoch, whose warm-up leaves samples out, and again in the third, which learns by halves."""
    method = {"name": "lnc", "warmup": 2, "procedure": procedure}
    config = settings(scored, tmp_path, method=method, loop__epochs=3, loop__evaluate_every=3)
    whole = train(config, quiet=True)
    assert set(whole.sample_columns) == {"lnc_confidence", "lnc_prediction", "lnc_label"}
    assert all(values.shape == (160,) for values in whole.sample_columns.values())
    part = train(config, settings=["loop.max_steps=7"], quiet=True)
    if procedure == "lean":
        train(resume=part.folder, settings=["loop.max_steps=12"], quiet=True)
    done = train(resume=part.folder, settings=["loop.max_steps=null"], quiet=True)
    assert done.steps == whole.steps
    assert curve(done.folder) == curve(whole.folder)
    for name in ("last.safetensors", "last-1.safetensors"):
        assert same_weights(done.folder / name, whole.folder / name)
    for name, values in whole.sample_columns.items():
        np.testing.assert_array_equal(done.sample_columns[name], values)
    assert done.last == whole.last and "rsum" in done.last
