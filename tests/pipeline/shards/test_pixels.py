"""The decoder `fast` beside `pillow`: the same statuses and pixels of broken and odd files, scores that hardly move."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from noisegate.pipeline.datasets.scenes import caption, draw, random_scene, scene_rng
from noisegate.pipeline.errors import MismatchError
from noisegate.pipeline.estimators import ModelSpec, load_estimator
from noisegate.pipeline.inspect.verify import verify
from noisegate.pipeline.pairs.scorer import model_of_run
from noisegate.pipeline.runs.table import RunFolder, read_table
from noisegate.pipeline.settings import AnnotateSettings, DecodeOptions, Limits
from noisegate.pipeline.shards.decode import BadSample, decode_image
from noisegate.pipeline.shards.given_pairs import decode_pair
from noisegate.pipeline.shards.pixels import decode_array, decode_pixels
from noisegate.pipeline.shards.preprocess import Preprocess, ProcessorPixels
from noisegate.pipeline.shards.workers import DecodePool
from tests.errors import refused
from tests.jobs import score
from tests.pipeline.shards.tars import encoded, write_tar
from tests.pipeline.shards.test_workers import sample

LIMITS = Limits(max_pixels=2_000_000)


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth shapes with some grain."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    return Image.fromarray(np.clip(smooth + rng.integers(-20, 21, smooth.shape), 0, 255).astype(np.uint8))


def turned(image: Image.Image, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image, "JPEG", exif=exif)


def files() -> list[bytes]:
    image, made = photo(90, 70), []
    for quality, subsampling, progressive in ((90, 0, False), (75, 2, False), (60, 1, True)):
        made.append(encoded(image, "JPEG", quality=quality, subsampling=subsampling, progressive=progressive))
    made += [encoded(image.convert(mode), "JPEG") for mode in ("L", "CMYK")]
    made.append(encoded(image, "JPEG", keep_rgb=True))
    made += [turned(image, orientation) for orientation in (*range(10), 65535)]
    return [*made, encoded(image, "PNG"), encoded(image, "WEBP"), encoded(image.convert("P"), "GIF")]


def outcome(decode: object, data: bytes) -> str | NDArray[np.uint8]:
    try:
        return np.asarray(decode(data, LIMITS))  # type: ignore[operator]
    except BadSample as error:
        return f"{error.status}: {error}"


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """Cut off, with some bytes changed, or with some left out."""
    kind, changed = rng.integers(3), bytearray(data)
    if kind == 0:
        return data[: rng.integers(len(data))]
    if kind == 1:
        for _ in range(rng.integers(1, 6)):
            changed[rng.integers(len(changed))] = rng.integers(256)
    else:
        start = rng.integers(len(changed))
        del changed[start : start + rng.integers(1, 50)]
    return bytes(changed)


def test_whole_and_damaged_files_give_the_pixels_and_the_errors_of_pillow() -> None:
    rng = np.random.default_rng(0)
    given = files()
    given += [damaged(given[rng.integers(len(given))], rng) for _ in range(300)]
    statuses = set()
    for data in [*given, b"", b"\xff\xd8\xff"]:
        ours, pillows = outcome(decode_array, data), outcome(decode_image, data)
        assert type(ours) is type(pillows) and np.array_equal(ours, pillows)
        statuses.add(ours.partition(":")[0] if isinstance(ours, str) else "ok")
    assert statuses >= {"ok", "bad_image"}


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP", "JPEG"])
def test_damaged_files_are_refused_with_the_words_of_pillow(kind: str) -> None:
    rng, data = np.random.default_rng(1), encoded(photo(90, 70), kind)

    def result(decoder: str, data: bytes) -> str | NDArray[np.uint8]:
        return outcome(lambda data, limits: decode_pixels(data, Preprocess(32, decoder=decoder), limits), data)

    failed = 0
    for _ in range(60):
        changed = damaged(data, rng)
        ours, pillows = result("fast", changed), result("pillow", changed)
        assert type(ours) is type(pillows)
        if isinstance(ours, str):
            assert ours == pillows
            failed += 1
    assert failed > 10


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(1, 1), (1, 40), (40, 1)])
def test_a_turned_line_of_pixels_is_a_picture(size: tuple[int, int], orientation: int) -> None:
    data = turned(photo(*size), orientation)
    ours, pillows = (decode_pixels(data, Preprocess(8, decoder=name), LIMITS) for name in ("fast", "pillow"))
    assert np.abs(ours.astype(int) - pillows).max() <= 2


def test_limits_are_those_of_the_whole_picture() -> None:
    with pytest.raises(BadSample, match=r"image of 640 x 480 pixels; the limit is 300,000"):
        decode_pixels(encoded(photo(640, 480), "JPEG"), Preprocess(size=32, decoder="fast"), Limits(max_pixels=300_000))


@pytest.mark.parametrize("resize", ["shortest", "squash", "longest"])
@pytest.mark.parametrize("size", [(640, 480), (331, 640), (20, 31), (64, 64), (1, 150), (900, 11)])
def test_resized_pixels_are_those_of_pillow_but_for_rounding(resize: str, size: tuple[int, int]) -> None:
    image = photo(*size)
    for interpolation in ("bicubic", "bilinear"):
        ours, pillows = (
            Preprocess(64, resize, interpolation, fill=9, decoder=decoder)(image).astype(int)  # type: ignore[arg-type]
            for decoder in ("fast", "pillow")
        )
        # torch resizes rows first, Pillow in the cheaper order: with unequal scales overshoots are cut at another time
        assert np.abs(ours - pillows).max() <= (2 if resize != "squash" else 8)


@pytest.mark.parametrize("resize", ["shortest", "longest"])
@pytest.mark.parametrize("orientation", [*range(1, 10), 65535])
def test_a_turned_photo_decoded_at_a_part_of_its_size_does_not_shift(resize: str, orientation: int) -> None:
    data = turned(photo(835, 611).filter(ImageFilter.GaussianBlur(4)), orientation)
    ours, pillows = (
        decode_pixels(data, Preprocess(64, resize, decoder=decoder), LIMITS).astype(int)  # type: ignore[arg-type]
        for decoder in ("fast", "pillow")
    )
    assert np.abs(ours - pillows).max() <= 4


def test_preprocessing_of_transformers() -> None:
    both = [
        ProcessorPixels(64, 48, "shortest", "bicubic", (0.5,) * 3, (0.5,) * 3, decoder=d) for d in ("fast", "pillow")
    ]
    assert repr(both[0]) == repr(both[1])  # the decoder's part of an identity tells them apart
    ours, pillows = (decode_pixels(encoded(photo(200, 300)), one, LIMITS).astype(int) for one in both)
    assert ours.shape == (48, 48, 3) and np.abs(ours - pillows).max() <= 2


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((250, 200), (125, 100)),
        ((250, 192), (125, 96)),  # six times the size: half of it is still three times too large
        ((251, 193), (126, 97)),
        ((250, 191), (250, 191)),
        ((450, 425), (113, 107)),
        ((191, 450), (191, 450)),
    ],
)
def test_large_jpegs_are_decoded_at_a_part_of_their_size(size: tuple[int, int], expected: tuple[int, int]) -> None:
    data = encoded(photo(*size), "JPEG")
    preprocess = Preprocess(32, decoder="fast")
    assert decode_array(data, Limits(), preprocess.least_side).shape[1::-1] == expected
    assert decode_array(encoded(photo(*size), "PNG"), Limits(), preprocess.least_side).shape[1::-1] == size
    ours, pillows = (decode_pixels(data, one, Limits()).astype(int) for one in (preprocess, Preprocess(32)))
    assert np.abs(ours - pillows).mean() < 1.5 and np.abs(ours - pillows).max() < 16


def test_a_scaled_picture_is_cropped_where_the_whole_one_is() -> None:
    """The scale is that of the whole picture: half of an odd side ends in half a pixel."""
    for width, height in ((257, 193), (193, 257), (399, 387)):
        data = encoded(photo(width, height), "JPEG")
        for resize in ("shortest", "squash"):
            ours, pillows = (
                decode_pixels(data, Preprocess(32, resize, decoder=d), Limits()).astype(int)  # type: ignore[arg-type]
                for d in ("fast", "pillow")
            )
            assert np.abs(ours - pillows).mean() < 1.5 and np.abs(ours - pillows).max() < 16


def test_workers_and_given_pairs_decode_alike() -> None:
    preprocess = Preprocess(32, decoder="fast")
    datas = [encoded(photo(640, 480, i), "JPEG") for i in range(3)]
    raws = [sample(i, jpg=data, txt=b"a") for i, data in enumerate([*datas, b"no picture"])]
    with DecodePool(1, preprocess, DecodeOptions()) as pool:
        found = pool.collect(raws, pool.submit(raws))
    assert [one.status for one in found] == ["ok"] * 3 + ["bad_image"]
    for one, data in zip(found, datas, strict=False):
        here = decode_pair((data, "a"), preprocess).pixels
        assert one.pixels is not None and here is not None and np.array_equal(one.pixels, here)


def test_settings() -> None:
    with refused("decoder", "quick"):
        AnnotateSettings(decoder="quick")
    with refused("decoder", "fast"):
        load_estimator("python:tests.fakes:ColourModel", decoder="fast")
    assert load_estimator("python:tests.fakes:ColourModel").identity.decoder.startswith("pillow:")
    with refused("draft", True):
        AnnotateSettings(decoder="gpu", draft=True)


def test_a_run_keeps_its_decoder_and_is_verified_with_either(tmp_path: Path) -> None:
    parts = []
    for i in range(8):
        rng = scene_rng(3, i)
        scene = random_scene(rng)
        parts.append((f"{i:03d}.jpg", encoded(draw(scene, 300), "JPEG", quality=90)))
        parts.append((f"{i:03d}.txt", caption(scene, rng).encode()))
    shards, fast, pillow = [write_tar(tmp_path / "s.tar", parts)], tmp_path / "fast", tmp_path / "pillow"
    score(shards, fast, estimator=ModelSpec(device="cpu"), beta="fixed:0.3")
    score(shards, pillow, estimator=ModelSpec(device="cpu", decoder="pillow"), beta="fixed:0.3")
    one, other = (read_table(folder)["similarity"].to_numpy() for folder in (fast, pillow))
    assert 0 < np.abs(one - other).max() < 5e-3  # the embedded model sees 64 pixels of sharp edges

    for folder, decoder, another in ((fast, "fast", "pillow"), (pillow, "pillow", "fast")):
        run = RunFolder(folder).recorded()
        assert model_of_run(run, device="cpu").decoder == decoder
        with pytest.raises(MismatchError, match=f"--decoder {decoder} goes on"):
            score(shards, folder, estimator=ModelSpec(device="cpu", decoder=another), beta="fixed:0.3")
    assert verify(pillow, samples=8, device="cpu").ok
    compared = verify(fast, samples=8, device="cpu", decoder="pillow", tolerance=5e-3)
    assert compared.ok and "decoder pillow" in compared.notes[0]
    assert not verify(fast, samples=8, device="cpu", decoder="pillow", tolerance=0).ok
