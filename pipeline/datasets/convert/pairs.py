"""Images with their captions, from whatever layout, as samples: one for each caption, or one for each image."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.shards.decode import BadSample

from .noise_files import GivenNoise, read_noise_file
from .parts import json_part, key_of
from .source import Request, Sample, Source

__all__ = ["Pairs", "pair_samples"]


@dataclass(frozen=True)
class Pairs:
    """Images by number and captions in the order of the source.

    image_ids: (N,) names. captions: (M,). image_of: (M,) int64, each caption's image. load: an image's number to its part.
    in_order: captions stand in the order of the published *_caps.txt, so that a published noise file fits.
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


def pair_samples(request: Request, pairs: Pairs) -> Source:
    """One sample per caption for training, which weights and noise need; one per image for evaluation; or as asked.

    Of image rows, `txt` is the first caption and the json's `captions` are all: trainers take `captions: json:captions`.
    """
    if not len(pairs.captions):
        raise ConfigError(f"source {request.folder}: --split {request.split} has no captions; check its files")
    rows = request.rows or ("captions" if request.split == "train" else "images")
    facts = {**pairs.facts, "rows": rows, "images_in_source": len(pairs.image_ids)}
    if request.noise_file is None:
        if rows == "captions":
            return Source(len(pairs.captions), _caption_rows(request, pairs, None), pairs.files, facts=facts)
        groups = _groups(pairs)
        return Source(len(groups), _image_rows(request, pairs, groups), pairs.files, facts=facts)
    if request.split != "train" or rows != "captions":
        raise ConfigError(
            f"noise_file={request.noise_file.name!r}: noise is for the captions of --split train; leave out --rows and "
            "use --split train"
        )
    if not pairs.in_order:
        raise ConfigError(
            f"noise_file={request.noise_file.name!r}: it counts captions in the order of train_caps.txt, which this layout "
            "does not keep; give a source with train_caps.txt, or make noise with `noisegate noise`"
        )
    noise = read_noise_file(request.noise_file, pairs.captions, pairs.image_of, len(pairs.image_ids))
    facts |= {"noise_protocol": noise.protocol, "noisy": int(noise.noisy.sum())}
    files = (*pairs.files, request.noise_file)
    return Source(len(pairs.captions), _caption_rows(request, pairs, noise), files, facts=facts)


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
    """Images that have captions, in order, with their captions."""
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
