"""The first readable pairs of some shards as cosines, for a look at a model before a long job."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .beta import PairSample, sample_pairs
from .errors import ConfigError
from .estimators.base import Estimator
from .scorer import encode
from .shards import Shard
from .stream import Chunk, ShardFailed, stream
from .workers import Decoded, DecodeOptions, DecodePool, default_workers

__all__ = ["first_pairs"]


def first_pairs(
    shards: Sequence[Shard], estimator: Estimator, count: int, workers: int | None = None, seed: int = 0
) -> PairSample:
    """Cosines of the first `count` good pairs and of mismatched ones made from them; raises ConfigError when none is good."""
    samples: list[Decoded] = []
    problem = "no sample has both a picture and a caption"
    workers = default_workers() if workers is None else workers
    with DecodePool(workers, estimator.preprocess, DecodeOptions()) as pool:
        for item in stream(shards, pool, 2 * max(1, workers) + 2):
            if isinstance(item, Chunk):
                samples += [sample for sample in item.samples if sample.status == "ok"]
            elif isinstance(item, ShardFailed):
                problem = item.error
            if len(samples) >= count:
                break
    samples = samples[:count]
    if not samples:
        raise ConfigError(f"no pair can be read from {shards[0].url} and the {len(shards) - 1} others: {problem}")
    known: dict[str, NDArray[np.float32]] = {}
    size = estimator.batch_size
    parts = [encode(estimator, samples[i : i + size], known) for i in range(0, len(samples), size)]
    images, texts = np.concatenate([p.images for p in parts]), np.concatenate([p.texts for p in parts])
    return sample_pairs(images, texts, np.random.default_rng(seed))
