"""Fusion on simulated sources with known truth, and on real human label noise."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict

from noisegate.pipeline.labels.fusion import Fused, fuse
from noisegate.pipeline.labels.probe import probe_probabilities
from noisegate.pipeline.labels.repair import RepairPolicy
from noisegate.pipeline.labels.tango import visual_consistency
from noisegate.pipeline.neighbours import default_k, find_neighbours
from tests.errors import refused

FEATURES = Path(__file__).resolve().parents[3] / ".." / "shared" / "data" / "cifar10n-features.npz"
Sources = dict[str, np.ndarray]


def blobs(n: int, classes: int, apart: float, seed: int, d: int = 24) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, classes, n)
    return (apart * rng.normal(size=(classes, d))[truth] + rng.normal(size=(n, d))).astype(np.float32), truth


def flipped(truth: np.ndarray, classes: int, rate: float, kind: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    away = rng.integers(1, classes, len(truth)) if kind == "symmetric" else 1
    return np.where(rng.random(len(truth)) < rate, (truth + away) % classes, truth)


def opinions(embeddings: np.ndarray, labels: np.ndarray, classes: int) -> Sources:
    lists = find_neighbours(embeddings, default_k(len(labels), classes)).indices
    return {
        "neighbours": visual_consistency(lists, labels, classes),
        "near": visual_consistency(lists[:, :20], labels, classes),
        "probe": probe_probabilities(embeddings, labels, classes),
    }


def auroc(fused: Fused, labels: np.ndarray, truth: np.ndarray) -> float:
    return float(roc_auc_score(labels == truth, fused.label_quality))


def f1(kept: np.ndarray, clean: np.ndarray) -> float:
    return float(2 * (kept & clean).sum() / (kept.sum() + clean.sum()))


@pytest.mark.parametrize("kind", ["symmetric", "pairwise"])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.2, 0.4])
def test_finds_and_repairs_wrong_labels(kind: str, rate: float) -> None:
    embeddings, truth = blobs(1500, 8, 1.1, seed=1)
    labels = flipped(truth, 8, rate, kind, seed=2)
    sources = opinions(embeddings, labels, 8)
    fused = fuse(sources, labels, 8)
    clean = labels == truth
    low, high = fused.noise_interval
    assert low <= fused.noise_rate <= high
    assert (fused.predicted_label == truth).mean() > 0.94
    if (kind, rate) == ("pairwise", 0.4):  # two fifths of each class at every place are overlap as likely as noise
        assert not fused.repairs and (fused.refined_label == labels).all() and high > 0.35
        return
    assert low <= (~clean).mean() <= high
    assert high - low < 0.3
    assert f1(fused.clean, clean) > 0.97
    assert (fused.refined_label == truth).mean() > (0.97 if rate else 0.999)
    if rate == 0:
        assert fused.noise_rate < 0.01 and fused.noise_interval[0] == 0 and fused.changed == 0
    else:
        best = max(roc_auc_score(clean, source[np.arange(1500), labels]) for source in sources.values())
        assert auroc(fused, labels, truth) > max(best - 0.001, 0.98)
        assert fused.noise_rate == pytest.approx(rate, abs=0.05)
        assert fused.expected.clean_precision == pytest.approx(clean[fused.clean].mean(), abs=0.05)
        assert fused.expected.clean_recall == pytest.approx(fused.clean[clean].mean(), abs=0.05)
        assert fused.expected.kept == pytest.approx(fused.clean.mean(), abs=1e-6)
        changed = fused.refined_label != labels
        assert fused.changed == changed.sum()
        assert fused.changed_wrong == pytest.approx((fused.refined_label != truth)[changed].sum(), abs=0.03 * 1500)


def test_the_user_sets_how_sure_a_change_must_be() -> None:
    embeddings, truth = blobs(1500, 6, 0.5, seed=3)
    labels = flipped(truth, 6, 0.3, "symmetric", seed=4)
    sources = opinions(embeddings, labels, 6)
    never, sure, likely = (fuse(sources, labels, 6, policy=RepairPolicy(name)) for name in ("never", "sure", "likely"))
    assert (never.refined_label == labels).all() and never.changed == 0 and never.repairs
    assert sure.changed > 0 and (sure.refined_label == likely.refined_label).all()
    changed = sure.refined_label != labels
    assert (sure.refined_confidence > sure.label_quality)[changed].all()
    for found in (never, sure):
        np.testing.assert_array_equal(found.predicted_label, likely.predicted_label)
        np.testing.assert_array_equal(found.label_quality, likely.label_quality)


def test_a_useless_source_costs_nothing_and_a_good_one_helps() -> None:
    rng = np.random.default_rng(3)
    embeddings, truth = blobs(1500, 6, 0.5, seed=3)
    labels = flipped(truth, 6, 0.3, "symmetric", seed=4)
    sources = opinions(embeddings, labels, 6)
    without = fuse(sources, labels, 6)
    chance = fuse({**sources, "anchors": rng.dirichlet(np.ones(6), 1500)}, labels, 6)
    wrong = fuse({**sources, "anchors": np.eye(6)[(truth + 1) % 6]}, labels, 6)
    for fused in (chance, wrong):
        assert fused.weights["anchors"] < 0.1
        assert auroc(fused, labels, truth) > auroc(without, labels, truth) - 0.002
        assert (fused.refined_label == truth).mean() > (without.refined_label == truth).mean() - 0.005
    knowing = np.eye(6)[np.where(rng.random(1500) < 0.1, rng.integers(0, 6, 1500), truth)]
    good = fuse({**sources, "anchors": 0.7 * knowing + 0.3 * rng.dirichlet(np.ones(6), 1500)}, labels, 6)
    assert good.weights["anchors"] > 0.3
    assert auroc(good, labels, truth) > auroc(without, labels, truth) + 0.01
    assert (good.refined_label == truth).mean() > (without.refined_label == truth).mean() + 0.05


def test_weak_embeddings_leave_clean_labels_alone() -> None:
    """Half of the predictions are wrong here, which confident joint takes for noise."""
    embeddings, truth = blobs(1500, 6, 0.25, seed=5)
    sources = opinions(embeddings, truth, 6)
    assert (sources["probe"].argmax(axis=1) == truth).mean() < 0.75
    fused = fuse(sources, truth, 6)
    assert (fused.refined_label == truth).mean() > 0.995
    assert fused.noise_interval[0] < 0.01


def test_embeddings_that_know_nothing_change_nothing() -> None:
    rng = np.random.default_rng(6)
    labels = rng.integers(0, 2, 600)
    fused = fuse(opinions(rng.normal(size=(600, 16)), labels, 2), labels, 2)
    assert not fused.repairs and (fused.refined_label == labels).all()


def test_many_classes_with_few_members() -> None:
    embeddings, truth = blobs(2000, 100, 1.1, seed=7, d=48)
    labels = flipped(truth, 100, 0.2, "symmetric", seed=8)
    fused = fuse(opinions(embeddings, labels, 100), labels, 100)
    assert auroc(fused, labels, truth) > 0.98
    assert (fused.refined_label == truth).mean() > 0.95
    assert fused.noise_rate == pytest.approx((labels != truth).mean(), abs=0.02)


def test_probabilities_hold() -> None:
    embeddings, truth = blobs(6000, 5, 0.55, seed=9)
    labels = flipped(truth, 5, 0.3, "symmetric", seed=10)
    fused = fuse(opinions(embeddings, labels, 5), labels, 5)
    clean, decile = labels == truth, np.minimum((fused.label_quality * 10).astype(int), 9)
    gap = sum(abs(clean[decile == d].sum() - fused.label_quality[decile == d].sum()) for d in range(10))
    assert gap / len(labels) < 0.06
    assert fused.ece < 0.06


def test_rows_without_label_or_opinion() -> None:
    embeddings, truth = blobs(800, 4, 1.2, seed=11)
    labels = flipped(truth, 4, 0.2, "symmetric", seed=12)
    labels[:3] = [-1, 7, -1]
    sources = opinions(embeddings, np.where(labels < 4, labels, -1), 4)
    for source in sources.values():
        source[2:4] = np.nan  # an image that could not be encoded: once without and once with a label
    sources["probe"][5] = np.nan  # one source abstains
    fused = fuse(sources, labels, 4)
    assert np.isnan(fused.label_quality[:4]).all() and not fused.clean[:4].any()
    assert fused.refined_label[:4].tolist() == [truth[0], truth[1], -1, labels[3]]
    assert fused.predicted_label[:4].tolist() == [truth[0], truth[1], -1, -1]
    assert np.isfinite(fused.refined_confidence[:2]).all() and np.isnan(fused.refined_confidence[2:4]).all()
    assert np.isfinite(fused.label_quality[4:]).all()
    assert fused.label_quality.dtype == np.float32 and fused.refined_label.dtype == np.int32


def test_one_class_and_no_label() -> None:
    source = {"probe": np.full((5, 3), 1 / 3)}
    one = fuse(source, [2, 2, -1, 2, 2], 3)
    assert one.clean.tolist() == [True, True, False, True, True] and one.noise_rate == 0
    assert one.refined_label.tolist() == [2, 2, -1, 2, 2]
    none = fuse(source, [-1] * 5, 3)
    assert not none.clean.any() and (none.refined_label == -1).all()
    json.dumps(one.facts(), allow_nan=False)
    json.dumps(none.facts(), allow_nan=False)


def test_sampling_and_chunks_do_not_change_the_picture() -> None:
    embeddings, truth = blobs(3000, 4, 0.8, seed=13)
    labels = flipped(truth, 4, 0.2, "symmetric", seed=14)
    sources = opinions(embeddings, labels, 4)
    whole = fuse(sources, labels, 4)
    chunked = fuse(
        sources, labels, 4, entries=2 * 3 * 4 * 3000
    )  # all rows for the fit, a quarter at a time for the scores
    np.testing.assert_allclose(chunked.label_quality, whole.label_quality, rtol=1e-5)
    assert np.isfinite(fuse(sources, labels, 4, entries=1).noise_rate)  # two rows, the fewest
    sampled = fuse(sources, labels, 4, entries=2 * 3 * 4 * 1500)
    assert auroc(sampled, labels, truth) == pytest.approx(auroc(whole, labels, truth), abs=0.005)
    assert sampled.noise_rate == pytest.approx(whole.noise_rate, abs=0.02)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 30), st.integers(1, 4), st.integers(0, 10**6))
def test_any_small_input_gives_probabilities(n: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(-1, classes + 1, n)
    sources = {name: rng.dirichlet(np.full(classes, 0.3), n) for name in "ab"}
    sources["a"][rng.random(n) < 0.2] = np.nan
    sources["b"][rng.random(n) < 0.2] = 0
    fused = fuse(sources, labels, classes)
    known = np.isfinite(fused.label_quality)
    assert ((fused.label_quality[known] >= 0) & (fused.label_quality[known] <= 1)).all()
    assert (fused.clean == (np.nan_to_num(fused.label_quality) >= 0.5)).all()
    for column in (fused.refined_label, fused.predicted_label):
        assert ((column >= -1) & (column < classes)).all()
    low, high = fused.noise_interval
    assert 0 <= low <= fused.noise_rate <= high <= 1
    json.dumps(fused.facts(), allow_nan=False)


@pytest.mark.parametrize(
    ("sources", "labels", "setting", "value"),
    [
        ({}, [0, 1], "sources", None),
        ({"probe": np.ones((2, 3))}, [0, 1], "sources", (2, 3)),
        ({"probe": np.ones((2, 2))}, [[0, 1]], "labels", (1, 2)),
        ({"probe": np.ones((2, 2))}, [0.0, 1.0], "labels", "float64"),
    ],
)
def test_errors_name_what_does_not_fit(sources: Sources, labels: list[int], setting: str, value: object) -> None:
    with refused(setting, value):
        fuse(sources, labels, 2)


@pytest.mark.skipif(not FEATURES.exists(), reason="human label noise is not on this machine")
@pytest.mark.parametrize("name", ["worse_label", "aggre_label", "clean_label"])
def test_human_noise(name: str) -> None:
    """3,000 photos: the fused score beats each source and cleanlab's self-confidence, and repair never does harm."""
    with np.load(FEATURES) as data:
        embeddings = data["features"][:3000].astype(np.float32)
        truth, labels = data["clean_label"][:3000].astype(int), data[name][:3000].astype(int)
    lists, rows = find_neighbours(embeddings, 150).indices, np.arange(3000)
    sources = {
        "neighbours": visual_consistency(lists, labels, 10),
        "near": visual_consistency(lists[:, :50], labels, 10),
        "probe": probe_probabilities(embeddings, labels, 10),
    }
    fused, clean = fuse(sources, labels, 10), labels == truth
    assert (fused.refined_label == truth).mean() >= clean.mean()
    assert fused.noise_interval[0] <= (~clean).mean() <= fused.noise_interval[1]
    assert f1(fused.clean, clean) >= {"worse_label": 0.89, "aggre_label": 0.963, "clean_label": 1.0}[name]
    if name == "clean_label":
        return
    unit = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    unit = (unit - unit.mean(axis=0)) / unit.std()
    self_confidence = cross_val_predict(LogisticRegression(C=1e-3), unit, labels, cv=5, method="predict_proba")
    for source in (*sources.values(), self_confidence):
        assert auroc(fused, labels, truth) > roc_auc_score(clean, source[rows, labels])


