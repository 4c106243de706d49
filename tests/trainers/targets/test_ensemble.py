"""Two networks as one."""

import pytest
import torch

from noisegate.trainers.targets import Ensemble, as_one, concat, take
from tests.errors import refused
from tests.trainers.small_targets import CAPTIONS, KINDS, inputs, small


@pytest.mark.parametrize("kind", KINDS)
def test_similarities_are_averaged(kind: str) -> None:
    one, other = small(kind, seed=1), small(kind, seed=2)
    both = Ensemble([one, other])
    images, tokens = inputs(kind), one.tokenize(CAPTIONS)
    found = both(images, tokens)
    each = [target.similarity(*target(images, tokens)) for target in (one, other)]
    torch.testing.assert_close(both.similarity(*found), (each[0] + each[1]) / 2)
    within = [target.vector_similarity(*[target.encode_images(images)] * 2) for target in (one, other)]
    torch.testing.assert_close(both.vector_similarity(found[0], found[0]), (within[0] + within[1]) / 2)
    parts = concat([take(found[1], [0]), take(found[1], [1, 2, 3])])
    torch.testing.assert_close(both.similarity(found[0], parts), (each[0] + each[1]) / 2)


@pytest.mark.parametrize("head", ["prompts", "linear"])
def test_class_logits_are_averaged(head: str) -> None:
    members = [small("dual", seed=seed, classes=["dog", "cat"], head=head) for seed in (1, 2)]
    both = Ensemble(members)
    images = inputs("dual")
    expected = sum(member.class_logits(member.encode_images(images)) for member in members) / 2
    found = both.encode_images(images)
    torch.testing.assert_close(both.class_logits(found), expected)
    if head == "prompts":
        torch.testing.assert_close(both.class_logits(found, both.encode_classes()), expected)
        torch.testing.assert_close(both.class_similarity(found) * both.scale, expected)


def test_one_network_stays_itself_and_none_is_refused() -> None:
    target = small("dual")
    assert as_one([target]) is target
    assert isinstance(as_one([target, small("dual", seed=1)]), Ensemble)
    with refused("members", 0):
        Ensemble([])


def test_members_read_pictures_and_texts_alike() -> None:
    target = small("clip")
    both = Ensemble([target, small("clip", seed=1)])
    assert torch.equal(both.tokenize(CAPTIONS), target.tokenize(CAPTIONS))
    assert torch.equal(both.pixels(inputs("clip")), target.pixels(inputs("clip")))
    assert both.image_transform(False) == target.image_transform(False)
