"""LNC Eq. 9 by hand, loops and gradients; its columns against a loop over batches and pairs."""

import numpy as np
import pytest
import torch

from noisegate.pipeline.methods.lnc import lnc_columns, predict_match, predict_match_by_hinges
from noisegate.pipeline.methods.mixtures import gmm_split
from noisegate.pipeline.methods.pair_batches import permuted_batches

from .noisy_pairs import noisy_pairs, unit

S = torch.tensor([[0.9, 0.1, 0.3, 0.2], [0.2, 0.5, 0.6, 0.1], [0.0, 0.4, 0.7, 0.3], [0.5, 0.1, 0.2, 0.4]])


# --- Eq. 9 ----------------------------------------------------------------------------------------------------------------


def test_prediction_by_hand() -> None:
    """s = .9 - (.6 + .7)/8, .5 - (.9 + .6)/8, .7 - (.7 + 1.1)/8, .4 - (.8 + .6)/8 = .7375, .3125, .475, .225."""
    assert predict_match(S).tolist() == pytest.approx([1, 0.3125 / 0.7375, 0.475 / 0.7375, 0.225 / 0.7375])
    assert predict_match(S, clamp=0.4).tolist() == pytest.approx([1, 0.3125 / 0.4, 1, 0.225 / 0.4])
    assert predict_match(S, clamp=0.2).tolist() == pytest.approx([1, 1, 1, 1]), "all stand α above their negatives"


def test_the_best_tenth_sets_the_scale() -> None:
    """Of 20 pairs the three best: floor(20 / 10) + 1."""
    s = torch.diag(torch.arange(20, dtype=torch.float64) / 100)
    tau = (0.19 + 0.18 + 0.17) / 3
    expected = torch.clamp(torch.arange(20) / 100 / tau, max=1.0)
    torch.testing.assert_close(predict_match(s), expected.double())


def test_pairs_below_their_negatives_are_0_and_do_not_lower_the_scale() -> None:
    """s = .5, -.3 and ten zeros: the two best are .5 and 0, their mean .25."""
    s = torch.diag(torch.tensor([0.5, -0.3, *[0.0] * 10], dtype=torch.float64))
    assert predict_match(s).tolist() == [1.0, *[0.0] * 11]
    half = torch.diag(torch.tensor([0.5, 0.2, *[0.0] * 10], dtype=torch.float64))
    assert predict_match(half).tolist() == pytest.approx([1.0, 0.2 / 0.35, *[0.0] * 10])


def test_nothing_that_beats_its_negatives_is_predicted_as_nothing() -> None:
    assert predict_match(-torch.eye(5)).tolist() == [0.0] * 5
    assert predict_match_by_hinges(-torch.eye(5)).tolist() == [0.0] * 5
    assert predict_match(torch.ones(2, 2) * 0.3).isfinite().all()


def test_equal_pictures_are_no_negatives() -> None:
    """Rows 0 and 1 show one picture: what remains of their rows and columns is 0, over b - 1 = 3 others."""
    s = torch.tensor([[0.9, 0.8, 0.0, 0.3], [0.8, 0.9, 0.0, 0.0], [0.0, 0.0, 0.5, 0.0], [0.3, 0.0, 0.0, 0.5]])
    same = torch.eye(4, dtype=torch.bool)
    same[0, 1] = same[1, 0] = True
    stands = [0.9 - (0.3 / 3 + 0.3 / 3) / 2, 0.9, 0.5, 0.5 - (0.3 / 4 + 0.3 / 4) / 2]
    assert predict_match(s, same).tolist() == pytest.approx([x / 0.9 for x in stands])


def test_predictions_pass_gradients_inside_the_clip() -> None:
    s = (S + 0.01 * torch.arange(16).reshape(4, 4)).double()
    stands = s.diagonal() - (s.sum(0) + s.sum(1) - 2 * s.diagonal()) / 8
    tau = stands.max()
    s.requires_grad_()
    predict_match(s)[1:].sum().backward()
    expected = torch.zeros(4, 4, dtype=torch.float64)
    for i in (1, 2, 3):  # the first pair alone is τ, a constant
        expected[i, i] += 1 / tau
        for j in {0, 1, 2, 3} - {i}:
            expected[i, j] -= 1 / tau / 8
            expected[j, i] -= 1 / tau / 8
    torch.testing.assert_close(s.grad, expected)
    s.grad = None
    predict_match(s, clamp=0.2).sum().backward()
    assert not s.grad.any(), "all are beyond the clip"


