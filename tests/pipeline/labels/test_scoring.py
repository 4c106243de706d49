"""All label columns of a run at once: each is what its own function says, and the fused ones see no row's own label."""

from typing import Any

import numpy as np
import pytest

from noisegate.pipeline.inspect.metrics import clean_auroc, relabel_accuracy
from noisegate.pipeline.labels.anchors import Anchors
from noisegate.pipeline.labels.fusion import fuse
from noisegate.pipeline.labels.probe import probe_probabilities
from noisegate.pipeline.labels.scoring import MAX_CLASSES, NEAR, choose_k, count_classes, score_labels
from noisegate.pipeline.labels.tango import anchor_consistency, refine, visual_consistency
from noisegate.pipeline.neighbours import find_neighbours, near_duplicates
from noisegate.pipeline.system.array_types import Index
from tests.embeddings import clusters
from tests.errors import refused

NAMES = ("a", "b", "c", "d")
ANCHORS = Anchors(NAMES, np.eye(4, 12, dtype=np.float32), np.arange(4))


def spoilt(labels: Index, every: int = 5) -> Index:
    """Each `every`-th label moved to the next class."""
    return np.where(np.arange(len(labels)) % every == 0, (labels + 1) % 4, labels)


@pytest.mark.parametrize("anchors", [ANCHORS, None])
def test_columns_are_what_the_pure_functions_say(anchors: Anchors | None) -> None:
    images, true = clusters(count=240)
    images[7] = 0  # no picture
    images[9] = images[8]  # a copy
    given = spoilt(true)
    given[11] = -1
    graph = find_neighbours(images, NEAR + 10)
    found = score_labels([images[:100], images[100:]], given, graph, anchors, seed=3)
    vectors = {} if anchors is None else {"anchors": anchors.embeddings, "anchor_labels": anchors.labels}
    tango = refine(given, 4, neighbours=graph, images=images, **vectors)
    for column, name in (("knn_consistency", "p_vis"), ("anchor_consistency", "p_sem"), ("consistency", "consistency")):
        np.testing.assert_array_equal(found.columns[column], getattr(tango, name))
    np.testing.assert_array_equal(found.columns["clean_tango"], tango.clean_tango)
    usable = np.where(np.arange(240) == 7, -1, given)
    copies = near_duplicates(graph, 0.985)
    assert copies[9] == 8
    probe = probe_probabilities(images, usable, 4, seed=3)
    np.testing.assert_array_equal(
        found.columns["probe_consistency"], np.where(usable >= 0, probe[np.arange(240), usable], np.nan)
    )
    sources = {
        "neighbours": visual_consistency(graph, usable, 4, duplicates=copies),
        "near neighbours": visual_consistency(graph.indices[:, :NEAR], usable, 4, duplicates=copies),
        "probe": probe,
    }
    if anchors is not None:
        sources["anchors"] = anchor_consistency(images, anchors.embeddings, anchors.labels, 4)
    fused = fuse(sources, usable, 4, seed=3)
    for name in (
        "label_quality",
        "clean",
        "predicted_label",
        "predicted_confidence",
        "refined_label",
        "refined_confidence",
    ):
        np.testing.assert_array_equal(found.columns[name], getattr(fused, name))
    np.testing.assert_array_equal(found.columns["clean_probability"], fused.label_quality)
    assert found.facts() == {"k": NEAR + 10, "classes": 4, **fused.facts()}
    assert set(found.flags) == {"no_neighbours", "indegree0", *(["unpicked"] if anchors else [])}


def test_sources_that_are_made_when_asked_for_say_what_kept_ones_say() -> None:
    images, true = clusters(count=240)
    images[7] = 0
    given = spoilt(true)
    given[11] = -1
    graph = find_neighbours(images, NEAR + 10)
    kept, asked = (score_labels(images, given, graph, ANCHORS, seed=3, held=held) for held in (10_000, 0))
    for name, values in kept.columns.items():
        np.testing.assert_allclose(asked.columns[name], values, atol=1e-6)
    assert asked.facts() == kept.facts()


