"""The neighbourhood score against a plain loop, and on two unrelated views of one latent world."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from noisegate.pipeline.inspect.metrics import clean_auroc
from noisegate.pipeline.neighbours import find_neighbours
from noisegate.pipeline.pairs.neighbourhood import NeighbourhoodScores, neighbourhood_agreement, score_neighbourhood
from tests.embeddings import Rows
from tests.errors import refused

COUNT, K = 600, 10


def two_sides(seed: int = 0, wrong: int = 240, width: int = 7, faint: float = 0.15) -> tuple[Rows, Rows, Any]:
    """Images and texts of one thing seen by two unrelated encoders; the first `wrong` texts are of others."""
    rng = np.random.default_rng(seed)
    thing = rng.standard_normal((COUNT, 4))
    images = np.tanh(thing @ rng.standard_normal((4, 12))) + faint * rng.standard_normal((COUNT, 12))
    thing[:wrong] = np.roll(thing[:wrong], 1, axis=0)
    texts = np.tanh(thing @ rng.standard_normal((4, width))) + faint * rng.standard_normal((COUNT, width))
    return images.astype(np.float32), texts.astype(np.float32), np.arange(COUNT) < wrong


def found(images: Rows, texts: Rows, similarity: Any = None, **settings: Any) -> NeighbourhoodScores:
    near_texts = find_neighbours(texts, K) if texts.any() else None
    return score_neighbourhood(images, texts, find_neighbours(images, 15), near_texts, K, 0, similarity, **settings)


def test_two_unrelated_encoders_of_different_widths_find_wrong_captions() -> None:
    images, texts, noisy = two_sides()
    scores = found(images, texts)
    assert clean_auroc(scores.agreement, noisy) > 0.95
    near = find_neighbours(images, K).indices, find_neighbours(texts, K).indices
    np.testing.assert_array_equal(scores.agreement, neighbourhood_agreement(*near, images, texts))
    assert scores.calibration is not None
    low, high = scores.calibration.noise_interval
    assert low <= noisy.mean() <= high
    columns = scores.table_columns(slice(0, COUNT), np.ones(COUNT, bool), np.full(COUNT, np.nan, np.float32))
    kept = np.array(columns["clean"].to_pylist())
    assert (kept == ~noisy).mean() > 0.85
    assert scores.cut is not None
    assert kept.tolist() == (scores.agreement > scores.cut.beta).tolist()
    assert scores.facts()["cut"] == scores.cut.beta
    assert scores.facts()["k"] == K


@pytest.mark.parametrize(("wrong", "faint"), [(0, 0.15), (0, 0.5), (12, 0.5)])
def test_data_that_is_clean_is_kept(wrong: int, faint: float) -> None:
    images, texts, noisy = two_sides(wrong=wrong, faint=faint)
    scores = found(images, texts)
    assert scores.cut is not None
    assert (scores.agreement > scores.cut.beta)[
        ~noisy
    ].mean() > 0.85  # mean + 2 sd of the mismatched keeps 27, 9 and 11 %


def test_blocks_are_one_matrix() -> None:
    images, texts, _ = two_sides()
    cut = [images[:50], images[50:]], [texts[:300], texts[300:]]
    parts = score_neighbourhood(*cut, find_neighbours(cut[0], 15), find_neighbours(cut[1], K), K, 0, None)
    np.testing.assert_allclose(parts.agreement, found(images, texts).agreement, atol=1e-6)


def test_failed_pairs_have_no_score_and_are_nobodys_neighbours() -> None:
    images, texts, _ = two_sides(wrong=0)
    images[3] = 0
    texts[5] = 0
    scores = found(images, texts)
    assert np.flatnonzero(np.isnan(scores.agreement)).tolist() == [3, 5]
    ok = np.ones(COUNT, bool)
    ok[8] = False
    columns = scores.table_columns(slice(2, 10), ok[2:10], np.full(8, 0.25, np.float32))
    assert [i for i, value in enumerate(columns["clean"].to_pylist(), 2) if value is None] == [3, 5, 8]
    assert [i for i, value in enumerate(columns["clean_probability"], 2) if value == np.float32(0.25)] == [3, 5, 8]


def test_beside_a_good_cosine_the_weight_is_none_and_beside_a_poor_one_it_helps() -> None:
    images, texts, noisy = two_sides(width=12)
    same = images.copy()
    same[noisy] = np.roll(same[noisy], 1, axis=0)
    for right, helps in ((same + 0.01 * texts, False), (texts + 0.3 * same, True)):
        left, right = _unit(images), _unit(right)
        cosine = (left * right).sum(axis=1)
        scores = found(left, right, cosine)
        assert (scores.weight > 0) == helps
        assert scores.alone is False
        columns = scores.table_columns(slice(0, COUNT), np.ones(COUNT, bool), np.zeros(COUNT, np.float32))
        assert "clean" not in columns  # w > 0 decides where there is a cosine
        assert ("clean_probability" in columns) == helps
        if helps:
            assert clean_auroc(scores.score, noisy) > clean_auroc(cosine, noisy) + 0.02
        else:
            assert clean_auroc(scores.score, noisy) == pytest.approx(clean_auroc(cosine, noisy))


def _unit(rows: Rows) -> Rows:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_a_run_that_judges_no_pairs_gets_the_column_alone() -> None:
    images, texts, _ = two_sides()
    columns = found(images, texts, decides=False).table_columns(
        slice(0, COUNT), np.ones(COUNT, bool), np.zeros(COUNT, np.float32)
    )
    assert list(columns) == ["neighbourhood"]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 19])
@pytest.mark.parametrize("joint", [True, False])
def test_few_pairs_get_what_can_be_said(count: int, joint: bool) -> None:
    images, texts, _ = two_sides(width=12)
    cosine = np.full(count, 0.5, np.float32) if joint else None
    graphs = find_neighbours(images[:count], 15), find_neighbours(texts[:count], K)
    scores = score_neighbourhood(images[:count], texts[:count], *graphs, K, 0, cosine)
    assert (scores.calibration, scores.cut, scores.weight) == (None, None, 0.0)
    assert scores.agreement.shape == (count,)
    assert np.isnan(scores.agreement).all() == (count < 2)
    columns = scores.table_columns(slice(0, count), np.ones(count, bool), np.zeros(count, np.float32))
    assert list(columns) == ["neighbourhood"]


def test_a_mismatched_pair_is_not_judged_by_the_pair_its_caption_came_from() -> None:
    """With all rows as neighbours nothing can be told, unless lists of mismatched pairs name their own other half."""
    images, texts, _ = two_sides(wrong=0)
    images, texts = images[:24], texts[:24]
    scores = score_neighbourhood(images, texts, find_neighbours(images, 23), find_neighbours(texts, 23), 23, 0, None)
    assert scores.cut is not None and scores.calibration is not None
    deviation = scores.cut.beta_sd / np.sqrt(3 / scores.calibration.mismatched)  # the cut is mean + 2 sd
    assert scores.cut.beta - 2 * deviation == pytest.approx(float(scores.agreement.mean()), abs=0.03)
    assert "no clean component stands out" in scores.cut.reason


def test_pictures_without_any_text_are_refused() -> None:
    images, texts, _ = two_sides()
    for none in (np.zeros_like(texts), texts[:, :0]):
        with refused("neighbourhood"):
            found(images, none)


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
    with refused("neighbourhood"):
        neighbourhood_agreement(np.zeros((3, 1), int), np.zeros((3, 1), int), np.ones((3, 2)), np.ones((4, 2)))
