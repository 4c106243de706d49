"""The scorer: one object that the job, the service and `verify` share, so that the same pair gets the same numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators.base import Estimator, normalise
from noisegate.pipeline.shards.workers import Decoded

from .beta import Beta
from .calibration import PairCalibration
from .osa import osa_weight

__all__ = ["Encoded", "PairScores", "encode", "score_pairs"]


@dataclass
class Encoded:
    """Unit embeddings (N, d) of a batch, rows of zeros where there is no picture or no text, and the cosines (N,)."""

    images: NDArray[np.float32]
    texts: NDArray[np.float32]
    similarity: NDArray[np.float32]


@dataclass(frozen=True)
class PairScores:
    """What a cosine means: OSA's weight, the calibrated probability (None before calibration), and the cut."""

    osa_weight: NDArray[np.float32]
    clean_probability: NDArray[np.float32] | None
    clean: NDArray[np.bool_]


def encode(estimator: Estimator, samples: Sequence[Decoded], known: dict[str, NDArray[np.float32]]) -> Encoded:
    """Embed a batch and mark samples whose embedding is not finite as `invalid`.

    `known` holds the texts embedded so far (of the same shard, so that a row never depends on another shard).
    """
    pictures = [i for i, sample in enumerate(samples) if sample.pixels is not None]
    written = [i for i, sample in enumerate(samples) if sample.text is not None]
    fresh = list(dict.fromkeys(s.text for s in samples if s.text is not None and s.text not in known))
    pixels = [p for s in samples if (p := s.pixels) is not None]
    image_rows, fresh_rows = _encode_both(estimator, pixels, fresh)
    known.update(zip(fresh, fresh_rows, strict=True))
    text_rows = [known[s.text] for s in samples if s.text is not None]
    width = image_rows.shape[1] or (len(text_rows[0]) if text_rows else 0)
    images = np.zeros((len(samples), width), np.float32)
    texts = np.zeros((len(samples), len(text_rows[0]) if text_rows else width), np.float32)
    if pictures:
        images[pictures] = image_rows
    if written:
        texts[written] = np.stack(text_rows)
    for rows, present, name in ((images, pictures, "image"), (texts, written, "text")):
        for i in present:
            if samples[i].status == "ok" and not rows[i].any():
                samples[i].status, samples[i].error = "invalid", f"the {name} embedding is zero or not finite"
    both = np.flatnonzero(images.any(axis=1) & texts.any(axis=1))
    if len(both) and images.shape[1] != texts.shape[1]:
        raise ConfigError(
            f"model {estimator.identity.model!r} gives pictures {images.shape[1]} numbers and texts {texts.shape[1]}; a pair "
            "needs a model with one space for both"
        )
    similarity = np.full(len(samples), np.nan, np.float32)
    if len(both):
        products = np.einsum("nd,nd->n", images[both], texts[both], dtype=np.float64)
        similarity[both] = np.clip(products, -1, 1)
    return Encoded(images, texts, similarity)


def _encode_both(
    estimator: Estimator, pixels: Sequence[NDArray[np.uint8]], texts: Sequence[str]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Unit rows of both; by the estimator's own `encode_pairs` where it has one, which lets a GPU work meanwhile."""
    none = np.zeros((0, 0), np.float32)
    together = getattr(estimator, "encode_pairs", None)
    if together is not None and pixels and texts:
        images, captions = together(pixels, texts)
        return normalise(images), normalise(captions)
    captions = normalise(estimator.encode_texts(texts)) if texts else none
    return normalise(estimator.encode_pixels(pixels)) if pixels else none, captions


def score_pairs(similarity: NDArray[np.float32], beta: Beta, calibration: PairCalibration | None = None) -> PairScores:
    """Weights, probabilities and the cut w > 0 for cosines (N,); NaN (no pair) stays NaN and is not clean."""
    known = ~np.isnan(similarity)
    weight = np.where(known, osa_weight(similarity.astype(np.float64), beta.value), np.nan).astype(np.float32)
    probability = calibration.clean_probability(similarity) if calibration is not None else None
    return PairScores(weight, probability, np.nan_to_num(weight) > 0)
