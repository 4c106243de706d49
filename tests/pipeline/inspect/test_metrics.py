"""Metrics against published figures, scikit-learn and plain loops."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn import metrics as sk
from sklearn.calibration import calibration_curve

from noisegate.pipeline.inspect import metrics
from noisegate.pipeline.inspect.metrics import selection, trained_model
from tests.errors import refused

small = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 2**32 - 1)


# Selection


@small
@given(seeds)
def test_selection_metrics_agree_with_sklearn_on_both_sides(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 30))
    noisy, kept = rng.random(n) < 0.4, rng.random(n) < 0.6
    noisy[:2] = kept[:2] = [True, False]
    noisy[2:4], kept[2:4] = [False, True], [True, False]
    scores = rng.integers(0, 5, n) / 4  # many ties
    result = metrics.selection_metrics(scores, kept, noisy)
    for side, truth, chosen in (("clean", ~noisy, kept), ("noise", noisy, ~kept)):
        precision, recall, f1, _ = sk.precision_recall_fscore_support(truth, chosen, average="binary")
        assert getattr(result, f"{side}_precision") == pytest.approx(precision)
        assert getattr(result, f"{side}_recall") == pytest.approx(recall)
        assert getattr(result, f"{side}_f1") == pytest.approx(f1)
    assert result.balanced_accuracy == pytest.approx(sk.balanced_accuracy_score(noisy, ~kept))
    assert result.clean_auroc == pytest.approx(sk.roc_auc_score(~noisy, scores))
    assert (result.samples, result.noisy, result.kept) == (n, noisy.sum(), kept.sum())
    assert dict(result.reasons) == {}


@small
@given(seeds)
def test_calibration_error_agrees_with_sklearn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chance, right = rng.random(60), rng.random(60) < 0.5
    shares, means = calibration_curve(right, chance, n_bins=10)
    sizes = np.histogram(chance, np.linspace(0, 1, 11))[0]
    wanted = (np.abs(shares - means) * sizes[sizes > 0]).sum() / 60
    assert metrics.calibration_error(chance, right) == pytest.approx(wanted)
    assert metrics.calibration_error([1.0, 0.0], [True, False]) == 0  # 1 is in the last bin
    assert math.isnan(metrics.calibration_error([], []))


def test_undefined_shares_are_nan_and_say_why() -> None:
    result = metrics.selection_metrics([0.1, 0.2], [False, False], [False, False])
    assert math.isnan(result.clean_precision)
    assert math.isnan(result.clean_auroc)
    assert result.clean_recall == 0
    assert result.reasons["clean_precision"] == "nothing was kept"
    assert result.reasons["noise_recall"] == "no noisy samples"
    assert result.reasons["balanced_accuracy"] == "no noisy samples"
    assert result.reasons["clean_auroc"] == "no noisy samples with a score"
    assert result.as_dict()["clean_auroc"] is None
    assert metrics.selection_metrics(None, [True], [False]).reasons["clean_auroc"] == "no score given"
    assert metrics.selection_metrics(None, [True], [False]).unscored == 1


def test_auroc_of_one_kind_is_nan_and_unscored_rows_are_left_out() -> None:
    assert math.isnan(metrics.clean_auroc([1.0, 2.0], [True, True]))
    assert math.isnan(metrics.clean_auroc([], []))
    assert metrics.clean_auroc([0.5, np.nan, 0.5], [True, True, False]) == 0.5
    assert metrics.selection_metrics([0.5, np.nan], [True, True], [True, False]).unscored == 1


@small
@given(seeds)
def test_best_cut_is_the_best_of_all_cuts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 25))
    noisy = rng.random(n) < 0.5
    noisy[:2] = [True, False]
    scores = np.round(rng.standard_normal(n) - noisy, 1)

    def balanced(cut: float) -> float:
        return float((scores[noisy] <= cut).mean() + (scores[~noisy] > cut).mean()) / 2

    found = selection.best_cut(scores, noisy)
    assert found.balanced_accuracy == pytest.approx(max(balanced(cut) for cut in [-np.inf, *scores]))
    assert found.balanced_accuracy == pytest.approx(balanced(found.threshold))
    assert found.clean_recall + found.noise_recall == pytest.approx(2 * found.balanced_accuracy)


def test_best_cut_of_one_kind_is_nan() -> None:
    assert math.isnan(selection.best_cut([0.1, 0.2], [True, True]).threshold)


def test_osa_acc_is_clean_recall_and_osa_recall_is_noise_recall() -> None:
    rng = np.random.default_rng(3)
    weights, noisy = np.maximum(rng.standard_normal(50), 0), rng.random(50) < 0.4
    result = metrics.selection_metrics(weights, weights > 0, noisy)
    assert selection.osa_acc(weights, noisy) == pytest.approx(result.clean_recall)
    assert selection.osa_recall(weights, noisy) == pytest.approx(result.noise_recall)
    assert math.isnan(selection.osa_recall([1.0], [False]))
    assert selection.osa_recall([np.nan], [True]) == 1  # a failed sample is not kept
    assert math.isnan(selection.osa_acc([1.0], [True]))


def test_relabel_accuracy_takes_classes_or_soft_labels_and_leaves_unknown_truth_out() -> None:
    truth = np.array([0, 2, 1, -1])
    soft = np.array([[0.9, 0.1, 0], [0, 0, 1], [0.5, 0.4, 0.1], [1, 0, 0]])
    assert metrics.relabel_accuracy(soft, truth) == pytest.approx(2 / 3)
    assert metrics.relabel_accuracy(soft.argmax(1), truth) == pytest.approx(2 / 3)
    assert math.isnan(metrics.relabel_accuracy([1], [-1]))
    soft[0] = np.nan  # refine leaves an invalid row so; numpy's argmax would call it class 0
    assert metrics.relabel_accuracy(soft, truth) == pytest.approx(1 / 3)


def test_wrong_shapes_name_the_argument() -> None:
    with refused("clean_mask", 1):
        metrics.selection_metrics(None, [True], [True, False])
    with refused("noisy", ("float64", (2,))):
        metrics.clean_auroc([0.1, 0.2], [0.5, 1.0])
    with refused("scores", (1, 1)):
        selection.best_cut([[0.1]], [True])


# Weights


@pytest.mark.parametrize(("wrong", "optimum"), [(370, 1815.5), (953, 1524.0)])
def test_mean_noise_rank_optimum_is_the_published_one(wrong: int, optimum: float) -> None:
    noisy = np.arange(2000) < wrong
    rank = selection.mean_noise_rank(~noisy, noisy)
    assert rank == selection.MeanNoiseRank(optimum, optimum, optimum, optimum, 1000.5)


@small
@given(seeds)
def test_mean_noise_rank_bounds_are_reached_by_real_orders(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 20))
    weights, noisy = rng.integers(0, 3, n) / 2, rng.random(n) < 0.5
    noisy[0] = True

    def mean_rank(noise_last: bool) -> float:
        order = np.lexsort((noisy if noise_last else ~noisy, -weights))
        return float((np.flatnonzero(noisy[order]) + 1).mean())

    rank = selection.mean_noise_rank(weights, noisy)
    assert rank.best == pytest.approx(mean_rank(noise_last=True))
    assert rank.worst == pytest.approx(mean_rank(noise_last=False))
    assert rank.value == pytest.approx((rank.best + rank.worst) / 2)
    assert rank.optimum == n - (noisy.sum() - 1) / 2


def test_mean_noise_rank_edges() -> None:
    all_equal = selection.mean_noise_rank(np.zeros(9), np.arange(9) < 4)
    assert all_equal.value == all_equal.random == 5
    assert math.isnan(selection.mean_noise_rank([0.1, 0.2], [False, False]).value)
    with refused("weights", 1):
        selection.mean_noise_rank([0.1, np.nan], [False, True])


# Retrieval


def loop_map_and_precision(rows: NDArray[np.float64], labels: NDArray[np.int64]) -> tuple[float, float]:
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    maps, firsts = [], []
    for i in range(len(rows)):
        others = [j for j in range(len(rows)) if j != i]
        relevant = sum(labels[j] == labels[i] for j in others)
        if not relevant:
            continue
        others.sort(key=lambda j: (-round(float(unit[i] @ unit[j]), 5), labels[j] == labels[i]))
        right = [labels[j] == labels[i] for j in others]
        firsts.append(right[0])
        maps.append(sum(sum(right[:k]) / k for k in range(1, relevant + 1) if right[k - 1]) / relevant)
    return 100 * float(np.mean(maps)), 100 * float(np.mean(firsts))


@small
@given(seeds)
def test_map_at_r_and_precision_at_1_agree_with_a_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 16))
    labels = np.concatenate([[0, 0], rng.integers(0, 4, n)])  # singleton classes happen
    rows = rng.integers(-2, 3, (n + 2, 3)) + np.array([0.5, 0, 0])  # duplicates and ties happen
    expected_map, expected_first = loop_map_and_precision(rows, labels)
    assert metrics.map_at_r(rows, labels) == pytest.approx(expected_map)
    assert metrics.precision_at_1(rows, labels) == pytest.approx(expected_first)


def test_duplicates_of_another_class_count_against_the_model() -> None:
    rows = np.tile(np.random.default_rng(0).standard_normal(33), (12, 1))
    labels = np.arange(12) % 2
    assert metrics.precision_at_1(rows, labels) == 0
    assert metrics.map_at_r(rows, np.zeros(12, dtype=int)) == 100


def test_rows_that_are_close_to_each_other_are_told_apart() -> None:
    angle = np.array([0, 0.0001, 0.0006, 0.0007])
    rows = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    assert metrics.precision_at_1(rows, [0, 0, 1, 1]) == metrics.map_at_r(rows, [0, 0, 1, 1]) == 100
    assert metrics.precision_at_1(rows, [0, 1, 1, 0]) == 0


def test_equal_cosines_reached_by_different_sums_count_against_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row and the same numbers in another order are as near to the first axis, whatever the block size."""
    rng = np.random.default_rng(3)
    for numbers in (2, 10**6):
        monkeypatch.setattr(trained_model, "CHUNK", numbers)
        for _ in range(40):
            row = np.abs(rng.standard_normal(65))
            mirrored = row[np.r_[0, 1 + rng.permutation(64)]]
            rows = np.array([np.eye(65)[0], row, mirrored])
            assert metrics.precision_at_1(rows, [0, 0, 1]) == 0  # the second row is nearer to the third


@pytest.mark.parametrize("size", [1e-10, 1e200, 1e308])
def test_rows_of_any_size_in_float64_are_judged_by_their_direction(size: float) -> None:
    rows = np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1]]) * size
    assert metrics.precision_at_1(rows, [0, 0, 1, 1]) == metrics.map_at_r(rows, [0, 0, 1, 1]) == 100


def test_invalid_rows_miss_unlabelled_rows_take_no_part_and_singletons_ask_nothing() -> None:
    rows = np.array([[1, 0], [1, 0.1], [np.nan, 0], [0, 0], [1, 0.01], [0, 1]])
    labels = np.array([0, 0, 0, 0, -1, 1])
    assert metrics.precision_at_1(rows, labels) == 50
    assert metrics.map_at_r(rows, labels) == pytest.approx(100 / 6)
    assert math.isnan(metrics.map_at_r([[1.0, 0.0], [0.0, 1.0]], [0, 1]))
    with refused("labels", (2,)):
        metrics.map_at_r([[1.0, 0.0]], [0, 1])
