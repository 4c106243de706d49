"""Verdicts on labels from shares: ties count for the given class, here as in the table."""

import numpy as np

from noisegate.pipeline.estimators.base import normalise
from noisegate.pipeline.labels.anchors import Anchors
from noisegate.service.runs.judging import Judged, anchor_shares, judge_labels


def test_what_ties_in_exact_arithmetic_ties_here() -> None:
    rng = np.random.default_rng(5)
    anchors = Anchors(("a", "b", "c"), normalise(rng.standard_normal((120, 8))), np.repeat([0, 1, 2], 40))
    images = np.concatenate([normalise(rng.standard_normal((50, 8))), np.zeros((1, 8), np.float32)])
    p_sem = anchor_shares(images, anchors, 3)
    votes = p_sem[:50] * 40
    np.testing.assert_allclose(votes, np.round(votes), rtol=0, atol=1e-12)  # float32 misses by 1e-6
    assert np.isnan(p_sem[50]).all()
    uneven = np.flatnonzero(np.ptp(p_sem[:50], axis=1) > 0)
    p_vis = 2 / 3 - p_sem[uneven]  # q is 1/3 everywhere: the given class is beaten by none
    judged = [Judged() for _ in uneven]
    judge_labels(p_vis, p_sem[uneven], np.full(len(uneven), 2), anchors.names, judged)
    assert len(uneven) > 40
    assert {(result.clean_tango, result.consistency, result.refined_label) for result in judged} == {(True, 1.0, 2)}


def test_no_images_have_no_shares() -> None:
    anchors = Anchors(("a", "b"), np.eye(2, dtype=np.float32), np.array([0, 1]))
    assert anchor_shares(np.zeros((0, 2), np.float32), anchors, 2).shape == (0, 2)
