"""R@K from blocks against the whole matrix and against loops; accuracy against loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.inspect import metrics
from tests.errors import refused


def added(
    recall: metrics.BlockRecall, similarity: np.ndarray, step: int, rng: np.random.Generator
) -> metrics.RecallAtK:
    starts = np.arange(0, len(similarity), step)
    for start in rng.permutation(starts):  # in any order
        recall.add(int(start), similarity[start : start + step])
    return recall.result()


@given(st.integers(0, 10_000), st.integers(1, 7), st.integers(0, 3))
def test_blocks_agree_with_the_whole_matrix(seed: int, step: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    images, captions = int(rng.integers(1, 13)), int(rng.integers(0, 30))
    owner = rng.integers(0, images, captions)
    similarity = rng.normal(size=(images, captions)).astype(np.float32)
    if levels:
        similarity = np.round(similarity * levels) / levels  # many ties
        similarity[rng.random(similarity.shape) < 0.1] = [np.nan, np.inf, -np.inf][levels - 1]
    found = added(metrics.BlockRecall(images, owner, ks=(1, 2, 5)), similarity, step, rng)
    expected = metrics.recall_at_k(similarity, owner, ks=(1, 2, 5))
    assert found.i2t == pytest.approx(expected.i2t, nan_ok=True)
    assert found.t2i == pytest.approx(expected.t2i, nan_ok=True)


@pytest.mark.parametrize("folds", [1, 2, 5])
def test_folds_agree_with_the_whole_matrix(folds: int) -> None:
    rng = np.random.default_rng(folds)
    owner = rng.permutation(np.repeat(np.arange(20), 3))
    similarity = rng.normal(size=(20, 60)).astype(np.float32)
    similarity[owner, np.arange(60)] += 1
    found = added(metrics.BlockRecall(20, owner, folds=folds), similarity, 3, rng)
    assert found == metrics.coco_folds(similarity, owner, folds)


def test_ranks_by_hand_with_two_captions_per_image() -> None:
    similarity = [[0.9, 0.2, 0.9, 0.1], [0.3, 0.3, 0.4, 0.2]]  # captions 0, 1 of image 0; 2, 3 of image 1
    recall = metrics.BlockRecall(2, [0, 0, 1, 1], ks=(1, 2))
    recall.add(0, similarity)
    # image 0's best (.9) ties with caption 2: rank 2; image 1's best (.4) is first.
    # caption 0 finds image 0; caption 1 image 1 (.3) first: rank 2; captions 2: rank 2; caption 3: rank 1
    assert recall.result() == metrics.RecallAtK(i2t={1: 50.0, 2: 100.0}, t2i={1: 50.0, 2: 100.0})


def test_a_collapsed_model_gets_nothing() -> None:
    recall = metrics.BlockRecall(20, np.arange(20))
    for start in range(0, 20, 6):
        recall.add(start, np.zeros((min(6, 20 - start), 20)))
    assert metrics.rsum(recall.result()) == 0


def test_memory_does_not_hold_the_matrix() -> None:
    recall = metrics.BlockRecall(1000, np.repeat(np.arange(1000), 5))
    held = sum(value.nbytes for value in vars(recall).values() if isinstance(value, np.ndarray))
    assert held < 1000 * 5000 * 4 / 50


def test_rows_that_are_missing_or_do_not_fit_are_errors() -> None:
    recall = metrics.BlockRecall(2, [0, 1])
    recall.add(0, [[1.0, 0.0]])
    with refused("rows", 1):
        recall.result()
    with refused("block", (1, (1, 3))):
        recall.add(1, [[1.0, 0.0, 0.0]])
    with refused("block", (2, (1, 2))):
        recall.add(2, [[1.0, 0.0]])
    with pytest.raises(ConfigError, match="folds=3 does not divide 2 images"):
        metrics.BlockRecall(2, [0, 1], folds=3)
    with refused("image_of_caption", (2,)):
        metrics.BlockRecall(2, [0, 2])


@pytest.mark.parametrize("seed", range(5))
def test_accuracy_agrees_with_a_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = np.round(rng.normal(size=(40, 6)), 1)
    labels = rng.integers(-1, 6, 40)
    right: dict[int, list[bool]] = {}
    top3 = []
    for row, label in zip(scores, labels, strict=True):
        if label >= 0:
            rank = 1 + sum(row[c] >= row[label] for c in range(6) if c != label)
            right.setdefault(int(label), []).append(rank == 1)
            top3.append(rank <= 3)
    every = [hit for hits in right.values() for hit in hits]
    assert metrics.top_k_accuracy(scores, labels) == pytest.approx(100 * np.mean(every))
    assert metrics.top_k_accuracy(scores, labels, 3) == pytest.approx(100 * np.mean(top3))
    assert metrics.mean_class_accuracy(scores, labels) == pytest.approx(
        100 * np.mean([np.mean(h) for h in right.values()])
    )


def test_accuracy_at_the_edges() -> None:
    assert metrics.top_k_accuracy([[np.nan, 1.0], [1.0, np.nan]], [0, 0]) == 0
    assert np.isnan(metrics.top_k_accuracy(np.zeros((1, 2)), [-1]))
    with refused("labels", (1,)):
        metrics.top_k_accuracy([[1.0, 0.0]], [2])
