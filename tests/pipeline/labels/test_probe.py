"""The probe against scikit-learn's discriminant and logistic regression, and its edges."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from noisegate.pipeline.labels.probe import (
    _calibrate,
    _discriminants,
    _stratified_folds,
    fit_probe,
    probe_probabilities,
)
from tests.errors import refused


def noisy_blobs(n: int, d: int, classes: int, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Embeddings, labels of which a share is wrong, and the true labels."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, classes, n)
    spread = rng.normal(size=(d, d)) / np.sqrt(d) * np.linspace(2, 0.2, d)
    embeddings = 1.2 * rng.normal(size=(classes, d))[truth] / np.sqrt(d / 16) + rng.normal(size=(n, d)) @ spread + 0.5
    labels = np.where(rng.random(n) < noise, rng.integers(0, classes, n), truth)
    return embeddings.astype(np.float32), labels, truth


def prepared(embeddings: np.ndarray) -> np.ndarray:
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    unit = unit - unit.mean(axis=0)
    return unit / np.sqrt(np.mean(unit**2))


@pytest.mark.parametrize("strength", [0.9, 0.3, 0.03])
def test_equals_scikit_learn_at_one_strength_but_for_one_factor(strength: float) -> None:
    embeddings, labels, _ = noisy_blobs(400, 12, 4, 0.3, seed=0)
    ours = np.log(probe_probabilities(embeddings, labels, 4, strengths=(strength,), seed=3))
    fold = _stratified_folds(labels, 5, np.random.default_rng(3))
    x, theirs = prepared(embeddings.astype(float)), np.empty((400, 4))
    for held_out in range(5):
        train = fold != held_out
        oracle = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=strength).fit(x[train], labels[train])
        theirs[~train] = oracle.decision_function(x[~train])
    ours, theirs = (scores - scores.mean(axis=1, keepdims=True) for scores in (ours, theirs))
    factor = (ours * theirs).sum() / (theirs**2).sum()
    np.testing.assert_allclose(ours, factor * theirs, atol=1e-3)
    best = min(np.geomspace(0.2, 2, 200), key=lambda sharpness: log_loss(labels, softmax(sharpness * theirs, axis=1)))
    assert factor == pytest.approx(best, rel=0.05)


def test_labels_moved_to_one_class_move_the_means_but_not_the_borders() -> None:
    """Two fifths of class 0 called 1: a logistic regression draws the border anew, class means hardly move it."""
    embeddings, _, truth = noisy_blobs(2000, 16, 4, 0.0, seed=2)
    labels = np.where((truth == 0) & (np.arange(2000) % 5 < 2), 1, truth)
    ours = probe_probabilities(embeddings, labels, 4).argmax(axis=1)
    theirs = cross_val_predict(LogisticRegression(C=0.01), prepared(embeddings), labels, cv=5)
    assert (ours == truth).mean() > (theirs == truth).mean() + 0.02


@pytest.mark.parametrize("noise", [0.1, 0.4])
def test_as_good_as_scikit_learn_with_its_best_strength(noise: float) -> None:
    embeddings, labels, truth = noisy_blobs(1500, 64, 6, noise, seed=1)
    ours = probe_probabilities(embeddings, labels, 6)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    theirs = min(
        (
            cross_val_predict(
                LogisticRegression(C=1 / (strength * 1200), max_iter=300),
                prepared(embeddings),
                labels,
                cv=folds,
                method="predict_proba",
            )
            for strength in (1.0, 0.3, 0.1, 0.03, 0.01)
        ),
        key=lambda probability: log_loss(labels, probability),
    )
    own = np.arange(len(labels)), labels
    assert (
        log_loss(labels, ours.astype(float) / ours.sum(axis=1, keepdims=True, dtype=float))
        < log_loss(labels, theirs) + 0.01
    )
    assert roc_auc_score(labels == truth, ours[own]) > roc_auc_score(labels == truth, theirs[own]) - 0.005


def test_predictions_are_out_of_fold() -> None:
    """Pure noise cannot be predicted: trained on their own labels 200 rows of 300 dimensions would be, perfectly."""
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 2, 200)
    probability = probe_probabilities(rng.normal(size=(200, 300)), labels, 2)
    assert abs((probability.argmax(axis=1) == labels).mean() - 0.5) < 0.12
    assert abs(probability - 0.5).max() < 0.3  # and the held-out loss asks for flat scores


def test_nothing_leaks_where_there_are_more_dimensions_than_rows() -> None:
    """Every row could be learned by heart, so that any route from a wrong label to its own prediction would show."""
    rng = np.random.default_rng(9)
    truth = rng.integers(0, 5, 120)
    embeddings = rng.normal(size=(120, 500))
    embeddings[np.arange(120), truth] += 8
    wrong = np.arange(0, 120, 6)
    labels = truth.copy()
    labels[wrong] = (truth[wrong] + 1) % 5
    probability = probe_probabilities(embeddings, labels, 5)
    assert probability[wrong, labels[wrong]].mean() < 0.3


def test_a_label_cannot_reach_the_fold_that_predicts_its_row() -> None:
    """With the folds given, a fold has learned the same bits whatever the labels of the rows are that it holds out."""
    rng = np.random.default_rng(5)
    fold, labels = torch.arange(60) % 5, torch.from_numpy(rng.integers(0, 3, 60))
    x = torch.from_numpy(rng.normal(size=(60, 120)).astype(np.float32))
    before = _discriminants(x, labels, fold, 5)
    for row in range(25):
        other = labels.clone()
        other[row] = (labels[row] + 1) % 3
        after = _discriminants(x, other, fold, 5)
        same = [all(map(torch.equal, *parts)) for parts in zip(before, after, strict=True)]
        assert same == [number == fold[row] for number in range(5)]


def test_sharpness_is_the_factor_that_makes_scores_probabilities() -> None:
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(20_000, 4)) * 2
    labels = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
    fit = _calibrate(scores * 5, labels)
    assert fit.sharpness == pytest.approx(0.2, rel=0.05)
    assert fit.loss == pytest.approx(log_loss(labels, softmax(scores, axis=1)), abs=1e-3)


@pytest.mark.parametrize("folds", [127, 128, 200, 300])
def test_many_folds_hold_every_row_out(folds: int) -> None:
    embeddings, labels, _ = noisy_blobs(320, 6, 2, 0.1, seed=0)
    probe = fit_probe(embeddings, labels, 2, folds=folds, strengths=(0.3,))
    assert sorted(set(probe.fold.tolist())) == list(range(folds))
    assert (np.bincount(probe.fold) <= 3).all()
    probability = probe(np.arange(320))
    assert (probability.argmax(axis=1) == labels).mean() > 0.8
    np.testing.assert_allclose(probability.sum(axis=1), 1, atol=1e-5)


def test_rows_whose_squares_are_too_large_for_float32_count_as_any_other() -> None:
    embeddings, labels, _ = noisy_blobs(200, 6, 2, 0.1, seed=0)
    large = embeddings * np.where(np.arange(200) % 3 == 0, 1e30, 1).astype(np.float32)[:, None]
    expected, found = (probe_probabilities(rows, labels, 2, strengths=(0.3,)) for rows in (embeddings, large))
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_sample_to_train_on_says_what_all_rows_say_and_holds_its_own_rows_out() -> None:
    embeddings, labels, truth = noisy_blobs(1500, 12, 3, 0.3, seed=1)
    labels[:30] = -1
    every = np.arange(1500)
    whole, part = (fit_probe(embeddings, labels, 3, most=most) for most in (1500 * 12, 600 * 12))
    assert [(probe.fold >= 0).sum() for probe in (whole, part)] == [1470, 600]
    assert (part.fold[:30] == -1).all()
    assert np.corrcoef(whole(every).ravel(), part(every).ravel())[0, 1] > 0.98
    hits = [(probe(every).argmax(axis=1) == truth).mean() for probe in (whole, part)]
    assert abs(hits[0] - hits[1]) < 0.02
    np.testing.assert_allclose(part(every[100:700:3]), part(every)[100:700:3], atol=1e-6)


def test_a_row_of_the_sample_is_judged_by_the_fold_that_has_not_seen_it() -> None:
    """With as many dimensions as rows a probe knows every label that it has seen, and none that it has not."""
    rng = np.random.default_rng(0)
    embeddings, labels = rng.normal(size=(400, 300)), rng.integers(0, 2, 400)
    probe = fit_probe(embeddings, labels, 2, strengths=(1e-4,), most=200 * 300)
    right = probe(np.arange(400)).argmax(axis=1) == labels
    assert abs(right[probe.fold >= 0].mean() - 0.5) < 0.1
    assert abs(right[probe.fold < 0].mean() - 0.5) < 0.1


def test_rows_without_a_label_are_predicted_and_not_learned_from() -> None:
    embeddings, labels, truth = noisy_blobs(600, 16, 3, 0.0, seed=4)
    hidden = labels.copy()
    hidden[::3] = -1
    hidden[1] = 99
    probability = probe_probabilities(embeddings, hidden, 3)
    assert np.isfinite(probability).all()
    assert (probability[::3].argmax(axis=1) == truth[::3]).mean() > 0.8
    np.testing.assert_allclose(probability.sum(axis=1), 1, atol=1e-5)


def test_invalid_rows_are_nan_and_change_nothing_else() -> None:
    embeddings, labels, _ = noisy_blobs(120, 8, 3, 0.1, seed=5)
    broken = np.concatenate([embeddings, np.full((1, 8), np.nan), np.zeros((1, 8)), np.full((1, 8), np.inf)])
    probability = probe_probabilities(broken, np.append(labels, [0, 1, 2]), 3)
    assert np.isnan(probability[-3:]).all()
    np.testing.assert_array_equal(probability[:-3], probe_probabilities(embeddings, labels, 3))


def test_few_members_absent_classes_and_one_class() -> None:
    embeddings, labels, _ = noisy_blobs(60, 8, 3, 0.0, seed=6)
    labels[labels == 2] = 1
    labels[:2] = 4  # two members only, class 3 has none
    probability = probe_probabilities(embeddings, labels, 6)
    assert probability.shape == (60, 6) and np.isfinite(probability).all()
    assert (probability[:, [2, 3, 5]] == 0).all()
    one = probe_probabilities(embeddings, np.full(60, 2), 4)
    np.testing.assert_array_equal(one, np.tile([0, 0, 1, 0], (60, 1)))
    none = probe_probabilities(embeddings, np.full(60, -1), 4)
    np.testing.assert_array_equal(none, np.full((60, 4), 0.25))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-1, 4), min_size=1, max_size=60), st.integers(2, 6), st.integers(0, 99))
def test_folds_are_even_within_every_class(labels: list[int], folds: int, seed: int) -> None:
    y = np.array(labels)
    fold = _stratified_folds(y, folds, np.random.default_rng(seed))
    assert ((fold == -1) == (y == -1)).all()
    sizes = np.bincount(fold[fold >= 0], minlength=folds)
    assert sizes.max() - sizes.min() <= 1
    for label in np.unique(y[y >= 0]):
        members = np.bincount(fold[y == label], minlength=folds)
        assert members.max() - members.min() <= 1


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 4), st.integers(0, 99))
def test_any_small_input_gives_probabilities(n: int, d: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    probability = probe_probabilities(rng.normal(size=(n, d)) + 2, rng.integers(-1, classes, n), classes)
    np.testing.assert_allclose(probability.sum(axis=1), 1, atol=1e-5)
    assert probability.min() >= 0


def test_same_seed_same_numbers() -> None:
    embeddings, labels, _ = noisy_blobs(200, 8, 3, 0.2, seed=7)
    first, again, other = (probe_probabilities(embeddings, labels, 3, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ({"folds": 1}, 1),
        ({"strengths": ()}, ()),
        ({"strengths": (0.5, 3.0)}, (0.5, 3.0)),
        ({"labels": [0]}, (1,)),
        ({"labels": ["cat", "dog", "cat", "dog"]}, "<U3"),
    ],
)
def test_errors_name_the_setting(arguments: dict[str, object], value: object) -> None:
    wanted = {"embeddings": np.ones((4, 2)), "labels": [0, 1, 0, 1], "classes": 2} | arguments
    with refused(*arguments, value):
        probe_probabilities(**wanted)  # type: ignore[arg-type]
