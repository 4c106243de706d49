"""InfoNCE, hinges and triplet losses against loops over single numbers, and gradients against finite differences."""

import math

import numpy as np
import pytest
import torch

from noisegate.pipeline.methods.losses import hinges, info_nce, pair_losses, triplet
from noisegate.pipeline.methods.pair_batches import same_pairs
from noisegate.pipeline.runs.rows import unit_rows
from noisegate.pipeline.system.array_types import Float64, Mask

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


def plain_losses(images: Float64, texts: Float64, scale: float, same: Mask) -> list[float]:
    """Both directions, one sum at a time."""
    found = []
    for i in range(len(images)):
        own = math.exp(scale * images[i] @ texts[i])
        others = [j for j in range(len(images)) if j != i and not same[i, j]]
        row = own + sum(math.exp(scale * images[i] @ texts[j]) for j in others)
        column = own + sum(math.exp(scale * images[j] @ texts[i]) for j in others)
        found.append(-(math.log(own / row) + math.log(own / column)) / 2)
    return found


def unit(rng: np.random.Generator, count: int) -> Float64:
    return unit_rows(rng.normal(size=(count, 5)))[0].astype(np.float64)


@pytest.mark.parametrize("seed", range(5))
def test_info_nce_is_the_plain_sum_and_repeats_are_no_negatives(seed: int) -> None:
    rng = np.random.default_rng(seed)
    images, texts = unit(rng, 7), unit(rng, 7)
    pictures, captions = rng.integers(0, 5, 7), rng.integers(0, 5, 7)
    same = same_pairs(np.arange(7), pictures, captions)
    for i in range(7):
        for j in range(7):
            assert bool(same[i, j]) == (pictures[i] == pictures[j] or captions[i] == captions[j])
    found = info_nce(torch.from_numpy(images @ texts.T), 1 / 3.0, torch.from_numpy(same))
    np.testing.assert_allclose(found, plain_losses(images, texts, 3.0, same), rtol=1e-9)


def test_losses_are_averaged_over_the_ways_to_fill_the_batches() -> None:
    rng = np.random.default_rng(1)
    images, texts = unit(rng, 11).astype(np.float32), unit(rng, 11).astype(np.float32)
    found = pair_losses(images, texts, 4.0, 8, np.arange(11), np.arange(11), batch_size=4, permutations=3)
    again, total = np.random.default_rng(8), np.zeros(11)
    for _ in range(3):
        order = again.permutation(11)
        for rows in (order[:4], order[4:]):  # 4 and 7: a rest of 3 is no batch of its own
            v, t = images[rows].astype(np.float64), texts[rows].astype(np.float64)
            total[rows] += plain_losses(v, t, 4.0, np.eye(len(rows), dtype=bool))
    np.testing.assert_allclose(found, total / 3, rtol=1e-9)


# --- hinges ----------------------------------------------------------------------------------------------------------


def looped(matrix: list[list[float]], margins: list[float]) -> tuple[Float64, Float64]:
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
    assert images[1, 2].item() == texts[1, 2].item() == 0
    assert images[2, 1].item() == texts[2, 1].item() == 0
    assert float(images[1, 0].detach()) == max(0.0, 0.2 + 0.2 - 0.5)
    without = hinges(similarity(), 0.2, negatives=torch.tensor([True, True, False]))
    assert without[0][1, 2].item() == 0, "text 2 is no negative for image 1"
    assert without[1][2, 1].item() == 0, "image 2 is no negative for text 1"
    assert without[0][2, 1].item() == max(0.0, 0.2 + 0.4 - 0.7)


def test_gradients_agree_with_finite_differences() -> None:
    tau = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s, t: info_nce(s, t), (similarity(), tau))
    assert torch.autograd.gradcheck(lambda s: triplet(s, 0.25), (similarity(),))
    assert torch.autograd.gradcheck(lambda s: triplet(s, 0.25, hardest=True), (similarity(),))
