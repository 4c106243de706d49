"""Make samples of images and captions, one per caption or one per image; apply a published noise file if given."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.shards.decode import BadSample

from .source import Request, Sample, SampleSource, json_part, key_of, read_array, read_lines, unusable


@dataclass(frozen=True)
class Pairs:
    """N images and M captions, in the order of the source.

    image_ids: (N,) names. captions: (M,). image_of: (M,) int64, each caption's image. load: from image number to the picture's
    part. in_order: captions stand in the order of the published *_caps.txt, so that a published noise file fits.
    """

    image_ids: Sequence[str]
    captions: Sequence[str]
    image_of: NDArray[np.int64]
    load: Callable[[int], dict[str, bytes]]
    files: tuple[Path, ...]
    caption_ids: Sequence[int | str] | None = None
    in_order: bool = True
    facts: dict[str, Any] = field(default_factory=dict)

    def caption_id(self, number: int) -> int | str:
        return number if self.caption_ids is None else self.caption_ids[number]


@dataclass(frozen=True, eq=False)
class GivenNoise:
    """Noise from a file: (M,) image of each caption, the captions, (M,) bool wrong pairs, and the name of the noise."""

    image_of: NDArray[np.int64]
    captions: Sequence[str]
    noisy: NDArray[np.bool_]
    protocol: str


def read_noise_file(path: Path, captions: Sequence[str], image_of: NDArray[np.int64], images: int) -> GivenNoise:
    """Apply a published noise file to M captions of N images, so that results are on exactly the published noise.

    An .npy of integers holds, by its length and numbers, either the image of each caption (NCR, BiCro, CRCL: M numbers
    below N), or the image that takes each image's place, with all its captions (DECL: N numbers), or the caption that takes
    each caption's place (M numbers up to M).  Any other file holds the captions themselves, one per line (NPC, OSA:
    0.4_noise_train_caps.txt).  A pair counts as noisy if its image is not the caption's own, or its text differs.
    """
    protocol = f"file:{path.name}(sha256={hashlib.sha256(path.read_bytes()).hexdigest()[:16]})"
    count = len(captions)
    if path.suffix.lower() != ".npy":
        lines = read_lines(path)
        if len(lines) != count:
            raise ConfigError.of("noise_file", path, f"has {len(lines):,} captions, and the source has {count:,}")
        changed = np.array([new != old for new, old in zip(lines, captions, strict=True)], dtype=bool)
        return GivenNoise(image_of, lines, changed, protocol)
    array = read_array(path, mmap=False)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise ConfigError.of("noise_file", path, f"holds {array.dtype} {array.shape}; give integers of one axis")
    index = array.astype(np.int64)
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
    problem = f"has {len(index):,} numbers from {low:,} to {high:,}, which fit neither the {count:,} captions nor the"
    raise ConfigError.of("noise_file", path, f"{problem} {images:,} images of the source; give this data set's")


def pair_samples(request: Request, pairs: Pairs) -> SampleSource:
    """Make samples of one caption each for training, or of one image each for evaluation; `request.rows` overrides this.

    In image rows `txt` is the first caption, and `captions` in the json are all: trainers take `captions: json:captions`.
    """
    if not len(pairs.captions):
        raise unusable(request.folder, f"--split {request.split} has no captions; check its files")
    rows = request.rows or ("captions" if request.split == "train" else "images")
    facts = {**pairs.facts, "rows": rows, "images_in_source": len(pairs.image_ids)}
    if request.noise_file is None:
        if rows == "captions":
            return SampleSource(len(pairs.captions), _caption_rows(request, pairs, None), pairs.files, facts=facts)
        groups = _groups(pairs)
        return SampleSource(len(groups), _image_rows(request, pairs, groups), pairs.files, facts=facts)
    if request.split != "train" or rows != "captions":
        problem = "is for the captions of --split train; leave out --rows and use --split train"
        raise ConfigError.of("noise_file", request.noise_file, problem)
    if not pairs.in_order:
        problem = (
            "counts captions in the order of train_caps.txt, which this layout does not keep; give a source with it"
        )
        raise ConfigError.of("noise_file", request.noise_file, f"{problem}, or make noise with `noisegate noise`")
    noise = read_noise_file(request.noise_file, pairs.captions, pairs.image_of, len(pairs.image_ids))
    facts |= {"noise_protocol": noise.protocol, "noisy": int(noise.noisy.sum())}
    files = (*pairs.files, request.noise_file)
    return SampleSource(len(pairs.captions), _caption_rows(request, pairs, noise), files, facts=facts)


def _caption_rows(request: Request, pairs: Pairs, noise: GivenNoise | None) -> Callable[[int], Sample]:
    def sample(number: int) -> Sample:
        own = int(pairs.image_of[number])
        image = own if noise is None else int(noise.image_of[number])
        caption = pairs.captions[number] if noise is None else noise.captions[number]
        record: dict[str, Any] = {"image_id": pairs.image_ids[image], "caption_id": pairs.caption_id(number)}
        if noise is not None:
            record |= {"noisy": bool(noise.noisy[number]), "noise_protocol": noise.protocol}
            if image != own:
                record["original_image_id"] = pairs.image_ids[own]
            if caption != pairs.captions[number]:
                record["original_caption"] = pairs.captions[number]

        def parts() -> dict[str, bytes]:
            if not caption.strip():
                raise BadSample("no_text", "the caption is empty")
            return {**pairs.load(image), "txt": caption.encode("utf-8", "replace"), "json": json_part(record)}

        return Sample(key_of(request.split, number), f"caption {number} with image {record['image_id']}", parts)

    return sample


def _groups(pairs: Pairs) -> list[tuple[int, list[int]]]:
    """List the images that have captions, in order, each with its captions."""
    captions: dict[int, list[int]] = {}
    for number, image in enumerate(pairs.image_of.tolist()):
        captions.setdefault(image, []).append(number)
    return sorted(captions.items())


def _image_rows(request: Request, pairs: Pairs, groups: Sequence[tuple[int, list[int]]]) -> Callable[[int], Sample]:
    def sample(number: int) -> Sample:
        image, captions = groups[number]
        texts = [pairs.captions[caption] for caption in captions if pairs.captions[caption].strip()]
        ids = [pairs.caption_id(caption) for caption in captions if pairs.captions[caption].strip()]
        record = {"image_id": pairs.image_ids[image], "captions": texts, "caption_ids": ids}

        def parts() -> dict[str, bytes]:
            if not texts:
                raise BadSample("no_text", "all captions are empty")
            return {**pairs.load(image), "txt": texts[0].encode("utf-8", "replace"), "json": json_part(record)}

        return Sample(key_of(request.split, number), f"image {record['image_id']}", parts)

    return sample