def loops_by_hinges(s: torch.Tensor, margin: float) -> list[float]:
    """Predictions of a batch, pair by pair."""
    size = len(s)
    stands = []
    for i in range(size):
        row = sum(max(0.0, margin + s[i, j] - s[i, i]) for j in range(size) if j != i) / size
        column = sum(max(0.0, margin + s[j, i] - s[i, i]) for j in range(size) if j != i) / size
        stands.append(min(max(float(margin - (row + column) / 2), 0.0), margin))
    best = sorted(stands)[-(size // 10 + 1) :]
    return [min(1.0, x * len(best) / sum(best)) for x in stands]


def test_the_published_prediction_by_loops() -> None:
    generator = torch.Generator().manual_seed(1)
    s = torch.rand(23, 23, generator=generator, dtype=torch.float64) * 0.6
    assert predict_match_by_hinges(s, 0.2).tolist() == pytest.approx(loops_by_hinges(s, 0.2))


def test_it_is_eq_9_up_to_alpha_over_b_where_no_hinge_is_cut_off() -> None:
    """α - ½ (mean hinges) = s + α / b - S_ii / b for hinges that are all positive; here S_ii is small."""
    generator = torch.Generator().manual_seed(1)
    s = 0.02 * torch.rand(64, 64, generator=generator, dtype=torch.float64)
    s += 0.05 * torch.diag(torch.rand(64, generator=generator, dtype=torch.float64))
    assert (predict_match_by_hinges(s, 0.2) - predict_match(s, clamp=0.2)).abs().max() < 0.2
    assert np.corrcoef(predict_match_by_hinges(s, 0.2), predict_match(s, clamp=0.2))[0, 1] > 0.99


# --- columns --------------------------------------------------------------------------------------------------------------


def loops_lnc(s: np.ndarray, margin: float) -> tuple[list[float], list[float]]:
    """Losses and predictions of one batch, sample by sample."""
    size = len(s)
    losses, stands = [], []
    for i in range(size):
        others = [j for j in range(size) if j != i]
        losses.append(
            sum(max(0, margin + s[i, j] - s[i, i]) for j in others) / size
            + sum(max(0, margin + s[j, i] - s[i, i]) for j in others) / size
        )
        stands.append(s[i, i] - (sum(s[i, j] for j in others) / size + sum(s[j, i] for j in others) / size) / 2)
    best = sorted(stands)[-(size // 10 + 1) :]
    tau = sum(best) / len(best)
    return losses, [min(1.0, max(0.0, x / tau)) if tau > 1e-12 else 0.0 for x in stands]


def test_lnc_is_the_mean_over_permutations_of_plain_loops() -> None:
    images, texts = noisy_pairs()
    left, right = unit(images), unit(texts)
    losses, predictions = np.zeros((3, 60)), np.zeros((3, 60))
    for number, rows in permuted_batches(60, 24, 3, seed=5):
        losses[number, rows], predictions[number, rows] = loops_lnc(left[rows] @ right[rows].T, 0.2)
    found = lnc_columns(images, texts, batch=24, permutations=3, seed=5)
    np.testing.assert_allclose(found["lnc_prediction"], predictions.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(found["lnc_prediction_sd"], predictions.std(axis=0), atol=1e-5)
    confidence = np.stack([gmm_split(each).clean_probability for each in losses])
    np.testing.assert_allclose(found["lnc_confidence"], confidence.mean(axis=0), atol=1e-4)
    np.testing.assert_allclose(found["lnc_confidence_sd"], confidence.std(axis=0), atol=1e-4)
    assert np.median(found["lnc_confidence"][15:]) > 0.9 > 0.1 > np.median(found["lnc_confidence"][:15])


def test_lnc_without_a_pair_that_beats_its_negatives_predicts_nothing() -> None:
    rows = np.eye(4)
    found = lnc_columns(rows, -rows)
    assert found["lnc_prediction"].tolist() == [0.0] * 4
    assert found["lnc_confidence"].tolist() == [1.0] * 4, "losses that do not differ are not split"


def test_a_picture_with_several_captions_is_no_negative_for_itself() -> None:
    """Two captions of each picture, at right angles to all other pictures: each pair is as good as can be."""
    images = np.repeat(np.eye(5, 10), 2, axis=0)
    found = lnc_columns(images, images + np.eye(10)[[5, 6] * 5] * 0.1)
    assert found["lnc_prediction"].tolist() == [1.0] * 10
    assert found["lnc_confidence"].tolist() == [1.0] * 10
