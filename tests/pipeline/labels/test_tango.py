"""Neighbour votes, anchors and their refinement against loops over one sample at a time."""

import logging
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noisegate.pipeline.labels.tango import (
    anchor_consistency,
    inject_truth,
    propagate_labels,
    refine,
    text_anchor_logits,
    visual_consistency,
)
from noisegate.pipeline.labels.tango import semantic as anchors_module
from noisegate.pipeline.labels.tango.semantic import AnchorVotes
from noisegate.pipeline.neighbours import find_neighbours, near_duplicates
from noisegate.pipeline.runs.rows import RowBlocks
from noisegate.pipeline.system.array_types import Float64, Index, Mask
from tests.errors import refused

small = settings(max_examples=80, deadline=None)
seeds = st.integers(0, 2**32 - 1)


def random_graph(rng: np.random.Generator) -> tuple[Index, Index, int]:
    """(lists, labels, classes): lists of unequal length, unlabelled rows, absent classes."""
    n, classes = int(rng.integers(1, 15)), int(rng.integers(1, 5))
    k = int(rng.integers(0, n)) if n > 1 else 0
    lists = np.array([rng.permutation(np.delete(np.arange(n), i))[:k] for i in range(n)], dtype=np.int64)
    lists = lists.reshape(n, k)
    lists[rng.random((n, k)) < 0.3] = -1
    labels = rng.integers(-1, classes, n)
    return lists, labels, classes


def onehot(label: int, classes: int) -> Float64:
    return np.eye(classes)[label] if label >= 0 else np.full(classes, np.nan)


def loop_p_vis(lists: Index, labels: Index, classes: int) -> Float64:
    size = [sum(labels == c) for c in range(classes)]
    result = []
    for i in range(len(labels)):
        score = np.zeros(classes)
        for j in lists[i]:
            if j >= 0 and labels[j] >= 0:
                score[labels[j]] += 1 / size[labels[j]]
        result.append(score / score.sum() if score.sum() > 0 else onehot(labels[i], classes))
    return np.array(result)


def loop_y_vis(lists: Index, labels: Index, classes: int) -> tuple[Float64, list[int]]:
    fallback = loop_p_vis(lists, labels, classes)
    soft, indegree = [], []
    for i in range(len(labels)):
        pickers = [j for j in range(len(labels)) if i in lists[j] and labels[j] >= 0]
        indegree.append(len(pickers))
        soft.append(np.mean([onehot(labels[j], classes) for j in pickers], axis=0) if pickers else fallback[i])
    return np.array(soft), indegree


# Neighbours


def test_a_minority_class_wins_against_two_votes() -> None:
    """Neighbours carry (0, 0, 1), class sizes are (4, 1): s = (2/4, 1/1), p = (1/3, 2/3)."""
    lists = np.full((5, 3), -1)
    lists[0] = [1, 2, 4]
    p = visual_consistency(lists, [0, 0, 0, 0, 1], classes=2)
    np.testing.assert_allclose(p[0], [1 / 3, 2 / 3], rtol=1e-6)


def test_reverse_lists_by_hand() -> None:
    """0 lists 1, 1 lists 0, 2 lists 0; labels (0, 1, 1): 0 hears 1 and 2, 1 hears 0, nobody lists 2."""
    soft, indegree = propagate_labels(np.array([[1], [0], [0]]), [0, 1, 1], classes=2)
    assert soft[:2].tolist() == [[0, 1], [1, 0]]
    assert indegree.tolist() == [2, 1, 0]
    assert soft[2].tolist() == [1, 0]  # what 2 itself lists
    alone, _ = propagate_labels(np.array([[1], [0], [-1]]), [0, 1, 1], classes=2)
    assert alone[2].tolist() == [0, 1]  # its own label


