"""GSL's losses and anchor labels by hand and loops, and its columns against a loop over batches and pairs."""

import math

import numpy as np
import pytest
import torch

from noisegate.pipeline.methods.gsl import (
    anchor_labels,
    gsl_columns,
    inter_loss,
    intra_loss,
    polar_spectrum,
    ratio_agreement,
)
from noisegate.pipeline.methods.mixtures import bmm_split
from noisegate.pipeline.methods.pair_batches import permuted_batches
from tests.errors import refused

from .noisy_pairs import noisy_pairs, unit


def test_losses_by_hand() -> None:
    images, texts = torch.tensor([[1.0, 0.5], [0.5, 1.0]]), torch.tensor([[1.0, 0.1], [0.1, 1.0]])
    assert intra_loss(images, texts).tolist() == pytest.approx([0.08, 0.08])
    s = torch.tensor([[0.9, 0.4], [0.2, 0.8]])
    assert inter_loss(s).tolist() == pytest.approx([-0.02, -0.02])
    assert inter_loss(s, 1).tolist() == pytest.approx([0.02, 0.02])


def test_losses_are_smooth() -> None:
    generator = torch.Generator().manual_seed(0)
    one, other = torch.rand(2, 4, 4, generator=generator, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(intra_loss, (one.detach().requires_grad_(), other.detach().requires_grad_()))
    assert torch.autograd.gradcheck(inter_loss, one.detach().requires_grad_())


def test_g12_parseval_and_phases() -> None:
    rows = unit(np.random.default_rng(0).standard_normal((6, 9)))
    z = polar_spectrum(rows)
    np.testing.assert_allclose((z[:, :9] ** 2).mean(axis=1), 1.0, rtol=1e-12)
    assert z.shape == (6, 18)
    assert (np.abs(z[:, 9:]) <= math.pi).all()
    d, m = np.arange(9), 2  # one coefficient, by its definition
    by_hand = (rows[0] * np.exp(-2j * math.pi * d * m / 9)).sum()
    assert z[0, m] == pytest.approx(abs(by_hand))
    assert z[0, 9 + m] == pytest.approx(np.angle(by_hand))


def test_spectrum_of_odd_cases() -> None:
    constant = polar_spectrum(np.ones((1, 4)))
    assert constant.tolist() == [[4, 0, 0, 0, 0, 0, 0, 0]], "no phase where there is no amplitude"
    assert polar_spectrum(np.array([[0.5], [-1.0]])).tolist() == [[0.5], [-1.0]]
    assert polar_spectrum(np.zeros((2, 3))).tolist() == [[0.0] * 6] * 2


@pytest.mark.parametrize("width", [7, 8, 64, 96])
def test_phases_of_real_coefficients_do_not_hang_on_rounding(width: int) -> None:
    """Single and double precision, and rows in reverse order, agree: the mean and the alternating sum are real numbers."""
    rows = np.random.default_rng(3).standard_normal((50, width))
    z, single = polar_spectrum(rows), polar_spectrum(rows.astype(np.float32))
    phase, single_phase = z[:, width:], single[:, width:]
    np.testing.assert_allclose(single_phase, phase, atol=2e-4)
    np.testing.assert_allclose(phase[:, 0], np.where(rows.sum(axis=1) < 0, np.pi, 0))
    if width % 2 == 0:
        alternating = (rows * (-1) ** np.arange(width)).sum(axis=1)
        np.testing.assert_allclose(phase[:, width // 2], np.where(alternating < 0, np.pi, 0))
    zero = polar_spectrum(-np.ones((1, 4)) * 0.1)
    assert zero[0, 4:].tolist() == [np.pi, 0, 0, 0]


def test_g11_min_form_and_the_printed_one() -> None:
    ratio = np.array([1.25, 2.0])
    np.testing.assert_allclose(ratio_agreement(ratio), [0.8, 0.5])
    np.testing.assert_allclose((ratio + 1 / ratio) / 2, [1.025, 1.25])  # what the notes print: no label
    spread = np.exp(np.random.default_rng(0).standard_normal(100))
    assert ((spread + 1 / spread) / 2 >= 1).all()
    assert (ratio_agreement(spread) <= 1).all()


def loops_galc(images: np.ndarray, texts: np.ndarray, clean: np.ndarray, n: int) -> float:
    """y* of one noisy pair in the spatial domain, without centring."""

    def cos(a: np.ndarray, b: np.ndarray) -> float:
        return max(1e-6, float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)))

    found = []
    for side in (images, texts):
        order = sorted((i for i in range(len(clean)) if clean[i]), key=lambda i: -cos(side[n], side[i]))
        a1, a2 = order[:2]
        r = (cos(images[n], images[a1]) / cos(images[n], images[a2])) / (
            cos(texts[n], texts[a1]) / cos(texts[n], texts[a2])
        )
        found.append(min(r, 1 / r))
    return sum(found) / 2


def test_labels_by_two_anchors_are_those_of_a_loop() -> None:
    images, texts = np.abs(np.random.default_rng(0).standard_normal((2, 12, 7)))
    clean = np.arange(12) % 3 > 0
    found = anchor_labels(images, texts, clean, domain="spatial", centring="none")
    assert np.isnan(found[clean]).all()
    for n in np.flatnonzero(~clean):
        assert found[n] == pytest.approx(loops_galc(images, texts, clean, int(n)), rel=1e-4)


def test_fourier_labels_compare_centred_spectra() -> None:
    """The anchors are chosen in the spatial domain and compared in the frequency domain."""
    images, texts = np.random.default_rng(0).standard_normal((2, 8, 7))  # odd: no phase of +-π by rounding
    clean = np.array([False, *[True] * 7])
    z = [polar_spectrum(unit(side)) for side in (images, texts)]
    z = [unit(side - side.mean(axis=0)) for side in z]
    expected = []
    for side in (unit(images), unit(texts)):
        a1, a2 = np.argsort(-(side[1:] @ side[0]))[:2] + 1
        ratio = [max(rows[0] @ rows[a1], 1e-6) / max(rows[0] @ rows[a2], 1e-6) for rows in z]
        r = ratio[0] / ratio[1]
        expected.append(min(r, 1 / r))
    found = anchor_labels(images, texts, clean)
    assert found[0] == pytest.approx(np.mean(expected), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("negative", ["floor", "shift"])
def test_the_same_place_in_both_modalities_is_a_whole_label(negative: str) -> None:
    images = np.random.default_rng(0).standard_normal((6, 5))
    clean = np.array([False, *[True] * 5])
    found = anchor_labels(images, images.copy(), clean, negative=negative)
    assert found[0] == pytest.approx(1.0)


def test_without_two_anchors_there_is_no_label() -> None:
    images, texts = np.random.default_rng(0).standard_normal((2, 5, 4))
    for clean in ([False] * 5, [True, False, False, False, False], [True] * 5):
        assert np.isnan(anchor_labels(images, texts, np.array(clean))).all()
    clean = np.array([True, True, True, False, False])
    same = np.zeros((5, 5), bool)
    same[3, [0, 1]] = same[[0, 1], 3] = True  # two of the three anchors show the picture of row 3
    found = anchor_labels(images, texts, clean, same)
    assert np.isnan(found[3]) and not np.isnan(found[4])
    images[3] = images[0]  # identical rows are no anchors either
    same[:] = False
    same[3, 1] = True
    assert np.isnan(anchor_labels(images, texts, clean, same)[3])


def test_gsl_probability_is_the_beta_mixture_of_sct_losses() -> None:
    images, texts = noisy_pairs()
    left, right = unit(images), unit(texts)
    losses = np.zeros((2, 60))
    for number, rows in permuted_batches(60, 30, 2, seed=1):
        v, t = left[rows], right[rows]
        s = v @ t.T
        for i, row in enumerate(rows):
            others = [j for j in range(len(rows)) if j != i]
            hardest = max(max(0, 0.2 + s[i, j] - s[i, i]) for j in others) + max(
                max(0, 0.2 + s[j, i] - s[i, i]) for j in others
            )
            intra = np.mean([(v[i] @ v[j] - t[i] @ t[j]) ** 2 for j in range(len(rows))])
            inter = np.mean([(s[i, j] - s[j, i]) ** 2 for j in range(len(rows))])
            losses[number, row] = hardest + intra - 0.1 * inter
    found = gsl_columns(images, texts, batch=30, permutations=2, seed=1)
    expected = np.stack([bmm_split(each).clean_probability for each in losses])
    np.testing.assert_allclose(found["gsl_probability"], expected.mean(axis=0), atol=1e-3)
    always = (expected > 0.5).all(axis=0)
    assert (found["gsl_label"][always] == 1).all()
    assert (found["gsl_label"][(expected <= 0.5).all(axis=0)] < 1).any()
    assert np.median(found["gsl_probability"][15:]) > 0.9 > 0.3 > np.median(found["gsl_probability"][:15])


@pytest.mark.parametrize("how", [{"domain": "time"}, {"centring": "all"}, {"negative": "abs"}])
def test_unknown_switches_are_named(how: dict[str, str]) -> None:
    images, texts = np.random.default_rng(0).standard_normal((2, 5, 4))
    (name, value), *_ = how.items()
    with refused(name, value):
        anchor_labels(images, texts, np.array([True, True, True, False, False]), **how)
