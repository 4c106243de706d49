"""What training and evaluation do to pictures."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pydantic import ValidationError

from noisegate.pipeline.settings import Limits
from noisegate.pipeline.shards.preprocess import Preprocess
from noisegate.trainers.targets.pictures import Augment, PictureTransform, crop_box, pixel_scaling
from tests.pipeline.shards.tars import encoded

PLAIN = Preprocess(size=16)


def gradient(width: int = 40, height: int = 30) -> Image.Image:
    rows = np.linspace(0, 255, width, dtype=np.uint8)
    return Image.fromarray(np.stack([np.tile(rows, (height, 1))] * 3, -1))


def test_evaluation_is_the_estimators_preprocessing() -> None:
    pixels = PictureTransform(PLAIN)(gradient())
    assert pixels.dtype == torch.uint8
    assert np.array_equal(pixels.numpy(), PLAIN(gradient()).transpose(2, 0, 1))
    mean, std = pixel_scaling(PLAIN)
    expected = (PLAIN(gradient()).astype(np.float64) / 255 - np.array(PLAIN.mean)) / np.array(PLAIN.std)
    np.testing.assert_allclose(((pixels - mean) / std)[0].numpy(), expected.transpose(2, 0, 1), atol=1e-5)


def test_training_without_chance_is_evaluation() -> None:
    still = PictureTransform(PLAIN, Augment(crop=None))
    assert still.deterministic and not PictureTransform(PLAIN, Augment()).deterministic
    assert torch.equal(still(gradient()), PictureTransform(PLAIN)(gradient()))


def test_the_same_generator_gives_the_same_picture() -> None:
    how = PictureTransform(PLAIN, Augment(crop=(0.3, 1), flip=0.5))
    pictures = [how(gradient(), np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert torch.equal(pictures[0], pictures[1]) and not torch.equal(pictures[0], pictures[2])
    assert pictures[0].shape == (3, 16, 16)


@pytest.mark.parametrize("augment", [None, Augment(crop=(0.5, 1), flip=0.5), Augment(crop=None, flip=0.5)])
def test_both_decoders_see_the_same_part_of_a_file(augment: Augment | None) -> None:
    data, limits = encoded(gradient(160, 120), "JPEG", quality=95), Limits()
    ours, pillows = (
        PictureTransform(Preprocess(size=32, decoder=decoder), augment).decode(data, limits, np.random.default_rng(5))
        for decoder in ("fast", "pillow")
    )
    assert ours.shape == pillows.shape == (3, 32, 32) and ours.is_contiguous()
    assert (ours.int() - pillows.int()).abs().max() <= 2


def test_a_large_jpeg_keeps_enough_pixels_for_the_smallest_crop() -> None:
    how = PictureTransform(Preprocess(size=16, decoder="fast"), Augment(crop=(0.25, 1)))
    assert how.least_side == math.ceil(3 * 16 / math.sqrt(0.25 * 0.75))
    assert PictureTransform(PLAIN, Augment()).least_side is None
    assert how.decode(encoded(gradient(640, 480), "JPEG"), Limits(), np.random.default_rng(1)).shape == (3, 16, 16)


def test_flip_mirrors() -> None:
    straight, mirrored = (PictureTransform(PLAIN, Augment(crop=None, flip=flip))(gradient()) for flip in (0, 1))
    assert torch.equal(mirrored, straight.flip(-1)) and not torch.equal(mirrored, straight)


@pytest.mark.parametrize(
    ("wrong", "message"), [({"crop": (0.0, 1.0)}, "two shares of the area"), ({"flip": 2}, "flip")]
)
def test_settings_that_cannot_work(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Augment.model_validate(wrong)


@settings(max_examples=40)
@given(st.integers(1, 500), st.integers(1, 500), st.floats(0.05, 1), st.integers(0, 99))
def test_crops_lie_inside_and_have_the_area(width: int, height: int, smallest: float, seed: int) -> None:
    left, top, right, bottom = crop_box(width, height, (smallest, 1.0), (0.75, 4 / 3), np.random.default_rng(seed))
    assert 0 <= left < right <= width and 0 <= top < bottom <= height
    if min(width, height) > 100 and 0.75 <= width / height <= 4 / 3:
        assert (right - left) * (bottom - top) >= smallest * width * height * 0.97
        assert 0.74 <= (right - left) / (bottom - top) <= 1.35
