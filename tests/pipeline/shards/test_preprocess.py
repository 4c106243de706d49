import pickle
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from noisegate.pipeline.estimators.loading import allow_torchvision
from noisegate.pipeline.shards.preprocess import Preprocess
from tests.errors import refused

SIZES = [
    (1, 1),
    (1, 9),
    (200, 1),
    (8, 6),
    (31, 33),
    (32, 32),
    (32, 47),
    (47, 32),
    (64, 64),
    (65, 129),
    (640, 480),
    (333, 500),
]


def drawing(width: int, height: int) -> Image.Image:
    noise = np.random.default_rng([width, height]).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(noise)


def by_open_clip(settings: Preprocess) -> Any:
    allow_torchvision()
    from open_clip.transform import PreprocessCfg, image_transform_v2

    config = PreprocessCfg(
        size=settings.size,
        mean=settings.mean,
        std=settings.std,
        interpolation=settings.interpolation,
        resize_mode=settings.resize,
        fill_color=settings.fill,
    )
    return image_transform_v2(config, is_train=False)


@pytest.mark.parametrize("resize", ["shortest", "squash", "longest"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [32, 33])
def test_equals_open_clip(resize: Any, interpolation: Any, size: int) -> None:
    settings = Preprocess(size=size, resize=resize, interpolation=interpolation, fill=7)
    transform = by_open_clip(settings)
    for width, height in SIZES:
        if resize == "longest" and (width, height) == (200, 1):
            continue  # open_clip would resize it to nothing
        image = drawing(width, height)
        pixels = settings(image)
        assert pixels.shape == (size, size, 3) and pixels.dtype == np.uint8
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in (settings.mean, settings.std))
        normalised = (torch.tensor(pixels).permute(2, 0, 1).float() / 255 - mean) / std
        assert (normalised - transform(image)).abs().max() <= 1e-6, (width, height)


@pytest.mark.parametrize("resize", ["shortest", "longest"])
def test_sides_are_rounded_as_open_clip_rounds_them(resize: Any) -> None:
    settings = Preprocess(size=5, resize=resize)
    transform = by_open_clip(settings)
    for width, height in [(w, h) for w in range(1, 40, 3) for h in range(-(-w // 8), 8 * w, 7)]:
        image = drawing(width, height)
        expected = (transform(image) * torch.tensor(settings.std).view(3, 1, 1)).add(
            torch.tensor(settings.mean).view(3, 1, 1)
        ) * 255
        assert np.abs(settings(image).transpose(2, 0, 1) - expected.numpy()).max() < 0.01, (width, height)


def test_every_extreme_that_decoding_lets_through_fits_the_memory() -> None:
    assert Preprocess(size=224)(drawing(200, 1)).shape == (224, 224, 3)
    assert Preprocess(size=224, resize="longest")(drawing(1, 200)).shape == (224, 224, 3)


def test_travels_to_the_workers() -> None:
    settings = Preprocess(size=64, resize="squash", mean=(0.5,) * 3, std=(0.5,) * 3)
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize(("setting", "value"), [("size", 0), ("resize", "crop"), ("interpolation", "nearest")])
def test_wrong_settings(setting: str, value: Any) -> None:
    with refused(setting, value):
        Preprocess(**{setting: value})