@small
@given(seeds)
def test_visual_consistency_equals_a_loop(seed: int) -> None:
    lists, labels, classes = random_graph(np.random.default_rng(seed))
    p = visual_consistency(lists, labels, classes)
    np.testing.assert_allclose(p, loop_p_vis(lists, labels, classes), atol=1e-6)
    defined = ~np.isnan(p).any(axis=1)
    np.testing.assert_allclose(p[defined].sum(axis=1), 1, atol=1e-6)


@small
@given(seeds)
def test_propagated_labels_equal_a_loop(seed: int) -> None:
    lists, labels, classes = random_graph(np.random.default_rng(seed))
    soft, indegree = propagate_labels(lists, labels, classes)
    expected, expected_indegree = loop_y_vis(lists, labels, classes)
    np.testing.assert_allclose(soft, expected, atol=1e-6)
    assert indegree.tolist() == expected_indegree


def test_rows_sum_to_1_and_indegrees_to_n_k() -> None:
    rng = np.random.default_rng(0)
    graph = find_neighbours(rng.standard_normal((300, 8)), 12)
    labels = rng.integers(0, 7, 300)
    soft, indegree = propagate_labels(graph, labels, 7)
    assert indegree.sum() == 300 * 12
    np.testing.assert_allclose(soft.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(visual_consistency(graph, labels, 7).sum(axis=1), 1, atol=1e-6)


def test_with_itself_listed_every_row_is_listed_at_least_once() -> None:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((200, 16))
    labels = rng.integers(0, 3, 200)
    assert (propagate_labels(find_neighbours(rows, 3), labels, 3)[1] == 0).any()
    soft, indegree = propagate_labels(find_neighbours(rows, 3, include_self=True), labels, 3)
    assert indegree.min() == 1
    alone = indegree == 1
    assert (soft[alone].argmax(axis=1) == labels[alone]).all()


def test_copies_share_one_vote() -> None:
    """Row 0 lists three copies of one image (class 1) and two others (class 0): 3 votes to 2 become 1 to 2."""
    lists = np.array([[1, 2, 3, 4, 5], *[[-1] * 5] * 5])
    labels = np.array([0, 1, 1, 1, 0, 0])
    copies = np.array([-1, -1, 1, 1, -1, -1])
    plain = visual_consistency(lists, labels, 2)[0]
    np.testing.assert_allclose(plain, [0.4, 0.6], atol=1e-6)  # (2/3, 3/3)
    shared = visual_consistency(lists, labels, 2, duplicates=copies)[0]
    np.testing.assert_allclose(shared, [0.4, 0.6], atol=1e-6)  # (2/3, 1/1): the class is smaller as well
    labels[1] = 0  # copies that disagree: class 0 has rows 0, 4, 5 and a third of the image, class 1 two thirds
    split = visual_consistency(lists, labels, 2, duplicates=copies)[0]
    score = np.array([(2 + 1 / 3) / (3 + 1 / 3), (2 / 3) / (2 / 3)])
    np.testing.assert_allclose(split, score / score.sum(), atol=1e-6)


@small
@given(seeds)
def test_copies_never_change_a_graph_without_copies(seed: int) -> None:
    lists, labels, classes = random_graph(np.random.default_rng(seed))
    nobody = np.full(len(labels), -1)
    np.testing.assert_allclose(
        visual_consistency(lists, labels, classes, duplicates=nobody), visual_consistency(lists, labels, classes)
    )


def test_k_copies_fill_a_list_with_their_own_label_unless_they_share() -> None:
    rng = np.random.default_rng(0)
    rows = np.concatenate([np.tile(rng.standard_normal(8), (10, 1)), rng.standard_normal((30, 8))])
    labels = np.concatenate([np.zeros(10, dtype=int), rng.integers(1, 4, 30)])
    graph = find_neighbours(rows, 9)
    assert visual_consistency(graph, labels, 4)[:10, 0].min() == 1
    wider = find_neighbours(rows, 15)
    shared = visual_consistency(wider, labels, 4, duplicates=near_duplicates(wider))
    assert (shared[:10, 0] < 1).all()


def test_neighbour_arguments_that_do_not_fit_are_named() -> None:
    with refused("neighbours", ("int64", (1, 2))) as caught:
        visual_consistency(np.array([[7, 0]]), [0], 1)
    assert "largest entry 7, for 1 labels; give (1, k) row numbers below 1, -1 for none" in str(caught.value)
    with refused("neighbours", ("float64", (2, 1))):
        visual_consistency(np.array([[1.0], [0.0]]), [0, 0], 1)
    with refused("neighbours", ("uint32", (3, 1))):
        visual_consistency(np.zeros((3, 1), np.uint32), [0, 1], 2)
    with refused("neighbours", ("<U1", (1, 1))):
        visual_consistency(np.array([["a"]]), [0], 1)
    with refused("labels", (0, 2)):
        visual_consistency(np.array([[1], [0]]), [0, 2], 2)
    with refused("labels", ("float64", (2,))):
        visual_consistency(np.array([[1], [0]]), [0.0, 1.0], 2)
    with refused("classes", 0):
        visual_consistency(np.array([[1], [0]]), [0, 0], 0)
    with refused("duplicates", (1,)):
        visual_consistency(np.array([[1], [0]]), [0, 0], 1, duplicates=[-1])


# Anchors


def random_anchors(rng: np.random.Generator) -> tuple[Float64, Float64, Index, int]:
    """(images, anchors, anchor labels, classes) of ±1 in 4 columns: exact cosines, ties, copies; some images invalid."""
    n, classes = int(rng.integers(1, 14)), int(rng.integers(1, 4))
    labels = np.concatenate([np.arange(classes), rng.integers(0, classes, int(rng.integers(0, 9)))])
    images = rng.choice([-1.0, 1.0], (n, 4))
    images[rng.random(n) < 0.15] = 0
    images[rng.random(n) < 0.1, 2] = np.nan
    return images, rng.choice([-1.0, 1.0], (len(labels), 4)), labels, classes


def is_valid(images: Float64) -> Mask:
    valid: Mask = np.isfinite(images).all(axis=1) & (images != 0).any(axis=1)
    return valid


def loop_p_sem(images: Float64, anchors: Float64, labels: Index, classes: int) -> Float64:
    nearest = max(1, len(anchors) // classes)
    texts = [sum(labels == c) for c in range(classes)]
    result = []
    for image, ok in zip(images, is_valid(images), strict=True):
        cosine = anchors @ image
        score = np.zeros(classes)
        for j in range(len(anchors)):
            if ok and cosine[j] >= sorted(cosine)[-nearest]:
                score[labels[j]] += 1 / texts[labels[j]]
        result.append(score / score.sum() if ok else np.full(classes, np.nan))
    return np.array(result)


def loop_y_sem(images: Float64, anchors: Float64, labels: Index, classes: int) -> tuple[Float64, list[int]]:
    rows = np.flatnonzero(is_valid(images))
    quota = min(max(1, len(rows) // classes), len(rows))
    texts = [sum(labels == c) for c in range(classes)]
    score, picks = np.zeros((len(images), classes)), [0] * len(images)
    for j in range(len(anchors)):
        for i in sorted(rows, key=lambda i: (-(images[i] @ anchors[j]), i))[:quota]:
            score[i, labels[j]] += 1 / texts[labels[j]]
            picks[i] += 1
    fallback = loop_p_sem(images, anchors, labels, classes)
    return np.array([s / s.sum() if s.sum() else f for s, f in zip(score, fallback, strict=True)]), picks


@small
@given(seeds)
def test_anchor_consistency_equals_a_loop(seed: int) -> None:
    images, anchors, labels, classes = random_anchors(np.random.default_rng(seed))
    p = anchor_consistency(images, anchors, labels, classes)
    np.testing.assert_allclose(p, loop_p_sem(images, anchors, labels, classes), atol=1e-6)
    np.testing.assert_allclose(p[is_valid(images)].sum(axis=1), 1, atol=1e-6)


@settings(max_examples=10, deadline=None)
@given(seeds)
def test_anchors_that_are_equally_near_all_count_however_many_images_are_scored_at_once(seed: int) -> None:
    """Whole numbers, of which the cosines that are equal are told by their squares; float32 makes different ones."""
    rng = np.random.default_rng(seed)
    classes, width = int(rng.integers(2, 4)), int(rng.integers(2, 7))
    labels = np.concatenate([np.arange(classes), rng.integers(0, classes, 9)])
    images, anchors = (rng.integers(1, 4, (n, width)) for n in (30, len(labels)))
    p = anchor_consistency(images.astype(float), anchors.astype(float), labels, classes)
    for row, image in enumerate(images):
        alone = anchor_consistency(image[None].astype(float), anchors.astype(float), labels, classes)
        np.testing.assert_array_equal(p[row], alone[0])
        squares = [Fraction(int(anchor @ image) ** 2, int(anchor @ anchor)) for anchor in anchors]
        least = sorted(squares)[-max(1, len(anchors) // classes)]
        score = np.zeros(classes)
        for square, label in zip(squares, labels, strict=True):
            score[label] += (square >= least) / (labels == label).sum()
        np.testing.assert_allclose(p[row], score / score.sum(), atol=1e-6)


@small
@given(seeds)
def test_injected_truth_equals_a_loop(seed: int) -> None:
    images, anchors, labels, classes = random_anchors(np.random.default_rng(seed))
    soft, picks = inject_truth(images, anchors, labels, classes)
    expected, expected_picks = loop_y_sem(images, anchors, labels, classes)
    np.testing.assert_allclose(soft, expected, atol=1e-6)
    assert picks.tolist() == expected_picks


def test_anchors_pick_a_floor_of_n_over_c_images_each() -> None:
    rng = np.random.default_rng(0)
    images, anchors = rng.standard_normal((103, 6)), rng.standard_normal((50, 6))
    labels = np.repeat(np.arange(10), 5)
    soft, picks = inject_truth(images, anchors, labels, 10)
    assert picks.sum() == 50 * 10
    np.testing.assert_allclose(soft.sum(axis=1), 1, atol=1e-6)
    assert inject_truth(images, anchors, labels, 10, quota=7)[1].sum() == 50 * 7
    assert inject_truth(images, anchors, labels, 10, quota=np.arange(10))[1].sum() == 5 * 45
    assert inject_truth(images, anchors, labels, 10, quota=1000)[1].tolist() == [50] * 103
    assert inject_truth(images[:3], anchors, labels, 10)[1].sum() == 50  # N < C: one each


def test_images_that_are_read_again_for_some_anchors_are_picked_as_those_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(1)
    images = rng.integers(-1, 2, (60, 4)).astype(np.float32)  # copies, and some without a direction
    votes = AnchorVotes.of(np.eye(4)[np.arange(12) % 4] + 0.1 * rng.standard_normal((12, 4)), np.arange(12) % 3, 3)
    monkeypatch.setattr(anchors_module, "AT_ONCE", 40)  # one anchor and a few images at a time
    for quota in (None, 7, np.array([2, 0, 11])):
        (soft, picks), (read, read_picks) = (votes.truth(RowBlocks(images), quota, held) for held in (10_000, 0))
        np.testing.assert_array_equal(picks, read_picks)
        np.testing.assert_array_equal(soft[slice(0, 60)].toarray(), read[slice(0, 60)].toarray())


def test_a_text_shared_by_two_classes_speaks_for_both() -> None:
    text = np.random.default_rng(0).standard_normal(37)
    anchors = np.stack([text, -text, text])
    p = anchor_consistency(text[None], anchors, [0, 1, 2], 3)
    np.testing.assert_allclose(p[0], [0.5, 0, 0.5], atol=1e-6)


def test_blocks_of_images_give_what_the_whole_gives() -> None:
    rng = np.random.default_rng(3)
    images, anchors = rng.standard_normal((50, 5)), rng.standard_normal((12, 5))
    labels = np.arange(12) % 3
    blocks = [images[:20], images[20:]]
    for function in (anchor_consistency, text_anchor_logits):
        np.testing.assert_allclose(
            function(blocks, anchors, labels, 3), function(images, anchors, labels, 3), rtol=1e-5
        )
    np.testing.assert_array_equal(
        inject_truth(blocks, anchors, labels, 3)[1], inject_truth(images, anchors, labels, 3)[1]
    )


def test_one_class_has_all_shares() -> None:
    images, anchors = np.eye(3), np.ones((4, 3))
    assert anchor_consistency(images, anchors, [0] * 4, 1).tolist() == [[1]] * 3
    assert inject_truth(images, anchors, [0] * 4, 1)[1].tolist() == [4] * 3


def anchors_at(cosines: list[float], each: int) -> Float64:
    """`each` unit texts at every cosine to the image (1, 0)."""
    return np.repeat([[c, math.sqrt(1 - c * c)] for c in cosines], each, axis=0)


@pytest.mark.parametrize(("each", "scale", "gap"), [(40, None, 5.138242), (1, None, 0.128456), (7, 40.0, 5.138242)])
def test_text_anchored_classifier_gap_of_two_classes(each: int, scale: float | None, gap: float) -> None:
    labels = np.repeat([0, 1], each)
    logits = text_anchor_logits(np.array([[1.0, 0.0]]), anchors_at([0.30, 0.20], each), labels, 2, scale=scale)
    assert logits[0, 0] - logits[0, 1] == pytest.approx(gap, abs=2e-5)


@small
@given(seeds)
def test_text_anchored_classifier_equals_a_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    images, anchors, labels, classes = random_anchors(rng)
    logits = text_anchor_logits(images, anchors, labels, classes, scale=3.0)
    for image, ok, row in zip(images, is_valid(images), logits, strict=True):
        expected = [3 * np.mean(np.exp(anchors[labels == c] @ image / 4)) if ok else np.nan for c in range(classes)]
        np.testing.assert_allclose(row, expected, rtol=1e-5)


def test_anchors_that_cannot_vote_are_named() -> None:
    images, anchors = np.eye(2), np.eye(2)
    with refused("anchors", [1]):
        anchor_consistency(images, anchors, [0, 0], 2)
    with refused("anchors", 1):
        anchor_consistency(images, np.array([[1.0, 0], [0, 0]]), [0, 1], 2)
    with refused("anchor_labels", (3,)):
        anchor_consistency(images, anchors, [0, 1, 1], 2)
    with refused("quota", -1):
        inject_truth(images, anchors, [0, 1], 2, quota=-1)


# Refinement


def loop_best(share: Float64, given_label: int) -> int:
    """argmax; the given label wins ties, then the lower class."""
    if given_label >= 0 and share[given_label] >= share.max() - 1e-9:
        return given_label
    return int(np.flatnonzero(share >= share.max() - 1e-12)[0])


@small
@given(seeds, st.sampled_from(["both", "neighbours", "anchors"]), st.sampled_from([0.5, 0.2, 1.0]))
def test_refinement_equals_a_loop(seed: int, sources: str, b: float) -> None:
    rng = np.random.default_rng(seed)
    images, anchors, anchor_labels, classes = random_anchors(rng)
    given_labels = rng.integers(-1, classes, len(images))
    valid = is_valid(images)
    labels = np.where(valid, given_labels, -1)
    graph = find_neighbours(images, 3)
    result = refine(
        given_labels,
        classes,
        neighbours=None if sources == "anchors" else graph,
        images=None if sources == "neighbours" else images,
        anchors=None if sources == "neighbours" else anchors,
        anchor_labels=None if sources == "neighbours" else anchor_labels,
        b=b,
    )
    lists = graph.indices.astype(np.int64)
    p_vis, (y_vis, indegree) = loop_p_vis(lists, labels, classes), loop_y_vis(lists, labels, classes)
    p_sem, (y_sem, picks) = (
        loop_p_sem(images, anchors, anchor_labels, classes),
        loop_y_sem(images, anchors, anchor_labels, classes),
    )
    for i, y in enumerate(labels):
        if not valid[i] and (sources != "neighbours" or valid.sum() > 1):
            assert result.invalid[i]
            assert not result.clean_tango[i]
            assert result.label[i] == given_labels[i]
            assert np.isnan([result.q[i], result.consistency[i], result.confidence[i]]).all()
            assert not (result.no_neighbours[i] or result.indegree0[i] or result.unpicked[i])
            continue
        if not valid[i]:
            continue  # one valid row at most: a graph alone cannot tell the others from it
        assert not result.invalid[i]
        assert result.unlabelled[i] == (y < 0)
        q, soft = {
            "both": ((1 - b) * p_vis[i] + b * p_sem[i], (1 - b) * y_vis[i] + b * y_sem[i]),
            "neighbours": (p_vis[i], y_vis[i]),
            "anchors": (p_sem[i], y_sem[i]),
        }[sources]
        if sources == "both" and np.isnan(p_vis[i]).any():
            q, soft = p_sem[i], (1 - b) * y_vis[i] + b * y_sem[i] if indegree[i] else y_sem[i]
        if sources != "anchors":
            assert result.indegree0[i] == (indegree[i] == 0)
            assert result.no_neighbours[i] == (not any(labels[j] >= 0 for j in graph.indices[i] if j >= 0))
        if sources != "neighbours":
            assert result.unpicked[i] == (picks[i] == 0)
        if np.isnan(soft).any():
            assert result.label[i] == y
            assert np.isnan(result.confidence[i])
        else:
            assert result.label[i] == loop_best(soft, y)
            assert result.confidence[i] == pytest.approx(soft.max(), abs=1e-6)
        if y < 0:
            assert np.isnan([result.q[i], result.consistency[i]]).all()
            assert not result.clean_tango[i]
            continue
        assert result.q[i] == pytest.approx(q[y], abs=1e-6)
        assert result.consistency[i] == pytest.approx(q[y] / q.max(), abs=1e-6)
        assert result.clean_tango[i] == (loop_best(q, y) == y)
        assert result.clean_tango[i] == (result.consistency[i] == 1)
        if sources != "anchors":
            assert result.p_vis[i] == pytest.approx(p_vis[i, y], abs=1e-6)
        if sources != "neighbours":
            assert result.p_sem[i] == pytest.approx(p_sem[i, y], abs=1e-6)


def test_the_given_label_wins_ties_and_then_the_lower_class() -> None:
    labels = [0, 0, 1, 1, 2, 2]
    lists = np.array([[2, 4], [2, 4], [1, 3], [-1, -1], [1, 3], [-1, -1]])
    result = refine(labels, 3, neighbours=lists)
    assert result.clean_tango[[2, 4]].tolist() == [True, False]  # both hear 0 and 1 alike
    assert result.label[3] == 1  # listed by a 1 and a 2, carries 1
    assert result.label[1] == 1  # listed by the same two, carries 0


def test_the_given_label_wins_a_tie_that_rounding_would_break() -> None:
    """0.3/2 of neighbours alone ties with 0.1/2 + 0.2/2, which is 0.15000000000000002 in floating point."""
    labels = np.tile(np.arange(10), 5)
    lists = np.full((50, 10), -1)
    lists[1] = [10, 11, 21, 31, 2, 3, 4, 5, 6, 7]  # one vote for class 0, three for class 1, one each for 2 to 7
    anchors, anchor_labels = np.tile([0.0, 1.0], (100, 1)), np.repeat(np.arange(10), 10)
    anchors[[0, 1, *range(20, 100, 10)]] = [1, 0]  # nearest to every image: two of class 0, one each of 2 to 9
    result = refine(
        labels, 10, neighbours=lists, images=np.tile([1.0, 0.0], (50, 1)), anchors=anchors, anchor_labels=anchor_labels
    )
    assert result.q[1] == pytest.approx(0.15)
    assert result.clean_tango[1]
    assert result.consistency[1] == 1


def test_rows_without_neighbours_keep_their_label_and_say_so() -> None:
    result = refine([1, 0], 2, neighbours=np.array([[-1], [-1]]))
    assert result.no_neighbours.tolist() == result.indegree0.tolist() == [True, True]
    assert result.clean_tango.tolist() == [True, True]
    assert result.label.tolist() == [1, 0]
    assert refine([0], 1, neighbours=find_neighbours(np.ones((1, 2)), 5)).no_neighbours.tolist() == [True]


def test_an_invalid_row_leaves_the_class_counts() -> None:
    images = np.array([[1.0, 0.0], [1, 0.1], [1, 0.2], [np.nan, 0], [np.nan, 0]])
    labels = np.array([0, 0, 1, 1, 1])
    graph = find_neighbours(images, 2)
    result = refine(labels, 2, neighbours=graph)
    assert result.invalid.tolist() == [False] * 3 + [True] * 2
    # Row 0 hears one 0 of two and the only valid 1: (1/2, 1/1).
    assert result.p_vis[0] == pytest.approx(1 / 3)
    named = refine(labels, 2, neighbours=graph.indices, invalid=[False, False, True, True, True])
    assert named.p_vis[0] == 1


def test_one_class_is_clean_and_warns(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        result = refine([1, 1, 1], 3, neighbours=np.array([[1], [2], [0]]))
    assert result.clean_tango.all()
    assert (result.consistency == 1).all()
    assert "one class" in caplog.text


def test_refinement_finds_planted_noise_and_its_truth() -> None:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((4, 16))
    truth = rng.integers(0, 4, 400)
    images = centres[truth] + 0.5 * rng.standard_normal((400, 16))
    noisy = rng.random(400) < 0.3
    labels = np.where(noisy, (truth + rng.integers(1, 4, 400)) % 4, truth)
    anchors = np.repeat(centres, 5, axis=0) + 0.3 * rng.standard_normal((20, 16))
    result = refine(
        labels,
        4,
        neighbours=find_neighbours(images, 20),
        images=images,
        anchors=anchors,
        anchor_labels=np.repeat(np.arange(4), 5),
    )
    assert (result.clean_tango == ~noisy).mean() > 0.97
    assert (result.label == truth).mean() > 0.97
    assert result.q.dtype == result.confidence.dtype == np.float32
    assert result.label.dtype == np.int32


def test_refine_settings_that_cannot_work_are_named() -> None:
    lists = np.array([[1], [0]])
    with refused("neighbours", None):
        refine([0, 1], 2)
    with refused("anchors", None):
        refine([0, 1], 2, anchors=np.eye(2))
    with refused("b", 1.5):
        refine([0, 1], 2, neighbours=lists, b=1.5)
    with refused("images", 3):
        refine([0, 1], 2, images=np.eye(3), anchors=np.eye(3)[:2], anchor_labels=[0, 1])
    with refused("invalid", (1,)):
        refine([0, 1], 2, neighbours=lists, invalid=[True])


def test_anchors_of_another_space_are_named() -> None:
    images, anchors = np.ones((3, 4)), np.ones((2, 5))
    for of in (anchor_consistency, inject_truth, text_anchor_logits):
        with refused("anchors", 5):
            of(images, anchors, [0, 1], 2)
    with refused("anchors", 5):
        refine([0, 1, 1], 2, images=images, anchors=anchors, anchor_labels=[0, 1])
