"""JPEGs decoded at a fraction of their size: an option, off by default, and part of the scorer's identity."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from noisegate.pipeline.datasets.scenes import caption, draw, random_scene, scene_rng
from noisegate.pipeline.errors import MismatchError
from noisegate.pipeline.estimators import ModelSpec, load_estimator
from noisegate.pipeline.inspect.verify import verify
from noisegate.pipeline.pairs.scorer import model_of_run
from noisegate.pipeline.runs.table import RunFolder, read_table
from noisegate.pipeline.settings import DecodeOptions, Limits
from noisegate.pipeline.shards.decode import BadSample, decode_image
from noisegate.pipeline.shards.preprocess import Preprocess, ProcessorPixels
from noisegate.pipeline.shards.workers import decode_sample
from tests.errors import refused
from tests.jobs import score
from tests.pipeline.shards.tars import encoded, write_tar
from tests.pipeline.shards.test_workers import sample

LIMITS = Limits()


def gradient(width: int, height: int) -> Image.Image:
    y, x = np.mgrid[0:height, 0:width]
    return Image.fromarray(np.stack([255 * x / width, 255 * y / height, 0 * x + 90], axis=-1).astype(np.uint8))


@pytest.mark.parametrize(
    ("size", "least_side", "expected"),
    [
        ((640, 480), 224, (320, 240)),
        ((640, 480), 240, (320, 240)),
        ((640, 480), 241, (640, 480)),  # half of it would be too small
        ((4000, 900), 224, (1000, 225)),
        ((900, 4000), 224, (225, 1000)),
        ((2048, 2048), 224, (256, 256)),
        ((9000, 2000), 100, (1125, 250)),  # an eighth is the least
        ((447, 447), 224, (447, 447)),
        ((640, 480), None, (640, 480)),
    ],
)
def test_size_of_a_jpeg(size: tuple[int, int], least_side: int | None, expected: tuple[int, int]) -> None:
    assert decode_image(encoded(Image.new("RGB", size, (9, 99, 199)), "JPEG"), LIMITS, least_side).size == expected


def test_turned_and_grey_pictures_shrink_too_other_formats_do_not() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = decode_image(encoded(gradient(640, 480), "JPEG", exif=exif), LIMITS, 224)
    assert turned.size == (240, 320) and turned.mode == "RGB"
    assert decode_image(encoded(gradient(640, 480).convert("L"), "JPEG"), LIMITS, 224).size == (320, 240)
    for kind in ("PNG", "WEBP"):
        assert decode_image(encoded(gradient(640, 480), kind), LIMITS, 224).size == (640, 480)


def test_sixteen_bits_are_scaled_and_of_full_size_as_without() -> None:
    grey = np.linspace(0, 65535, 640 * 480).reshape(480, 640).astype(np.uint16)
    data = encoded(Image.fromarray(grey))
    drafted = decode_image(data, LIMITS, 224)
    assert np.array_equal(np.asarray(drafted), np.repeat((grey >> 8).astype(np.uint8)[:, :, None], 3, axis=2))
    assert np.array_equal(Preprocess(size=224, draft=True)(drafted), Preprocess(size=224)(decode_image(data, LIMITS)))


def test_limits_are_those_of_the_whole_picture() -> None:
    with pytest.raises(BadSample, match=r"image of 640 x 480 pixels; the limit is 300,000"):
        decode_image(encoded(gradient(640, 480), "JPEG"), Limits(max_pixels=300_000), 224)


@pytest.mark.parametrize("kind", ["open_clip", "transformers"])
def test_pixels_are_close_to_those_of_the_whole_picture(kind: str) -> None:
    both = [
        Preprocess(size=64, draft=draft)
        if kind == "open_clip"
        else ProcessorPixels(64, 64, "shortest", "bicubic", (0.5,) * 3, (0.5,) * 3, draft)
        for draft in (False, True)
    ]
    assert repr(both[0]) == repr(both[1])  # the decoder's part of an identity tells them apart
    rng = np.random.default_rng(0)
    photo = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize(
        (640, 480), Image.Resampling.BICUBIC
    )
    raw = sample(0, jpg=encoded(photo, "JPEG", quality=90), txt=b"a")
    whole, small = (decode_sample(raw, preprocess, DecodeOptions()).pixels for preprocess in both)
    assert whole is not None and small is not None and whole.shape == small.shape == (64, 64, 3)
    difference = np.abs(whole.astype(int) - small.astype(int))
    assert 0 < difference.mean() < 2 and difference.max() < 16


def test_a_model_that_resizes_by_itself_refuses() -> None:
    with refused("draft", True):
        load_estimator("python:tests.fakes:ColourModel", draft=True)


def test_a_run_records_it_refuses_the_other_kind_and_is_verified_with_it(tmp_path: Path) -> None:
    files = []
    for i in range(8):
        rng = scene_rng(3, i)
        scene = random_scene(rng)
        files.append((f"{i:03d}.jpg", encoded(draw(scene, 512), "JPEG", quality=90)))
        files.append((f"{i:03d}.txt", caption(scene, rng).encode()))
    shards = [write_tar(tmp_path / "s.tar", files)]
    plain, drafted = tmp_path / "plain", tmp_path / "drafted"
    score(shards, plain, estimator=ModelSpec(device="cpu"), beta="fixed:0.3")
    score(shards, drafted, estimator=ModelSpec(device="cpu", draft=True), beta="fixed:0.3")
    whole, small = (read_table(folder)["similarity"].to_numpy() for folder in (plain, drafted))
    assert 0 < np.abs(whole - small).max() < 0.05

    run = RunFolder(drafted).read_run()
    assert run is not None and model_of_run(run, device="cpu").draft
    assert verify(drafted, samples=8, device="cpu").ok
    with pytest.raises(MismatchError, match="decoder"):
        score(shards, drafted, estimator=ModelSpec(device="cpu"), beta="fixed:0.3")