def test_wrong_labels_are_found_and_mended() -> None:
    images, true = clusters(count=400)
    given = spoilt(true)
    found = score_labels([images], given, find_neighbours(images, 20), ANCHORS)
    noisy = given != true
    assert clean_auroc(found.columns["label_quality"], noisy) > 0.99
    assert relabel_accuracy(found.columns["refined_label"], true) > 0.99
    low, high = found.fused.noise_interval
    assert low <= noisy.mean() <= high


def test_rows_without_a_picture_or_a_label_have_no_scores() -> None:
    images, true = clusters(count=120)
    images[4] = np.nan
    given = spoilt(true)
    given[6] = -1
    found = score_labels([images], given, find_neighbours(images, 10), ANCHORS)
    for name in ("knn_consistency", "probe_consistency", "label_quality", "clean_probability", "consistency"):
        assert np.flatnonzero(np.isnan(found.columns[name])).tolist() == [4, 6], name
    assert not found.columns["clean"][[4, 6]].any()
    assert np.isnan(found.columns["refined_confidence"][4])
    assert found.columns["refined_label"][6] == true[6]  # what its label would be
    assert not any(mask[[4, 6]].any() for mask in found.flags.values())


def test_a_label_that_no_neighbour_can_judge_does_not_vouch_for_itself() -> None:
    """With few labels a row's neighbours are often unlabelled; p_vis falls back to the row's own label there."""
    images, true = clusters(count=400, spread=0.6)
    given = np.where(np.arange(400) % 16 < 4, true, -1)
    graph = find_neighbours(images, 2)
    alone = ~(given[graph.indices] >= 0).any(axis=1) & (given >= 0)
    assert alone.sum() > 20
    found = score_labels([images], given, graph)
    assert found.flags["no_neighbours"].tolist() == alone.tolist()
    assert (found.columns["knn_consistency"][alone] == 1).all()  # the paper's column keeps the paper's fall-back
    votes = visual_consistency(graph, given, 4, duplicates=near_duplicates(graph, 0.985))
    probe = probe_probabilities(images, given, 4)
    vouched = fuse({"neighbours": votes, "probe": probe}, given, 4)
    votes[~(given[graph.indices] >= 0).any(axis=1)] = np.nan
    fair = fuse({"neighbours": votes, "probe": probe}, given, 4)
    np.testing.assert_array_equal(found.columns["label_quality"], fair.label_quality)
    assert fair.weights["neighbours"] < vouched.weights["neighbours"]


def test_one_class_and_one_sample_stand_as_they_are() -> None:
    images, _ = clusters(count=30)
    for count, label in ((30, 2), (1, 0)):
        given = np.full(count, label)
        found = score_labels([images[:count]], given, find_neighbours(images[:count], 5))
        assert found.columns["clean"].all()
        assert found.columns["refined_label"].tolist() == given.tolist()
        assert found.classes == label + 1
        assert found.flags["no_neighbours"].all() == (count == 1)


def test_what_cannot_be_judged_is_refused() -> None:
    images, true = clusters(count=20)
    graph = find_neighbours(images, 3)
    cases: list[tuple[Any, Any, str, object]] = [
        (np.full(20, -1), None, "task", "labels"),
        (true, Anchors(NAMES[:3], ANCHORS.embeddings[:3], np.arange(3)), "classes", 3),
        (true, Anchors(NAMES, np.eye(4, 5, dtype=np.float32), np.arange(4)), "anchors", 5),
        (np.where(true == 0, MAX_CLASSES, true), None, "labels", MAX_CLASSES),
    ]
    for labels, anchors, setting, value in cases:
        with refused(setting, value):
            score_labels([images], labels, graph, anchors)
    assert count_classes(np.array([0, -1, MAX_CLASSES - 1]), None) == MAX_CLASSES
    assert count_classes(np.array([0, -1, 1]), ANCHORS) == 4


def test_k_follows_the_data_unless_given() -> None:
    assert [choose_k(n, c, None) for n, c in ((50_000, 100), (2_000, 36), (1, 3))] == [200, 27, 1]
    assert choose_k(10, 2, 700) == 700
    with refused("k", 0):
        choose_k(10, 2, 0)