def test_a_source_that_finds_all_classes_alike_leaves_the_label() -> None:
    """It says that nothing speaks against the label; a source without an opinion (NaN) says nothing."""
    votes = np.array([[0.5, 0.5], [0.9, 0.1], [0.2, 0.8], [np.nan, np.nan]])
    found = fuse({"a": votes}, np.array([0, 0, 1, 1]), 2)
    assert found.clean[:3].all() and (found.refined_label == [0, 0, 1, 1]).all()
    assert np.isfinite(found.label_quality).tolist() == [True, True, True, False]


def test_names_that_are_exchanged_give_the_same_repair_under_the_other_names() -> None:
    """Without texts nothing but the commonest name says what a class is called, so that no rule could do otherwise."""
    rng = np.random.default_rng(5)
    truth, other = rng.integers(0, 3, 900), np.array([1, 2, 0])
    given = np.where(rng.random(900) < 0.2, (truth + 1) % 3, truth)
    soft = np.eye(3)[truth] * 3 + rng.random((900, 3))
    plain = fuse({"probe": soft}, given, 3)
    renamed = fuse({"probe": soft[:, np.argsort(other)]}, other[given], 3)
    assert plain.repairs and (plain.refined_label != given).sum() > 100
    assert (renamed.refined_label == other[plain.refined_label]).all()
