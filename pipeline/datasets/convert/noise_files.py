"""Noise that others published as files, applied as it is, so that figures are of the same noise."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError

from .files import read_array, read_lines

__all__ = ["GivenNoise", "read_noise_file"]


@dataclass(frozen=True, eq=False)
class GivenNoise:
    """(M,) image of each caption, the captions, which pairs are wrong, and where this comes from."""

    image_of: NDArray[np.int64]
    captions: Sequence[str]
    noisy: NDArray[np.bool_]
    protocol: str


def read_noise_file(path: Path, captions: Sequence[str], image_of: NDArray[np.int64], images: int) -> GivenNoise:
    """What a file does to M captions of N images.

    An .npy of integers holds, by its length and numbers, either the image of each caption (NCR, BiCro, CRCL: M numbers
    below N), or the image that takes each image's place, with all its captions (DECL: N numbers), or the caption that takes
    each caption's place (M numbers up to M).  Any other file holds the captions themselves, one per line (NPC, OSA:
    0.4_noise_train_caps.txt).  A pair counts as noisy when its image is not the caption's own, or its text is another one.
    """
    protocol = f"file:{path.name}(sha256={hashlib.sha256(path.read_bytes()).hexdigest()[:16]})"
    count = len(captions)
    if path.suffix.lower() != ".npy":
        lines = read_lines(path)
        if len(lines) != count:
            raise ConfigError(f"noise_file={path.name!r} has {len(lines):,} captions, and the source has {count:,}")
        changed = np.array([new != old for new, old in zip(lines, captions, strict=True)], dtype=bool)
        return GivenNoise(image_of, lines, changed, protocol)
    found = read_array(path, mmap=False)
    if found.ndim != 1 or not np.issubdtype(found.dtype, np.integer):
        raise ConfigError(
            f"noise_file={path.name!r} holds {found.dtype} {found.shape}; it must be integers of one axis"
        )
    index = found.astype(np.int64)
    low, high = (int(index.min()), int(index.max())) if len(index) else (0, -1)
    if len(index) == count and low >= 0 and high < images:
        return GivenNoise(index, captions, index != image_of, protocol)
    if len(index) == images and low >= 0 and high < images:
        moved = index[image_of]
        return GivenNoise(moved, captions, moved != image_of, protocol)
    if len(index) == count and low >= 0 and high < count:
        texts = [captions[i] for i in index]
        changed = np.array([new != old for new, old in zip(texts, captions, strict=True)], dtype=bool)
        return GivenNoise(image_of, texts, changed & (image_of[index] != image_of), protocol)
    raise ConfigError(
        f"noise_file={path.name!r} has {len(index):,} numbers from {low:,} to {high:,}, which fit neither the {count:,} "
        f"captions nor the {images:,} images of the source; give the file of this data set"
    )
