"""The neighbourhood score against a plain loop, and on two unrelated views of one latent world."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.neighbours import find_neighbours
from noisegate.pipeline.pairs.neighbourhood import neighbourhood_agreement


def looped(lists: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """One side of the score, pair by pair, in float64."""
    valid = np.isfinite(rows).all(axis=1) & (np.abs(np.nan_to_num(rows)).sum(axis=1) > 0)
    unit = np.zeros_like(rows)
    unit[valid] = rows[valid] / np.linalg.norm(rows[valid], axis=1, keepdims=True)
    unit[valid] -= unit[valid].mean(axis=0)
    unit[valid] /= np.linalg.norm(unit[valid], axis=1, keepdims=True)
    result = np.full(len(rows), np.nan)
    for i in np.flatnonzero(valid):
        near = [unit[i] @ unit[j] for j in lists[i] if j >= 0 and valid[j]]
        everyone = [unit[i] @ unit[j] for j in np.flatnonzero(valid)]
        if near:
            result[i] = (np.mean(near) - np.mean(everyone)) / np.std(everyone)
    return result


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(4, 12), st.integers(1, 4))
def test_equals_a_plain_loop(seed: int, n: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    image, text = rng.normal(size=(n, 5)), rng.normal(size=(n, 3))
    image[0] = np.nan
    near_image, near_text = rng.integers(-1, n, (n, k)), rng.integers(-1, n, (n, k))
    one, other = looped(near_image, text), looped(near_text, image)
    wanted = np.where(np.isnan(one), other, np.where(np.isnan(other), one, (one + other) / 2))
    np.testing.assert_allclose(
        neighbourhood_agreement(near_image, near_text, image, text), wanted, rtol=1e-3, atol=1e-4
    )


def views(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Two nonlinear views, 64 and 48 wide, of one latent world of 40 topics; each has a cone and its own noise."""
    latent = rng.normal(size=(40, 16))[rng.integers(0, 40, n)] + 0.7 * rng.normal(size=(n, 16))
    return (
        np.tanh(latent @ rng.normal(size=(16, 80)) / 4) @ rng.normal(size=(80, 64)) / 9
        + 1
        + 0.3 * rng.normal(size=(n, 64)),
        np.tanh(latent @ rng.normal(size=(16, 80)) / 4) @ rng.normal(size=(80, 48)) / 9
        - 1
        + 0.3 * rng.normal(size=(n, 48)),
    )


def test_finds_shuffled_captions_without_a_joint_model() -> None:
    rng = np.random.default_rng(0)
    image, text = views(rng, 1500)
    shuffled = np.flatnonzero(rng.random(1500) < 0.4)
    text[shuffled] = text[np.roll(shuffled, 1)]
    score = neighbourhood_agreement(find_neighbours(image, 20).indices, find_neighbours(text, 20).indices, image, text)
    noisy = np.isin(np.arange(1500), shuffled)
    assert score.dtype == np.float32 and np.isfinite(score).all()
    assert roc_auc_score(~noisy, score) > 0.94
    # a random pair is the unit: wrong pairs lie near 0
    assert abs(score[noisy].mean()) < 0.2 and score[~noisy].mean() > 0.8


def test_one_side_is_enough_and_none_is_nan() -> None:
    rng = np.random.default_rng(1)
    image, text = rng.normal(size=(6, 4)), rng.normal(size=(6, 3))
    lists = np.array([[1], [0], [3], [2], [5], [4]])
    none = np.full((6, 1), -1)
    np.testing.assert_allclose(neighbourhood_agreement(lists, none, image, text), looped(lists, text), rtol=1e-4)
    np.testing.assert_allclose(neighbourhood_agreement(none, lists, image, text), looped(lists, image), rtol=1e-4)
    assert np.isnan(neighbourhood_agreement(none, none, image, text)).all()


def test_a_caption_without_direction_is_judged_by_its_photo_side_only() -> None:
    image, text = views(np.random.default_rng(2), 50)
    text[7] = 0
    lists = find_neighbours(image, 5).indices
    score = neighbourhood_agreement(lists, lists, image, text)
    assert np.isfinite(score).all()
    assert score[7] == pytest.approx(looped(lists, image)[7], rel=1e-3)


def test_equal_captions_everywhere_leave_the_other_side() -> None:
    image, _ = views(np.random.default_rng(3), 30)
    lists = find_neighbours(image, 5).indices
    score = neighbourhood_agreement(lists, lists, image, np.ones((30, 4)))
    np.testing.assert_allclose(score, looped(lists, image), rtol=1e-3, atol=1e-4)


def test_rows_must_fit() -> None:
    with pytest.raises(ConfigError, match="3 images and 4 texts"):
        neighbourhood_agreement(np.zeros((3, 1), int), np.zeros((3, 1), int), np.ones((3, 2)), np.ones((4, 2)))
