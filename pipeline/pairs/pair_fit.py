"""Learn β and calibration of a whole run from a sample of all its shards; read cosines of the first pairs of shards."""

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from noisegate.pipeline.errors import ConfigError, MismatchError
from noisegate.pipeline.estimators.base import Estimator, paired_cosines
from noisegate.pipeline.runs.table import RunFolder, read_metadata
from noisegate.pipeline.settings import DecodeOptions, ScoreSettings
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.stream import Chunk, ShardFailed, stream
from noisegate.pipeline.shards.workers import Decoded, DecodePool, default_workers
from noisegate.pipeline.system.array_types import Float32, Floats, Index

from .beta import PAIRS, Beta, PairSample, estimate_beta, mismatch_pairs, sample_pairs
from .calibration import PairCalibration
from .judge import choose_calibration
from .pair_pool import POOL, RECORD, RunPool, draw_pairs, fit_pool, make_pool, read_pairs_of_run
from .pair_quality import round_rows
from .scorer import Encoded, encode_samples, read_scoring


@dataclass(frozen=True)
class PairFit:
    """β and calibration of one run, the sample of given pairs behind them, and the pool of `pair_quality`.

    `quality` is the tables' record of the pool, which cannot be read after the embeddings were dropped. `cut` is the rule of
    `clean`: `osa` or `probability`.
    """

    beta: Beta
    calibration: PairCalibration | None
    sample: PairSample
    pool: RunPool | None = None
    quality: dict[str, Any] | None = None
    cut: str = ScoreSettings.cut


def fit_pairs(
    run: RunFolder,
    stems: Sequence[str],
    settings: ScoreSettings,
    random_inputs: Callable[[], Beta] | None,
    device: str = "auto",
    keep_embeddings: bool = True,
) -> PairFit:
    """Learn β and calibration of a run whose shards are all encoded, and draw its pool.

    Without `keep_embeddings` the calibration uses the cosine: there will be no pool to compare new pairs with.
    """
    drawn = _draw_sample(run, stems, PAIRS, settings.seed)
    pool = fit_pool(run, stems, settings.seed, device)
    return _fit(drawn, pool, settings, random_inputs, keep_embeddings)


def fit_embeddings(
    cosines: Float32,
    images: Floats,
    texts: Floats,
    settings: ScoreSettings,
    random_inputs: Callable[[], Beta] | None,
    temperature: float | None,
) -> PairFit:
    """Like `fit_pairs`, for pairs in memory: unit rows (N, d) of float16, as a run keeps them, and exact cosines (N,).

    `temperature` is the model's own, if it has one. For up to 10,000 pairs the result is that of a run of one shard.
    """
    order = np.argsort(np.random.default_rng(settings.seed).random(len(cosines)))
    sample, pooled = np.sort(order[:PAIRS]), np.sort(order[:POOL])
    drawn = _mismatch(cosines[sample], round_rows(images[sample]), round_rows(texts[sample]), settings.seed)
    pool = make_pool(round_rows(images[pooled]), round_rows(texts[pooled]), settings.seed, temperature)
    return _fit(drawn, pool, settings, random_inputs)


def _fit(
    drawn: "_Sample",
    pool: RunPool | None,
    settings: ScoreSettings,
    random_inputs: Callable[[], Beta] | None,
    keep_embeddings: bool = True,
) -> PairFit:
    beta = estimate_beta(pairs=drawn.cosine, mode=settings.beta, random_inputs=random_inputs, seed=settings.seed)
    calibration = choose_calibration(drawn.cosine, drawn.quality(pool) if pool and keep_embeddings else None)
    return PairFit(beta, calibration, drawn.cosine, pool, pool.facts if pool else None, settings.cut)


def read_pair_fit(run: RunFolder, stems: Sequence[str], seed: int) -> PairFit:
    """Read β and calibration from the tables of a finished run whose embeddings were dropped."""
    tables = [read_metadata(run.table(stem)) for stem in stems]
    recorded = [[metadata.get(name) for name in ("beta", "calibration", RECORD, "cut")] for metadata in tables]
    if len({json.dumps(values, sort_keys=True) for values in recorded}) != 1:  # in JSON NaN equals NaN
        raise MismatchError.of("out", str(run.name), "lacks embeddings, and its scores differ; use --overwrite")
    beta, calibration, cut = read_scoring(run, stems[0])
    if beta is None:
        raise MismatchError.of("out", str(run.name), "has tables without scores; run annotate again")
    places, rows = draw_pairs(run, stems, PAIRS, seed)
    given = _similarities(run, stems, places, rows)
    sample = PairSample(given, np.zeros(0, np.float32))
    return PairFit(beta, calibration, sample, quality=tables[0].get(RECORD), cut=cut)


