"""Registered class sets against plain loops over their texts."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from noisegate.pipeline.estimators.base import normalise
from noisegate.service.errors import ApiError
from noisegate.service.runs.class_sets import ClassSets
from tests.errors import refused
from tests.fakes import ZERO, ColourModel
from tests.service.fakes import FakeEngine


@pytest.fixture
def sets(tmp_path: Path) -> ClassSets:
    (tmp_path / "colours.txt").write_text("red\ngreen\nblue\n")
    sets = ClassSets({"colours": str(tmp_path / "colours.txt"), "cifar10": "cifar10"})
    asyncio.run(sets.warm_up(FakeEngine().embed_texts))
    return sets


def test_judged_as_a_plain_loop_does(sets: ClassSets) -> None:
    rng = np.random.default_rng(3)
    images = normalise(np.abs(rng.standard_normal((4, 24))))
    anchors = sets.get("colours").anchors
    assert anchors.embeddings.shape == (120, 24)
    labels = [0, "blue", None, "green"]
    found = sets.get("colours").judge(images, labels)
    for image, label, judged in zip(images, labels, found, strict=True):
        cosines = [float(np.dot(image.astype(np.float64), row)) for row in anchors.embeddings]
        sums = [sum(np.exp(c) for c, a in zip(cosines, anchors.labels, strict=True) if a == k) for k in range(3)]
        chances = [np.exp(s - max(sums)) for s in sums]
        expected = sorted(((c / sum(chances), k) for k, c in enumerate(chances)), reverse=True)
        assert [p.label for p in judged.predicted] == [k for _, k in expected]
        assert [p.name for p in judged.predicted] == [("red", "green", "blue")[k] for _, k in expected]
        np.testing.assert_allclose([p.probability for p in judged.predicted], [c for c, _ in expected], atol=1e-5)
        nearest = np.argsort(-np.array(cosines), kind="stable")[:40]
        share = [float((anchors.labels[nearest] == k).mean()) for k in range(3)]
        assert judged.refined_confidence == pytest.approx(max(share))
        if label is None:
            assert judged.anchor_consistency is judged.clean_tango is None
            continue
        y = label if isinstance(label, int) else ("red", "green", "blue").index(label)
        assert judged.label == y
        assert judged.anchor_consistency == pytest.approx(share[y])
        assert judged.consistency == pytest.approx(share[y] / max(share))
        assert judged.clean_tango == (share[y] == max(share))


def test_at_most_five_classes_are_named_with_the_probabilities_of_all(sets: ClassSets) -> None:
    [judged] = sets.get("cifar10").judge(normalise(np.ones((1, 24))), ["cat"])
    assert len(judged.predicted) == 5
    assert judged.label == 3
    chances = [p.probability for p in judged.predicted]
    assert chances == sorted(chances, reverse=True)
    assert 0.5 < sum(chances) < 1


def test_a_label_that_is_no_class_is_a_status(sets: ClassSets) -> None:
    bad, good = sets.get("colours").judge(normalise(np.ones((2, 24))), ["purple", 2])
    assert (bad.status, good.status) == ("bad_label", "ok")
    assert bad.error == "label 'purple' is no class; use 0 to 2 or one of: red, green, blue"
    assert bad.predicted == good.predicted


def test_no_picture_no_prediction(sets: ClassSets) -> None:
    [judged] = sets.get("colours").judge(np.zeros((1, 24), np.float32), [0])
    assert judged.predicted == ()
    assert judged.anchor_consistency is judged.refined_label is None


def test_unknown_and_not_yet_embedded(tmp_path: Path) -> None:
    sets = ClassSets({"cifar10": "cifar10"})
    assert not sets.ready()
    with pytest.raises(ApiError) as unknown:
        sets.get("cifar100")
    assert (unknown.value.status, unknown.value.code) == (404, "unknown_classes")
    with pytest.raises(ApiError) as early:
        sets.get("cifar10")
    assert (early.value.status, early.value.code) == (503, "not_ready")
    asyncio.run(sets.warm_up(FakeEngine().embed_texts))
    assert sets.ready()
    assert sets.get("cifar10").anchors.embeddings.shape == (400, 24)


def test_a_set_that_cannot_be_read_or_embedded_says_which(tmp_path: Path) -> None:
    with refused("classes", str(tmp_path / "nowhere.txt")):
        ClassSets({"mine": str(tmp_path / "nowhere.txt")})
    (tmp_path / "odd.json").write_text(f'{{"a": ["{ZERO}"]}}')
    sets = ClassSets({"odd": str(tmp_path / "odd.json")})

    async def encode(texts: object) -> object:
        return normalise(ColourModel().encode_texts(list(texts)))  # type: ignore[call-overload]

    with refused("classes", ZERO):
        asyncio.run(sets.warm_up(encode))  # type: ignore[arg-type]
