"""Losses against loops over single numbers, weights against hand-worked sums, gradients against finite differences."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.trainers.losses import WEIGHT_MODES, contrastive, cross_entropy, hinges, info_nce, triplet, weighted

S = [[0.9, 0.1, 0.3], [0.2, 0.5, 0.6], [0.0, 0.4, 0.7]]


def similarity(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(S, dtype=dtype, requires_grad=True)


def log_softmax_at(row: list[float], place: int) -> float:
    return row[place] - math.log(sum(math.exp(value) for value in row))


# --- InfoNCE ---------------------------------------------------------------------------------------------------------


def test_info_nce_is_the_mean_of_both_directions() -> None:
    tau = 0.1
    expected = [
        -(log_softmax_at([S[i][j] / tau for j in range(3)], i) + log_softmax_at([S[j][i] / tau for j in range(3)], i))
        / 2
        for i in range(3)
    ]
    np.testing.assert_allclose(info_nce(similarity(), tau).detach(), expected, rtol=1e-12)


def test_info_nce_without_the_same_picture_among_the_negatives() -> None:
    same = torch.tensor([[True, False, True], [False, True, False], [True, False, True]])
    expected = -(log_softmax_at([0.9, 0.1], 0) + log_softmax_at([0.9, 0.2], 0)) / 2
    assert float(info_nce(similarity(), 1.0, same)[0].detach()) == pytest.approx(expected, rel=1e-12)


def test_info_nce_with_some_samples_out_of_the_negatives() -> None:
    keep = torch.tensor([True, True, False])
    found = info_nce(similarity(), 1.0, negatives=keep).detach()
    assert float(found[0]) == pytest.approx(-(log_softmax_at([0.9, 0.1], 0) + log_softmax_at([0.9, 0.2], 0)) / 2)
    own = -(log_softmax_at(S[2], 2) + log_softmax_at([S[j][2] for j in range(3)], 2)) / 2
    assert float(found[2]) == pytest.approx(own), "its own loss still has all the others"


def test_a_batch_of_one_has_nothing_to_learn() -> None:
    one = torch.tensor([[0.3]])
    assert info_nce(one, 0.1).tolist() == [0.0]
    assert triplet(one, 0.2).tolist() == [0.0]
    assert contrastive(one, torch.tensor([0]), 0.1).tolist() == [0.0]


# --- hinges ----------------------------------------------------------------------------------------------------------


def looped(matrix: list[list[float]], margins: list[float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """METHODS 1.7, one entry after another."""
    n = len(matrix)
    images, texts = np.zeros((n, n)), np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            if i != j:
                images[i, j] = max(0.0, margins[i] + matrix[i][j] - matrix[i][i])
                texts[i, j] = max(0.0, margins[j] + matrix[i][j] - matrix[j][j])
    return images, texts


def test_each_direction_has_the_margin_of_the_one_that_asks() -> None:
    margins = [0.2, 0.05, 0.5]
    images, texts = looped(S, margins)
    found = hinges(similarity(), torch.tensor(margins, dtype=torch.float64))
    np.testing.assert_allclose(found[0].detach(), images, atol=1e-12)
    np.testing.assert_allclose(found[1].detach(), texts, atol=1e-12)
    assert images[1, 2] == pytest.approx(0.15), "row 1 with margin .05, not column 2 with .5"
    assert texts[1, 2] == pytest.approx(0.4)


def test_means_divide_by_the_batch_and_hardest_takes_one() -> None:
    images, texts = looped(S, [0.2] * 3)
    np.testing.assert_allclose(triplet(similarity(), 0.2).detach(), images.sum(1) / 3 + texts.sum(0) / 3, atol=1e-12)
    np.testing.assert_allclose(
        triplet(similarity(), 0.2, hardest=True).detach(), images.max(1) + texts.max(0), atol=1e-12
    )


def test_the_same_picture_is_no_negative() -> None:
    same = torch.eye(3, dtype=torch.bool)
    same[1, 2] = same[2, 1] = True
    images, texts = hinges(similarity(), 0.2, same)
    assert float(images[1, 2]) == float(texts[1, 2]) == 0
    assert float(images[2, 1]) == float(texts[2, 1]) == 0
    assert float(images[1, 0].detach()) == max(0.0, 0.2 + 0.2 - 0.5)
    without = hinges(similarity(), 0.2, negatives=torch.tensor([True, True, False]))
    assert float(without[0][1, 2]) == 0, "text 2 is no negative for image 1"
    assert float(without[1][2, 1]) == 0, "image 2 is no negative for text 1"
    assert float(without[0][2, 1]) == max(0.0, 0.2 + 0.4 - 0.7)


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
    assert torch.autograd.gradcheck(lambda s, t: info_nce(s, t), (similarity(), tau))
    assert torch.autograd.gradcheck(lambda s: triplet(s, 0.25), (similarity(),))
    assert torch.autograd.gradcheck(lambda s: triplet(s, 0.25, hardest=True), (similarity(),))
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
    ("how", "words"),
    [
        ({"mode": "mean"}, "mode 'mean' is unknown; use one of mean1, raw"),
        ({}, "mean_weight=None: mode mean1 divides by the mean weight"),
        ({"mean_weight": 0.0}, "mean_weight=0.0"),
        ({"weight": torch.ones(1)}, "weight of shape (1,) for a loss of shape (4,)"),
    ],
)
def test_mistakes_are_answered(how: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        weighted(LOSS, **{"weight": WEIGHT, **how})  # type: ignore[arg-type]
    assert words in str(error.value)
