"""Losses against loops over single numbers, weights against hand-worked sums, gradients against finite differences."""

import math

import numpy as np
import pytest
import torch

from noisegate.trainers.losses import WEIGHT_MODES, contrastive, cross_entropy, info_nce, triplet, weighted
from tests.errors import refused

S = [[0.9, 0.1, 0.3], [0.2, 0.5, 0.6], [0.0, 0.4, 0.7]]


def similarity(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(S, dtype=dtype, requires_grad=True)


def log_softmax_at(row: list[float], place: int) -> float:
    return row[place] - math.log(sum(math.exp(value) for value in row))


# --- classes ---------------------------------------------------------------------------------------------------------


def test_cross_entropy_with_hard_and_soft_labels() -> None:
    logits = torch.tensor([[1.0, 0.0, -1.0], [0.0, 2.0, 0.0]], dtype=torch.float64)
    hard = cross_entropy(logits, torch.tensor([0, 2]))
    np.testing.assert_allclose(hard, [-log_softmax_at([1, 0, -1], 0), -log_softmax_at([0, 2, 0], 2)], rtol=1e-12)
    soft = cross_entropy(logits, torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64))
    first = -0.25 * log_softmax_at([1, 0, -1], 0) - 0.75 * log_softmax_at([1, 0, -1], 1)
    np.testing.assert_allclose(soft, [first, float(hard[1])], rtol=1e-12)


def test_contrastive_pulls_the_class_together() -> None:
    labels = torch.tensor([4, 4, 7])
    s = similarity()
    found = contrastive(s, labels, 0.5)
    expected = -log_softmax_at([0.1 / 0.5, 0.3 / 0.5], 0)  # the image itself does not count
    assert float(found[0].detach()) == pytest.approx(expected, rel=1e-12)
    assert float(found[2].detach()) == 0, "alone in its class"
    assert contrastive(torch.tensor([[0.3]]), torch.tensor([0]), 0.1).tolist() == [0.0]
    assert not torch.autograd.grad(found[2], s)[0].any()


def test_contrastive_counts_others_of_the_class_as_far_as_they_are_trusted() -> None:
    labels = torch.tensor([4, 4, 4])
    s = similarity()
    row = [float(s[0, 1].detach()) / 0.5, float(s[0, 2].detach()) / 0.5]
    apart = [-log_softmax_at(row, 0), -log_softmax_at(row, 1)]
    found = contrastive(s, labels, 0.5, trust=torch.tensor([0.0, 0.3, 0.1], dtype=torch.float64))
    assert float(found[0].detach()) == pytest.approx(0.75 * apart[0] + 0.25 * apart[1], rel=1e-12)
    only = contrastive(s, labels, 0.5, trust=torch.tensor([0.2, 0.0, 0.1], dtype=torch.float64))
    assert float(only[0].detach()) == pytest.approx(apart[1], rel=1e-12), "the second counts for nothing"
    none = contrastive(s, labels, 0.5, trust=torch.tensor([0.2, 0.0, 0.0], dtype=torch.float64))
    assert float(none[0].detach()) == 0 and not torch.autograd.grad(none[0], s)[0].any()
    alike = contrastive(s, labels, 0.5, trust=torch.full((3,), 0.02, dtype=torch.float64))
    np.testing.assert_allclose(alike.detach(), contrastive(s, labels, 0.5).detach(), rtol=1e-12)


# --- gradients -------------------------------------------------------------------------------------------------------


def test_gradients_agree_with_finite_differences() -> None:
    tau = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, 0])
    assert torch.autograd.gradcheck(lambda s, t: contrastive(s, labels, t), (similarity(), tau))
    weight = torch.tensor([0.1, 0.0, 0.3], dtype=torch.float64)
    for mode in WEIGHT_MODES:
        assert torch.autograd.gradcheck(
            lambda s, mode=mode: weighted(cross_entropy(s, labels), weight, mode=mode, mean_weight=0.1), (similarity(),)
        )


def test_a_sample_without_weight_sends_no_gradient_through_its_loss() -> None:
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    weight = torch.tensor([0.5, 0.0, float("nan"), 1.0])
    total = weighted(cross_entropy(logits, torch.tensor([0, 1, 2, 3])), weight, mean_weight=0.5)
    assert total is not None
    (gradient,) = torch.autograd.grad(total, logits)
    assert gradient[1].tolist() == [0.0] * 5
    assert gradient[2].tolist() == [0.0] * 5, "a sample that failed has no weight"
    assert gradient[0].abs().min() > 0


@pytest.mark.parametrize("loss", [info_nce, lambda s, t, **how: triplet(s, t, **how)])
def test_without_weight_and_out_of_the_negatives_a_sample_is_not_there(loss: object) -> None:
    s = similarity()
    keep = torch.tensor([True, True, False])
    rows = loss(s, 0.5, negatives=keep)  # type: ignore[operator]
    total = weighted(rows, keep.double(), mode="raw")
    assert total is not None
    (gradient,) = torch.autograd.grad(total, s)
    assert gradient[2].tolist() == [0.0] * 3
    assert gradient[:, 2].tolist() == [0.0] * 3
    assert float(gradient[:2, :2].abs().sum()) > 0


# --- weights ---------------------------------------------------------------------------------------------------------


LOSS, WEIGHT = torch.tensor([1.0, 2.0, 4.0, 8.0]), torch.tensor([0.01, 0.0, 0.02, 0.04])  # Σ w L = .41


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("raw", 0.41 / 4),
        ("mean1", 0.41 / 4 / 0.02),
        ("max1", 0.41 / 4 / (4 / 27)),
        ("batch_sum", 0.41 / 0.07),
        # margins over their largest: .25, 0, .5, 1; x² (1 - x²): .05859375, 0, .1875, 0
        ("reference", (0.05859375 * 1 + 0.1875 * 4) / 4),
    ],
)
def test_modes_by_hand(mode: str, expected: float) -> None:
    found = weighted(LOSS, WEIGHT, mode=mode, mean_weight=0.02)
    assert found is not None
    assert float(found) == pytest.approx(expected, rel=1e-6)


def test_equal_weights_change_nothing() -> None:
    same = torch.full((4,), 0.03)
    for mode in ("mean1", "batch_sum"):
        assert float(weighted(LOSS, same, mode=mode, mean_weight=0.03) or 0) == pytest.approx(3.75)


@pytest.mark.parametrize("mode", WEIGHT_MODES)
@pytest.mark.parametrize("weight", [[0.0] * 4, [float("nan")] * 4, [-0.1] * 4])
def test_no_weight_at_all_is_none(mode: str, weight: list[float]) -> None:
    assert weighted(LOSS, torch.tensor(weight), mode=mode, mean_weight=0.02) is None


def test_half_precision_weights_meet_a_float_loss() -> None:
    found = weighted(LOSS, WEIGHT.half(), mode="batch_sum")
    assert found is not None
    assert found.dtype == torch.float32


@pytest.mark.parametrize(
    ("how", "setting", "value"),
    [
        ({"mode": "mean"}, "mode", "mean"),
        ({}, "mean_weight", None),
        ({"mean_weight": 0.0}, "mean_weight", 0.0),
        ({"weight": torch.ones(1)}, "weight", (1,)),
    ],
)
def test_mistakes_are_answered(how: dict[str, object], setting: str, value: object) -> None:
    with refused(setting, value):
        weighted(LOSS, **{"weight": WEIGHT, **how})  # type: ignore[arg-type]
