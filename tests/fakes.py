"""A model that is quick and never wrong about colours, and shards made by hand. Imports no torch."""

import hashlib
import io
import os
import tarfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from noisegate.pipeline.estimators.by_name import CustomEstimator

Rows = NDArray[np.float32]

# The drawn scenes' colours, object colours first.
_PALETTE = {
    "red": (222, 36, 36),
    "orange": (248, 138, 20),
    "yellow": (244, 222, 44),
    "green": (36, 164, 62),
    "blue": (40, 92, 228),
    "purple": (150, 52, 190),
    "white": (246, 246, 246),
    "gray": (134, 134, 134),
    "black": (16, 16, 16),
    "brown": (98, 66, 40),
}
_RGB = np.array(list(_PALETTE.values()), np.float32)
NOT_FINITE, ZERO = "a caption of nothing but nan", "a caption of nothing at all"
LONG = "and so on and on"  # a text that the model cuts
BLANK = (1, 2, 3)  # a picture all of this colour has no embedding


class ColourModel:
    """Embeds pictures by their share of each colour and texts by their colour words; unknown texts by their hash.

    Each batch of pictures takes COLOUR_SECONDS of the environment longer, for tests that must come in between.
    """

    identity = "colours-1"

    def __init__(self) -> None:
        self.batches: list[tuple[str, int]] = []

    def encode_images(self, images: Sequence[Image.Image]) -> Rows:
        self.batches.append(("images", len(images)))
        time.sleep(float(os.environ.get("COLOUR_SECONDS", 0)))
        return np.stack([self._picture(np.asarray(image.resize((16, 16)), np.float32)) for image in images])

    def _picture(self, pixels: Rows) -> Rows:
        if (pixels == BLANK).all():
            return np.zeros(24, np.float32)
        nearest = ((pixels.reshape(-1, 1, 3) - _RGB) ** 2).sum(-1).argmin(1)
        share = np.bincount(nearest, minlength=10) / len(nearest)
        share[:6] *= 3  # objects are smaller than the background
        return np.concatenate([np.sqrt(share), 0.2 * _scatter(pixels.tobytes())]).astype(np.float32)

    def encode_texts(self, texts: Sequence[str]) -> Rows:
        self.batches.append(("texts", len(texts)))
        return np.stack([self._text(text) for text in texts])

    def find_truncated(self, texts: Sequence[str]) -> list[bool]:
        return [LONG in text for text in texts]

    def _text(self, text: str) -> Rows:
        if text in (NOT_FINITE, ZERO):
            return np.full(24, np.nan if text == NOT_FINITE else 0, np.float32)
        words = np.array([float(colour in text) for colour in _PALETTE])
        scatter = _scatter(text.encode()) * (0.2 if words.any() else 1)
        return np.concatenate([words, scatter]).astype(np.float32)


class OtherModel(ColourModel):
    """The same under another name: scores of the two must not be mixed."""

    identity = "colours-2"


class TwoSpaces(ColourModel):
    """Pictures and texts of different widths, which no cosine can compare."""

    identity = "two-spaces"

    def encode_texts(self, texts: Sequence[str]) -> Rows:
        return super().encode_texts(texts)[:, :7]


def _scatter(data: bytes) -> NDArray[np.float64]:
    seed = int.from_bytes(hashlib.sha256(data).digest()[:8], "little")
    return np.random.default_rng(seed).standard_normal(14)


def estimator(batch_size: int | None = None, kind: type[ColourModel] = ColourModel) -> CustomEstimator:
    """The fake as the job sees it."""
    return CustomEstimator(kind(), f"python:tests.fakes:{kind.__name__}", batch_size)


Member = tuple[str, bytes]


def tar_bytes(members: Iterable[Member]) -> bytes:
    """A tar with these members and nothing that changes from run to run."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def write_tar(path: Path, members: Iterable[Member]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_bytes(members))
    return path


def picture(
    colour: str | tuple[int, ...] = "red", size: tuple[int, int] = (20, 16), kind: str = "PNG", **how: Any
) -> bytes:
    """An image file of one colour; `mode` and Pillow's save options may be given."""
    mode = how.pop("mode", "RGB")
    data = io.BytesIO()
    Image.new(mode, size, colour).save(data, kind, **how)
    return data.getvalue()


def pairs(count: int, start: int = 0) -> list[Member]:
    """Good samples, each with a colour of its own turn and a caption that names it."""
    names = list(_PALETTE)
    members = []
    for i in range(start, start + count):
        colour = names[i % len(names)]
        members += [(f"{i:05d}.png", picture(_PALETTE[colour])), (f"{i:05d}.txt", f"number {i} is {colour}".encode())]
    return members
