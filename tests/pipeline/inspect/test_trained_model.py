"""R@K and accuracy against loops."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisegate.pipeline.inspect import metrics
from tests.errors import refused


def recall_of(
    similarity: Any, owner: Any = None, ks: Sequence[int] = (1, 5, 10), folds: int = 1, step: int = 4, seed: int = 0
) -> metrics.RecallAtK:
    """R@K from blocks of `step` rows that are added in random order."""
    similarity = np.asarray(similarity)
    recall = metrics.BlockRecall(len(similarity), np.arange(len(similarity)) if owner is None else owner, ks, folds)
    for start in np.random.default_rng(seed).permutation(np.arange(0, len(similarity), step)):
        recall.add(int(start), similarity[start : start + step])
    if not recall.is_exact():
        assert np.isnan(recall.result().t2i_median)
        for start in range(0, len(similarity), step):
            recall.count(start, similarity[start : start + step])
    return recall.result()


def loop_ranks(similarity: Any, owner: Any) -> tuple[list[int], list[int]]:
    """Ranks of images and captions by loops over images and captions, for whole matrices."""
    images, captions = similarity.shape
    right = np.nan_to_num(similarity[owner, np.arange(captions)], nan=-np.inf, posinf=np.inf, neginf=-np.inf)
    image_ranks = []
    for i in np.unique(owner):
        best = max(right[t] for t in range(captions) if owner[t] == i)
        image_ranks.append(1 + sum(not similarity[i, t] < best for t in range(captions) if owner[t] != i))
    caption_ranks = [
        1 + sum(not similarity[i, t] < right[t] for i in range(images) if i != owner[t]) for t in range(captions)
    ]
    return image_ranks, caption_ranks


@given(st.integers(0, 10_000), st.integers(1, 7), st.integers(0, 3))
def test_blocks_agree_with_a_loop_over_ranks(seed: int, step: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    images, captions, ks = int(rng.integers(1, 13)), int(rng.integers(1, 30)), (1, 2, 5)
    owner = rng.integers(0, images, captions)
    similarity = rng.normal(size=(images, captions)).astype(np.float32)
    if levels:
        similarity = np.round(similarity * levels) / levels  # many ties
        similarity[rng.random(similarity.shape) < 0.1] = [np.nan, np.inf, -np.inf][levels - 1]
    recall = recall_of(similarity, owner, ks, step=step, seed=seed)
    ranks = loop_ranks(similarity, owner)
    for found, expected in zip((recall.i2t, recall.t2i), ranks, strict=True):
        assert found == pytest.approx({k: 100 * float(np.mean(np.array(expected) <= k)) for k in ks})
    assert (recall.i2t_median, recall.t2i_median) == tuple(map(np.median, ranks))


def test_five_captions_per_image_count_once_for_the_image_and_each_for_the_text() -> None:
    owner = np.repeat(np.arange(3), 5)
    similarity = np.zeros((3, 15))
    similarity[owner[::5], np.arange(0, 15, 5)] = 1  # one good caption per image is enough for the image
    recall = recall_of(similarity, owner)
    assert recall.i2t == {1: 100.0, 5: 100.0, 10: 100.0}
    assert recall.t2i[1] == pytest.approx(100 / 5)
    assert metrics.rsum(recall) == pytest.approx(300 + 20 + 200)


def test_nan_of_the_right_pair_alone_is_a_miss() -> None:
    similarity = np.eye(3)
    similarity[1, 1] = np.nan
    recall = recall_of(similarity, ks=(1, 3))
    assert recall.i2t[1] == recall.t2i[1] == pytest.approx(200 / 3)


@pytest.mark.parametrize("folds", [2, 5])
def test_folds_average_over_their_own_captions_and_drop_none(folds: int) -> None:
    rng = np.random.default_rng(folds)
    owner, size = rng.permutation(np.repeat(np.arange(20), 3)), 20 // folds
    similarity = rng.random((20, 60)).astype(np.float32)
    parts = []
    for start in range(0, 20, size):
        mine = (owner >= start) & (owner < start + size)
        parts.append(recall_of(similarity[start : start + size][:, mine], owner[mine] - start, ks=(1, 2)))
    folded = recall_of(similarity, owner, (1, 2), folds, step=3)
    assert folded.i2t_median == pytest.approx(np.mean([part.i2t_median for part in parts]))
    assert folded.t2i_median == pytest.approx(np.mean([part.t2i_median for part in parts]))
    for k in (1, 2):
        assert folded.i2t[k] == pytest.approx(np.mean([part.i2t[k] for part in parts]))
        assert folded.t2i[k] == pytest.approx(np.mean([part.t2i[k] for part in parts]))


@pytest.mark.parametrize("owner", [[0, 1, 4, 3], [0, 1, -1, 3], [0.0, 1.0, 2.0, 3.0], [True, False, True, True]])
def test_captions_of_images_that_do_not_exist_are_refused(owner: list[float]) -> None:
    with refused("image_of_caption", (str(np.asarray(owner).dtype), (4,))):
        metrics.BlockRecall(4, owner)


def test_ranks_by_hand_with_two_captions_per_image() -> None:
    similarity = [[0.9, 0.2, 0.9, 0.1], [0.3, 0.3, 0.4, 0.2]]  # captions 0, 1 of image 0; 2, 3 of image 1
    recall = metrics.BlockRecall(2, [0, 0, 1, 1], ks=(1, 2))
    recall.add(0, similarity)
    # image 0's best (.9) ties with caption 2: rank 2; image 1's best (.4) is first.
    # caption 0 finds image 0; caption 1 image 1 (.3) first: rank 2; captions 2: rank 2; caption 3: rank 1
    assert recall.result() == metrics.RecallAtK({1: 50.0, 2: 100.0}, {1: 50.0, 2: 100.0}, 1.5, 1.5)


@pytest.mark.parametrize("fill", [0.3, np.nan])
def test_a_collapsed_model_gets_nothing(fill: float) -> None:
    assert metrics.rsum(recall_of(np.full((20, 20), fill), step=6)) == 0


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
    with refused("folds", 3):
        metrics.BlockRecall(2, [0, 1], folds=3)


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


def test_without_captions_there_is_no_recall() -> None:
    recall = metrics.BlockRecall(2, [], ks=(1,)).result()
    assert np.isnan([recall.i2t[1], recall.t2i[1]]).all()
