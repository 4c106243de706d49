"""The first readable pairs of some shards, to try a model before a long job."""

from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators.base import Estimator
from noisegate.pipeline.settings import DecodeOptions
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.stream import Chunk, ShardFailed, stream
from noisegate.pipeline.shards.workers import Decoded, DecodePool, default_workers
from noisegate.pipeline.system.array_types import Float32

from .beta import PairSample, sample_pairs
from .scorer import Encoded, encode_samples


def sample_first_pairs(
    shards: Sequence[Shard],
    estimator: Estimator,
    count: int,
    workers: int | None = None,
    seed: int = 0,
    text_field: str | None = None,
) -> PairSample:
    """Cosines of the first `count` good pairs, and of mismatched ones made from them; raises ConfigError if there are none."""
    encoded = embed_pairs(estimator, read_pairs(shards, estimator, count, workers, text_field=text_field))
    return sample_pairs(encoded.images, encoded.texts, np.random.default_rng(seed))


def read_pairs(
    shards: Sequence[Shard],
    estimator: Estimator,
    count: int,
    workers: int | None = None,
    note: Callable[[str], None] | None = None,
    text_field: str | None = None,
) -> list[Decoded]:
    """Read and preprocess the first `count` samples that have a picture and a caption.

    `note` is called with the error of a shard that cannot be read. Raises ConfigError if no pair is found.
    """
    if count < 1:
        raise ConfigError.of("samples", count, "is too few; use 2000")
    samples: list[Decoded] = []
    problem: str | None = None
    reason = "no sample has both a picture and a caption"
    workers = default_workers() if workers is None else workers
    with (
        DecodePool(workers, estimator.preprocess, DecodeOptions(text_field=text_field)) as pool,
        closing(stream(shards, pool, 2 * max(1, workers) + 2)) as items,
    ):
        for item in items:
            if isinstance(item, Chunk):
                samples += [sample for sample in item.samples if sample.status == "ok"]
                reason = next((sample.error for sample in item.samples if sample.error), reason)
            elif isinstance(item, ShardFailed):
                problem = item.error
                if note is not None:
                    note(problem)
            if len(samples) >= count:
                break
    if not samples:
        others = f" and {len(shards) - 1:,} more" if len(shards) > 1 else ""
        raise ConfigError(
            f"no pair can be read from {shards[0].url}{others}: {problem or reason}", "shards", shards[0].url
        )
    return samples[:count]


def embed_pairs(estimator: Estimator, samples: Sequence[Decoded]) -> Encoded:
    """Unit embeddings of the pairs; a sample whose embedding is not finite gets the status `invalid` and zeros."""
    known_texts: dict[str, Float32] = {}
    size = estimator.batch_size
    parts = [encode_samples(estimator, samples[i : i + size], known_texts) for i in range(0, len(samples), size)]
    return Encoded(
        np.concatenate([part.images for part in parts]),
        np.concatenate([part.texts for part in parts]),
        np.concatenate([part.similarity for part in parts]),
    )
