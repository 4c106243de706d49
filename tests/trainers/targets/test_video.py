"""The gated video-text embedding against hand-computed values."""

import math

import pytest
import torch

from noisegate.trainers.targets.video import GatedEmbedding
from tests.trainers.small_targets import small


def test_gated_unit_by_hand() -> None:
    unit = GatedEmbedding(2, 2)
    with torch.no_grad():
        unit.embed.weight.copy_(torch.tensor([[1.0, 1.0], [0.0, 2.0]]))
        unit.embed.bias.copy_(torch.tensor([1.0, 0.0]))
        unit.gate.weight.copy_(torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
        unit.gate.bias.copy_(torch.tensor([-2.0, math.log(3.0)]))
    # y = (1 + 1 + 1, 2) = (3, 2); gates σ(2 - 2) = 1/2 and σ(ln 3) = 3/4
    assert unit(torch.tensor([1.0, 1.0])).tolist() == pytest.approx([1.5, 1.5])


def test_gated_unit_has_the_gradient_of_finite_differences() -> None:
    torch.manual_seed(0)
    unit = GatedEmbedding(3, 2).double()
    assert torch.autograd.gradcheck(unit, (torch.randn(2, 3, dtype=torch.float64, requires_grad=True),))


def test_frames_are_maximised_and_padding_is_not_a_frame() -> None:
    target = small("video")
    frames = torch.tensor([[[-1.0, 2, -3, 1, 1, 1], [-2, 1, -1, 1, 1, 1], [0, 0, 0, 0, 0, 0]]])
    largest = torch.tensor([[-1.0, 2, -1, 1, 1, 1]])  # not 0, which stands in the padding
    torch.testing.assert_close(target.encode_images(frames), target.encode_images(largest))


def test_a_caption_is_the_largest_of_its_words() -> None:
    target = small("video")
    tokens = target.tokenize(["a red dog"])
    words = torch.relu(target.sentence(target.words(tokens)))[0]
    expected = target.gate_texts(words.amax(dim=0))
    torch.testing.assert_close(target.encode_texts(tokens)["vectors"][0], expected / expected.norm())
