"""CRCL's one-step label against a loop over batches and pairs, and its promises about order, copies and failures."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from noisegate.pipeline.methods.crcl import crcl_columns, log_matching_probabilities, matching_probability
from noisegate.pipeline.methods.pair_batches import permuted_batches
from tests.errors import refused


def pairs(count: int, noise: float = 0.3) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rng = np.random.default_rng(3)
    images = rng.standard_normal((count, 8))
    return images, images + noise * rng.standard_normal((count, 8))


def by_loops(images: NDArray[np.float64], texts: NDArray[np.float64], batch: list[int], tau: float) -> dict[int, float]:
    """p̂ of each pair of one batch, with math.exp alone."""

    def power(i: int, j: int) -> float:
        a, b = images[i], texts[j]
        return math.exp(float(a @ b) / math.sqrt(float(a @ a) * float(b @ b)) / tau)

    return {
        i: (power(i, i) / sum(power(i, j) for j in batch) + power(i, i) / sum(power(j, i) for j in batch)) / 2
        for i in batch
    }


def p_hat(similarity: NDArray[np.float64], tau: float) -> NDArray[np.float64]:
    return matching_probability(*log_matching_probabilities(torch.from_numpy(similarity), tau)).numpy()


def test_label_is_the_mean_over_permutations_of_the_matching_probability() -> None:
    images, texts = pairs(23)
    found = crcl_columns(images, texts, batch=6, permutations=3, seed=4, temperature=0.1)
    values: list[list[float]] = [[] for _ in range(23)]
    sizes = []
    for _, rows in permuted_batches(23, 6, 3, 4):
        sizes.append(len(rows))
        for row, value in by_loops(images, texts, rows.tolist(), 0.1).items():
            values[row].append(value)
    assert sizes == [6, 6, 11] * 3, "the short last batch joins the one before"
    np.testing.assert_allclose(found["crcl_label"], [np.mean(each) for each in values], rtol=1e-5)
    np.testing.assert_allclose(found["crcl_label_sd"], [np.std(each) for each in values], atol=1e-6)
    assert found["crcl_label"].dtype == np.float32


def test_a_clip_wants_its_own_temperature() -> None:
    """METHODS 4: .30 against 127 negatives at .15 is .137 at τ = .05, and as good as 1 at .01."""
    similarity = np.full((128, 128), 0.15)
    np.fill_diagonal(similarity, 0.30)
    assert p_hat(similarity, 0.05)[0] == pytest.approx(math.exp(6) / (math.exp(6) + 127 * math.exp(3)), rel=1e-9)
    assert p_hat(similarity, 0.05)[0] == pytest.approx(0.137, abs=5e-4)
    assert p_hat(similarity, 0.01)[0] == pytest.approx(1 / (1 + 127 * math.exp(-15)), rel=1e-9)
    assert np.isfinite(p_hat(similarity, 1e-4)).all(), "no overflow"


def test_copies_do_not_split_the_probability() -> None:
    """Five captions of one picture among pairs that are far away: each is as likely as if it were alone."""
    texts = np.eye(8)
    images = texts.copy()
    images[:5] = texts[0]
    texts[:5] = texts[0]
    found = crcl_columns(images, texts, batch=8, permutations=1)
    np.testing.assert_allclose(found["crcl_label"], 1, atol=1e-6)
    repeated = p_hat(images @ texts.T, 0.05)
    assert repeated[0] == pytest.approx(1 / 5, abs=1e-6), "unmasked"


def test_failed_rows_are_left_out_of_everything() -> None:
    images, texts = pairs(12)
    images[3], texts[7] = 0, np.nan
    kept = [i for i in range(12) if i not in (3, 7)]
    found = crcl_columns(images, texts, batch=4, seed=1)
    assert np.flatnonzero(np.isnan(found["crcl_label"])).tolist() == [3, 7]
    alone = crcl_columns(images[kept], texts[kept], batch=4, seed=1)
    np.testing.assert_array_equal(found["crcl_label"][kept], alone["crcl_label"])


def test_the_seed_decides_and_a_single_pair_says_nothing() -> None:
    images, texts = pairs(40, noise=1.5)
    first = crcl_columns(images, texts, batch=5, seed=0)
    assert first["crcl_label"].tolist() == crcl_columns(images, texts, batch=5, seed=0)["crcl_label"].tolist()
    assert first["crcl_label"].tolist() != crcl_columns(images, texts, batch=5, seed=1)["crcl_label"].tolist()
    assert np.isnan(crcl_columns(images[:1], texts[:1])["crcl_label"]).all()
    whole = crcl_columns(images, texts, batch=40)
    np.testing.assert_allclose(whole["crcl_label_sd"], 0, atol=1e-5)  # float32 sums in another order


def test_a_temperature_divides() -> None:
    with refused("temperature", 0.0):
        crcl_columns(*pairs(4), temperature=0.0)
