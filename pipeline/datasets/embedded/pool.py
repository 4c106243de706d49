"""Scenes as arrays: what the training of the embedded model reads, drawn by several processes."""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.datasets.scenes import ATTRIBUTES, caption, draw, hard_negative, random_scene, scene_class

TEXT_LENGTH = 18  # tokens of the longest caption, start and end included
WORDINGS = 3
_CHUNK = 500

Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Pool:
    """`images` (N, 64, 64, 3) uint8, `captions` (N, 3, 18) and `changed` (N, 6, 18) token ids, `labels` (N,) int64.

    `changed` holds one caption per attribute of `ATTRIBUTES`, false in that attribute alone.
    """

    images: NDArray[np.uint8]
    captions: NDArray[np.int32]
    changed: NDArray[np.int32]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.images)


def draw_pool(seed: int, count: int, encode: Encode, processes: int = 2) -> Pool:
    """Draw scenes 0..count-1 of `seed`; `encode` gives a word's token ids and is picklable."""
    starts = range(0, count, _CHUNK)
    work = partial(draw_part, seed=seed, count=count, encode=encode)
    with ProcessPoolExecutor(processes, get_context("spawn")) as executor:
        parts = list(executor.map(work, starts))
    return Pool(
        images=np.concatenate([part.images for part in parts]),
        captions=np.concatenate([part.captions for part in parts]),
        changed=np.concatenate([part.changed for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
    )


def draw_part(start: int, seed: int, count: int, encode: Encode) -> Pool:
    """Draw up to 500 scenes of `seed` from `start` on, none beyond `count`."""
    words: dict[str, list[int]] = {}
    images, captions, changed, labels = [], [], [], []
    for index in range(start, min(start + _CHUNK, count)):
        rng = np.random.default_rng([seed, index])  # not `scene_rng`: scenes that people write stay unseen
        scene = random_scene(rng)
        images.append(np.asarray(draw(scene)))
        captions.append([caption(scene, rng) for _ in range(WORDINGS)])
        changed.append([caption(hard_negative(scene, rng, attribute), rng) for attribute in ATTRIBUTES])
        labels.append(scene_class(scene))
    return Pool(
        np.stack(images),
        np.stack([token_ids(texts, encode, words) for texts in captions]),
        np.stack([token_ids(texts, encode, words) for texts in changed]),
        np.array(labels, np.int64),
    )


def token_ids(texts: Sequence[str], encode: Encode, words: dict[str, list[int]]) -> NDArray[np.int32]:
    """Token ids (N, 18) of texts, padded with 0; `words` keeps each word's ids, for captions repeat few words."""
    rows = np.zeros((len(texts), TEXT_LENGTH), np.int32)
    start, end = 49406, 49407  # CLIP's marks of the start and the end of a text
    for row, text in zip(rows, texts, strict=True):
        ids = [start]
        for word in text.split():
            if word not in words:
                words[word] = encode(word)
            ids += words[word]
        ids = [*ids[: TEXT_LENGTH - 1], end]
        row[: len(ids)] = ids
    return rows
