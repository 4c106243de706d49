"""Models of label noise: recovered from simulated labels, confident joint against cleanlab, and drawn classes of every kind."""

import tracemalloc
import warnings

import numpy as np
import pytest
from cleanlab.count import compute_confident_joint
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from benchmarks.label_grid import KINDS, Case, draw
from benchmarks.labels import Case as LabelCase
from benchmarks.labels import oracle
from noisegate.pipeline.labels.noise import (
    LEAST,
    NoiseEstimate,
    confident_joint,
    estimate_noise,
    fit_models,
    noise_parts,
)
from noisegate.pipeline.labels.pool import Pool, log_votes
from noisegate.pipeline.labels.repair import RepairPolicy
from noisegate.pipeline.labels.scoring import LabelScores, score_labels
from noisegate.pipeline.neighbours import default_k, find_neighbours


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(20, 80))
def test_confident_joint_equals_cleanlab(seed: int, classes: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), rng.integers(0, classes, n)])
    probability = rng.dirichlet(np.ones(classes), len(labels))
    probability[np.arange(len(labels)), labels] += rng.random()
    probability /= probability.sum(axis=1, keepdims=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = compute_confident_joint(labels, probability, calibrate=True)
    np.testing.assert_allclose(confident_joint(probability, labels), theirs, atol=1)  # cleanlab rounds to whole rows


def test_rows_without_a_label_or_a_probability_are_left_out_of_the_confident_joint() -> None:
    rng = np.random.default_rng(0)
    labels, probability = rng.integers(0, 3, 60), rng.dirichlet(np.ones(3), 60)
    expected = confident_joint(probability, labels)
    more = np.concatenate([probability, np.eye(3), [[np.nan, 0.5, 0.5], [0.1, np.nan, 0.9]]])
    found = confident_joint(more, np.concatenate([labels, [-1, 3, 99], [0, 2]]))
    np.testing.assert_array_equal(found, expected)


def simulate(
    rate: float, near: float, rows: int = 3000, classes: int = 5, strength: float = 6.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(log votes, given labels, T): a source that overlaps neighbouring classes, and labels drawn from it through T."""
    rng = np.random.default_rng(1)
    centre = rng.integers(0, classes, rows)
    scores = (
        strength * np.eye(classes)[centre]
        + strength / 2 * np.eye(classes)[(centre + 1) % classes]
        + rng.normal(size=(rows, classes))
    )
    posterior = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    votes = log_votes(posterior, np.arange(classes))[None]
    parts = noise_parts(posterior, posterior)
    transition = (1 - rate - near) * parts[0] + rate * parts[1] + near * parts[2]
    drawn = (posterior @ transition).cumsum(axis=1)
    return votes, (rng.random(rows)[:, None] > drawn).sum(axis=1).clip(max=classes - 1), transition


@pytest.mark.parametrize(("rate", "near"), [(0.0, 0.0), (0.2, 0.0), (0.0, 0.2), (0.15, 0.15)])
def test_two_numbers_are_found_again_although_classes_overlap(rate: float, near: float) -> None:
    votes, y, transition = simulate(rate, near)
    models = fit_models(votes, y, RepairPolicy())
    np.testing.assert_allclose(models.simple.transition, transition, atol=0.05)
    assert models.simple.loss <= models.none.loss + 1e-6
    found = estimate_noise(votes, y, RepairPolicy(), np.random.default_rng(0))
    assert found.interval[0] <= rate + near <= found.interval[1]
    assert found.shown == (rate + near > 0)


def test_parts_of_the_transition_are_transitions() -> None:
    rng = np.random.default_rng(2)
    for classes in (2, 3, 7):
        parts = noise_parts(*rng.dirichlet(np.ones(classes), (2, 50)))
        assert parts.shape == (min(classes, 3), classes, classes)
        np.testing.assert_allclose(parts.sum(axis=2), 1)
        assert (np.diagonal(parts[1:], axis1=1, axis2=2) == 0).all()


def test_at_most_ten_matrices_of_classes_by_classes_are_in_memory() -> None:
    classes, rng = 300, np.random.default_rng(4)
    y = rng.integers(0, classes, 45)
    votes = log_votes(np.eye(classes)[y] + 0.01, np.arange(classes))[None]
    tracemalloc.start()
    estimate_noise(votes, y, RepairPolicy(), rng)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * classes**2 * 8


def test_a_simple_model_is_used_where_the_detailed_one_is_refuted() -> None:
    """Two classes that overlap: confident joint takes the overlap for noise, and the labels say otherwise."""
    rng = np.random.default_rng(3)
    score = rng.normal(size=4000) + np.where(np.arange(4000) % 2, 0.6, -0.6)
    posterior = np.stack([1 / (1 + np.exp(1.2 * score)), 1 / (1 + np.exp(-1.2 * score))], axis=1)
    y = (rng.random(4000) < posterior[:, 1]).astype(np.int64)
    votes = log_votes(posterior, np.arange(2))[None]
    found = estimate_noise(votes, y, RepairPolicy(), rng)
    assert (found.name, found.shown, found.interval[0]) == ("simple", False, 0.0)
    assert LEAST <= found.chance < 0.9
    quality = found.true_given(found.model.predict(votes), y)[np.arange(4000), y]
    assert (quality >= 1 - found.chance).all() and (quality >= 0.5).mean() > 0.99
    assert estimate_noise(votes, y, RepairPolicy(shown=1e9), rng).name == "detailed"


def test_a_label_is_right_by_the_chance_of_no_noise_and_else_by_the_model() -> None:
    model = Pool(np.ones(1), np.zeros(2), np.ones(1), np.array([[0.8, 0.2], [0.4, 0.6]]), 0.0)
    estimate = NoiseEstimate(model, "detailed", chance=0.9, shown=False, interval=(0.0, 1.0))
    found = estimate.true_given(np.array([[0.25, 0.75], [0.25, 0.75]]), np.array([0, 1]))
    # by the model, given 0: .25 · .8 against .75 · .4, 2 : 3; given 1: .25 · .2 against .75 · .6, 1 : 9
    np.testing.assert_allclose(found, [[0.46, 0.54], [0.09, 0.91]])


def test_noise_is_not_shown_by_a_source_that_hardly_tells_the_classes() -> None:
    """Noise explains the labels better, but what the source would change gains little."""
    votes, y, _ = simulate(0.15, 0.15, strength=1.8)
    found = estimate_noise(votes, y, RepairPolicy(), np.random.default_rng(0))
    assert not found.shown and found.interval[0] == 0 < 0.3 < found.interval[1]
    assert estimate_noise(votes, y, RepairPolicy(gain=0), np.random.default_rng(0)).shown


@pytest.mark.parametrize("count", [2, 30, 300])
def test_labels_that_are_all_right_do_not_exclude_what_chance_may_hide(count: int) -> None:
    """Without one wrong label among n, the exact binomial interval (Clopper and Pearson) ends at this rate."""
    y = np.arange(count) % 2
    votes = log_votes(np.eye(2)[y], np.arange(2))[None]
    found = estimate_noise(votes, y, RepairPolicy(), np.random.default_rng(0))
    assert found.interval[0] == 0
    assert found.interval[1] >= binomtest(0, count).proportion_ci(0.95, "exact").high - 1e-9


def repaired(case: Case) -> tuple[LabelScores, float]:
    """The scores of a drawn case, and the gain in right labels."""
    data = draw(case)
    neighbours = find_neighbours(data.features, default_k(case.rows, case.classes))
    found = score_labels([data.features], data.labels, neighbours, data.anchors, device="cpu")
    right = found.columns["refined_label"] == data.truth
    return found, float(right.mean() - (data.labels == data.truth).mean())


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_of_noise_makes_the_repair_do_harm(kind: str) -> None:
    """Drawn classes: none loses more than a few labels, and most labels are mended where classes are apart."""
    gains = []
    for seed, (rows, width, classes, apart, anchors) in enumerate(
        [
            (600, 64, 3, 7.0, "absent"),
            (600, 16, 10, 7.0, "weak"),
            (200, 4, 3, 4.0, "absent"),
            (600, 16, 10, 2.5, "good"),
        ]
    ):
        gains.append(repaired(Case(seed, rows, width, classes, apart, 1, seed != 2, kind, 0.3, anchors))[1])
    assert min(gains) >= -0.01, gains
    if kind == "none":
        assert gains == [0] * 4
    elif kind != "border":  # noise at the border of two classes looks as their overlap does
        assert max(gains) > 0.2


def test_texts_are_one_more_witness() -> None:
    case = Case(10_000_000, 1200, 16, 6, 5.5, 1, True, "symmetric", 0.3, "absent")
    alone, with_texts = repaired(case)[1], repaired(case._replace(anchors="good"))[1]
    assert with_texts >= alone - 0.005 > 0.1
    wrong = repaired(case._replace(anchors="another's"))
    assert wrong[1] >= alone - 0.02 and wrong[0].fused.weights["anchors"] < 0.2


def test_a_model_fitted_to_the_truth_repairs_at_least_as_well() -> None:
    case = Case(10_000_000, 600, 16, 3, 4.0, 1, True, "symmetric", 0.3, "absent")
    data, (found, gain) = draw(case), repaired(case)
    right, ece = oracle(LabelCase("drawn", data.features, data.labels, data.truth))
    assert found.fused.changed > 0 and right >= (data.labels == data.truth).mean() + gain - 0.005
    assert ece < 0.05