def sample_run(run: RunFolder, stems: Sequence[str], count: int, seed: int) -> PairSample:
    """Sample cosines of up to `count` given pairs, drawn evenly from all shards, and of mismatched pairs made from them."""
    return _draw_sample(run, stems, count, seed).cosine


@dataclass(frozen=True)
class _Sample:
    """Given pairs of a run with embeddings (N, d), and row numbers (M,) of mismatched pictures and captions."""

    cosine: PairSample
    images: Float32
    texts: Float32
    first: Index
    second: Index

    def quality(self, pool: RunPool) -> PairSample:
        """Compute `pair_quality` of the same given pairs, and of as many mismatched pairs as a calibration needs."""
        few = np.linspace(0, len(self.first), min(PAIRS, len(self.first)), endpoint=False).astype(np.int64)
        rows = np.arange(len(self.images))
        first, second = np.append(rows, self.first[few]), np.append(rows, self.second[few])
        cosines = np.append(self.cosine.given, self.cosine.mismatched[few])
        quality = pool.quality_of(self.images, self.texts, first, second, cosines)
        return PairSample(quality[: len(rows)], quality[len(rows) :])


def _draw_sample(run: RunFolder, stems: Sequence[str], count: int, seed: int) -> _Sample:
    places, rows = draw_pairs(run, stems, count, seed)
    return _mismatch(_similarities(run, stems, places, rows), *read_pairs_of_run(run, stems, places, rows), seed)


def _mismatch(cosines: Float32, images: Float32, texts: Float32, seed: int) -> _Sample:
    first, second = mismatch_pairs(images, texts, np.random.default_rng(seed))
    return _Sample(PairSample(cosines, paired_cosines(images, texts, first, second)), images, texts, first, second)


def _similarities(run: RunFolder, stems: Sequence[str], places: Index, rows: Index) -> Float32:
    read = [(run.read(stems[int(p)], ["similarity"])["similarity"], rows[places == p]) for p in np.unique(places)]
    return np.concatenate([np.zeros(0, np.float32), *(column.to_numpy()[chosen] for column, chosen in read)])


def sample_first_pairs(
    shards: Sequence[Shard],
    estimator: Estimator,
    count: int,
    workers: int | None = None,
    seed: int = 0,
    text_field: str | None = None,
) -> PairSample:
    """Return cosines of the first `count` good pairs, and of mismatched pairs made from them; raise ConfigError if none."""
    encoded = embed_pairs(estimator, read_pairs(shards, estimator, count, workers, text_field=text_field))
    return sample_pairs(encoded.images, encoded.texts, np.random.default_rng(seed))


def read_pairs(
    shards: Sequence[Shard],
    estimator: Estimator,
    count: int,
    workers: int | None = None,
    note: Callable[[str], None] | None = None,
    text_field: str | None = None,
    labels: bool = False,
) -> list[Decoded]:
    """Read and preprocess the first `count` samples that have a picture and a caption, or with `labels` a picture and a label.

    `note` is called with the error of a shard that cannot be read. Raises ConfigError if no pair is found.
    """
    if count < 1:
        raise ConfigError.of("samples", count, "is too few; use 2000")
    samples: list[Decoded] = []
    problem: str | None = None
    reason = f"no sample has both a picture and a {'label' if labels else 'caption'}"
    options = DecodeOptions(("labels",) if labels else ("pairs",), text_field)
    workers = default_workers() if workers is None else workers
    with (
        DecodePool(workers, estimator.preprocess, options) as pool,
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
        others = f"and {len(shards) - 1:,} more " if len(shards) > 1 else ""
        raise ConfigError.of("shards", shards[0].url, f"{others}have no readable pair: {problem or reason}")
    return samples[:count]


def embed_pairs(estimator: Estimator, samples: Sequence[Decoded]) -> Encoded:
    """Embed the pairs as unit rows; a sample whose embedding is not finite gets the status `invalid` and zeros."""
    known_texts: dict[str, Float32] = {}
    size = estimator.batch_size
    parts = [encode_samples(estimator, samples[i : i + size], known_texts) for i in range(0, len(samples), size)]
    return Encoded(
        np.concatenate([part.images for part in parts]),
        np.concatenate([part.texts for part in parts]),
        np.concatenate([part.similarity for part in parts]),
    )
