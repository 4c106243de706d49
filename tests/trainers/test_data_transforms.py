"""Pictures to tensors."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pipeline.errors import ConfigError
from pipeline.preprocess import Preprocess
from trainers.data.transforms import ArrayTensor, EvalImage, TrainImage, crop_box

PLAIN = Preprocess(size=16, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def gradient(width: int = 40, height: int = 30) -> Image.Image:
    rows = np.linspace(0, 255, width, dtype=np.uint8)
    return Image.fromarray(np.stack([np.tile(rows, (height, 1))] * 3, -1))


def test_evaluation_is_the_estimators_preprocessing_normalised() -> None:
    how = Preprocess(size=16)
    pixels = how(gradient()).astype(np.float64) / 255
    expected = ((pixels - np.array(how.mean)) / np.array(how.std)).transpose(2, 0, 1)
    np.testing.assert_allclose(EvalImage(how)(gradient()).numpy(), expected, atol=1e-6)


def test_training_without_chance_is_evaluation() -> None:
    still = TrainImage(PLAIN, scale=(1, 1), ratio=None, flip=0)
    assert torch.equal(still(gradient(), np.random.default_rng(0)), EvalImage(PLAIN)(gradient()))


def test_the_same_generator_gives_the_same_picture() -> None:
    how = TrainImage(PLAIN, scale=(0.3, 1), jitter=(0.4, 0.4, 0.4, 0.1))
    pictures = [how(gradient(), np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert torch.equal(pictures[0], pictures[1]) and not torch.equal(pictures[0], pictures[2])
    assert pictures[0].shape == (3, 16, 16) and pictures[0].dtype == torch.float32


def test_flip_mirrors() -> None:
    straight, mirrored = (
        TrainImage(PLAIN, (1, 1), None, flip)(gradient(), np.random.default_rng(0)) for flip in (0, 1)
    )
    assert torch.equal(mirrored, straight.flip(-1)) and not torch.equal(mirrored, straight)


def test_brightness_scales_and_hue_turns() -> None:
    red = Image.new("RGB", (16, 16), (200, 0, 0))
    rng = np.random.default_rng(3)
    darker = TrainImage(PLAIN, (1, 1), None, 0, (0.5, 0, 0, 0))(red, rng)
    rng = np.random.default_rng(3)
    rng.random()  # the flip
    assert darker[0].mean().item() == pytest.approx(200 / 255 * rng.uniform(0.5, 1.5), abs=0.01)
    turned = TrainImage(PLAIN, (1, 1), None, 0, (0, 0, 0, 0.5))(red, np.random.default_rng(0))
    assert turned.max().item() == pytest.approx(200 / 255, abs=0.01)  # the value stays
    assert turned[0].mean() < turned.max()  # and it is no longer red


@settings(max_examples=80)
@given(st.integers(1, 500), st.integers(1, 500), st.floats(0.05, 1), st.integers(0, 99))
def test_crops_lie_inside_and_have_the_area(width: int, height: int, smallest: float, seed: int) -> None:
    left, top, right, bottom = crop_box(width, height, (smallest, 1.0), (0.75, 4 / 3), np.random.default_rng(seed))
    assert 0 <= left < right <= width and 0 <= top < bottom <= height
    if min(width, height) > 100 and 0.75 <= width / height <= 4 / 3:
        assert (right - left) * (bottom - top) >= smallest * width * height * 0.97
        assert 0.74 <= (right - left) / (bottom - top) <= 1.35


def test_arrays_become_float32() -> None:
    assert ArrayTensor()(np.ones((2, 3), np.float16)).dtype == torch.float32
    assert ArrayTensor()(np.ones(2, np.int64)).dtype == torch.int64


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"scale": (0.0, 1.0)}, r"crop scale \(0.0, 1.0\)"),
        ({"ratio": (2.0, 1.0)}, "crop ratio"),
        ({"flip": 2.0}, "flip 2.0 is not a probability"),
        ({"jitter": (0.1, 0.1, 0.1, 0.9)}, "jitter"),
    ],
)
def test_settings_that_cannot_work(wrong: dict[str, tuple[float, ...]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainImage(PLAIN, **wrong)
