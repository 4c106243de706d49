"""The decoder `gpu` with a stand-in for torchvision's: libjpeg-turbo on the processor."""

from dataclasses import replace

import numpy as np
import pytest
import simplejpeg
import torch
from PIL import Image

from noisegate.pipeline.estimators import ModelSpec, load_estimator, normalise
from noisegate.pipeline.estimators import gpu_jpegs as module
from noisegate.pipeline.estimators.gpu_jpegs import GpuJpegs
from noisegate.pipeline.estimators.openclip import OpenClipEstimator
from noisegate.pipeline.pairs.scorer import encode_samples
from noisegate.pipeline.settings import DecodeOptions, Limits
from noisegate.pipeline.shards.pixels import decode_pixels
from noisegate.pipeline.shards.preprocess import Preprocess, ProcessorPixels
from noisegate.pipeline.shards.workers import decode_sample
from tests.errors import refused
from tests.pipeline.shards.tars import encoded
from tests.pipeline.shards.test_pixels import photo
from tests.pipeline.shards.test_workers import sample

LIMITS = Limits()
GPU = Preprocess(32, decoder="gpu")


class StandIn:
    """Decodes on the processor, refuses a batch with a broken file as torchvision does, and counts its calls."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def __call__(self, files: list[torch.Tensor]) -> list[torch.Tensor]:
        self.batches.append(len(files))
        try:
            pictures = [simplejpeg.decode_jpeg(file.numpy().tobytes(), "RGB") for file in files]
        except ValueError as error:
            raise RuntimeError(f"nvjpegDecode failed: {error}") from error
        return [torch.from_numpy(picture).permute(2, 0, 1) for picture in pictures]


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(photo(90, 70), "JPEG", exif=exif)


def test_workers_hand_on_plain_jpegs_and_decode_the_rest() -> None:
    jpeg = encoded(photo(90, 70), "JPEG")
    assert decode_pixels(jpeg, GPU, LIMITS).tobytes() == jpeg
    assert decode_pixels(encoded(photo(90, 70).convert("CMYK"), "JPEG"), GPU, LIMITS).shape == (32, 32, 3)
    assert decode_pixels(encoded(photo(90, 70), "PNG"), GPU, LIMITS).shape == (32, 32, 3)
    small = decode_sample(sample(0, jpg=jpeg, txt=b"a"), GPU, DecodeOptions(limits=Limits(max_pixels=100)))
    assert small.status == "too_large"


@pytest.mark.parametrize(
    "preprocess",
    [GPU, replace(GPU, resize="squash"), ProcessorPixels(40, 30, "shortest", "bilinear", (0.5,) * 3, (0.5,) * 3)],
)
def test_pixels_are_those_of_the_fast_decoder(preprocess: Preprocess | ProcessorPixels) -> None:
    gpu, fast = replace(preprocess, decoder="gpu"), replace(preprocess, decoder="fast")
    files = [*(turned(orientation) for orientation in range(1, 9)), encoded(photo(70, 90), "PNG")]
    batch, broken = GpuJpegs(gpu, "cpu", StandIn())([decode_pixels(data, gpu, LIMITS) for data in files])
    expected = np.stack([decode_pixels(data, fast, LIMITS) for data in files])
    assert broken == [] and batch.dtype == torch.uint8 and batch.shape == expected.shape
    assert np.abs(batch.numpy().astype(int) - expected).max() <= 3


def test_a_broken_file_is_black_and_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = encoded(photo(90, 70), "JPEG")
    files = [np.frombuffer(data, np.uint8) for data in (whole, whole[:-400], whole)]
    decode = StandIn()
    batch, broken = GpuJpegs(GPU, "cpu", decode)(files)
    assert broken == [1] and decode.batches == [3, 1, 1, 1]
    assert not batch[1].any() and torch.equal(batch[0], batch[2]) and batch[0].any()
    monkeypatch.setattr(module, "PIXELS_AT_ONCE", 2 * 90 * 70)
    decode = StandIn()
    GpuJpegs(GPU, "cpu", decode)([files[0]] * 5)
    assert decode.batches == [2, 2, 1]


def test_a_fault_of_the_gpu_is_not_taken_for_one_of_the_files() -> None:
    def lost(_: list[torch.Tensor]) -> list[torch.Tensor]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="CUDA error"):
        GpuJpegs(GPU, "cpu", lost)([np.frombuffer(encoded(photo(9, 9), "JPEG"), np.uint8)])


def test_scores_and_statuses_are_those_of_the_fast_decoder() -> None:
    model = load_estimator("embedded", device="cpu")
    assert isinstance(model, OpenClipEstimator)
    whole = encoded(photo(90, 70), "JPEG")
    raws = [sample(i, jpg=data, txt=b"a red circle") for i, data in enumerate((whole, whole[:-400], turned(6)))]
    fast = [decode_sample(raw, model.preprocess, DecodeOptions()) for raw in raws]
    expected = encode_samples(model, fast, {})
    model.preprocess = replace(model.preprocess, decoder="gpu")
    model.jpegs = GpuJpegs(model.preprocess, "cpu", StandIn())
    gpu = [decode_sample(raw, model.preprocess, DecodeOptions()) for raw in raws]
    assert [one.status for one in gpu] == ["ok"] * 3
    found = encode_samples(model, gpu, {})
    assert [(one.status, one.error) for one in gpu] == [(one.status, one.error) for one in fast]
    assert gpu[1].status == "bad_image"
    np.testing.assert_allclose(found.similarity[[0, 2]], expected.similarity[[0, 2]], atol=2e-2)
    assert np.isnan(found.similarity[1]) and normalise(found.images)[0].any()


def test_it_is_refused_without_a_gpu() -> None:
    with refused("decoder", "gpu"):
        ModelSpec(device="cpu", decoder="gpu")()
    with refused("decoder", "gpu"):
        module.load_torchvision("cuda")
    with refused("decoder", "gpu"):
        GpuJpegs(replace(GPU, resize="longest"), "cpu", StandIn())
