"""The scorer of pairs: status, cosine, weight and probability; used by the job, the service, `score` and `verify`.

`encode_samples` embeds a batch, `score_pairs` turns cosines into scores. A `Scorer` does both for pictures and captions;
`load_scorer` loads the scorer of a finished run.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from noisegate.pipeline.errors import ConfigError, MismatchError, TableError
from noisegate.pipeline.estimators import ModelSpec
from noisegate.pipeline.estimators.base import (
    Estimator,
    Identity,
    find_truncated,
    invalid_embedding,
    normalise,
    row_cosines,
)
from noisegate.pipeline.runs.table import TRUNCATED, RunFolder, read_metadata
from noisegate.pipeline.settings import Limits, ScoreSettings, check_beta_mode, check_decoder
from noisegate.pipeline.shards.decode import BadSample
from noisegate.pipeline.shards.given_pairs import Picture, decode_pair
from noisegate.pipeline.shards.pixels import decode_array, decoder_name
from noisegate.pipeline.shards.workers import Decoded
from noisegate.pipeline.system.array_types import Float32, Mask

from .beta import Beta, estimate_beta, measure_beta
from .calibration import LIKELY, QUALITY, PairCalibration
from .osa import osa_weight
from .pair_pool import RunPool, read_pool

NO_POOL = (
    "P(clean) is unknown: it comes from pair_quality, and the run's embeddings, which new pairs need, were dropped"
)


@dataclass
class Encoded:
    """Unit embeddings (N, d) of a batch, rows of zeros where there is no picture or no text, and the cosines (N,)."""

    images: Float32
    texts: Float32
    similarity: Float32


@dataclass(frozen=True)
class PairScores:
    """Scores of N pairs: OSA's weight, P(clean), and whether a pair is clean by the cut; NaN if there is no score."""

    osa_weight: Float32
    clean_probability: Float32
    cut: str

    @property
    def clean(self) -> Mask:
        """Which pairs are kept, (N,); False also for pairs that are not `decided`."""
        by = self.osa_weight, 0.0
        if self.cut == "probability":
            by = self.clean_probability, LIKELY
        return np.nan_to_num(by[0]) > by[1]

    @property
    def decided(self) -> Mask:
        """Which pairs have the score that the cut uses, (N,)."""
        return ~np.isnan(self.clean_probability if self.cut == "probability" else self.osa_weight)

    def row(self, i: int) -> dict[str, Any]:
        """Return the scores of pair i by column name, None for missing scores."""
        weight, probability = float(self.osa_weight[i]), float(self.clean_probability[i])
        return {
            "osa_weight": None if np.isnan(weight) else weight,
            "clean_probability": None if np.isnan(probability) else probability,
            "clean": bool(self.clean[i]) if self.decided[i] else None,
        }


def encode_samples(estimator: Estimator, samples: Sequence[Decoded], known_texts: dict[str, Float32]) -> Encoded:
    """Embed a batch, give samples whose embedding is not finite the status `invalid`, and flag texts that the model cuts.

    Each text is encoded once: `known_texts` holds the texts of this shard that were embedded so far; texts of other shards are
    not shared, so that a row never depends on another shard.
    """
    pictures = [i for i, sample in enumerate(samples) if sample.pixels is not None]
    captions = [i for i, sample in enumerate(samples) if sample.text is not None]
    fresh = list(dict.fromkeys(s.text for s in samples if s.text is not None and s.text not in known_texts))
    pixels = [p for s in samples if (p := s.pixels) is not None]
    image_rows, fresh_rows = _encode_both(estimator, pixels, fresh)
    known_texts.update(zip(fresh, fresh_rows, strict=True))
    texts_here = list(dict.fromkeys(s.text for s in samples if s.text is not None))
    truncated = set(compress(texts_here, find_truncated(estimator, texts_here)))
    for sample in samples:
        if sample.text in truncated:
            sample.flags = (*sample.flags, TRUNCATED)
    text_rows = [known_texts[s.text] for s in samples if s.text is not None]
    width = image_rows.shape[1] or (len(text_rows[0]) if text_rows else 0)
    images = np.zeros((len(samples), width), np.float32)
    texts = np.zeros((len(samples), len(text_rows[0]) if text_rows else width), np.float32)
    if pictures:
        images[pictures] = image_rows
    if captions:
        texts[captions] = np.stack(text_rows)
    for part, rows, present in (("image", images, pictures), ("text", texts, captions)):
        for i in present:
            if samples[i].status == "ok" and not rows[i].any():
                samples[i].status, samples[i].error = _explain_zeros(samples[i], part)
    if images.shape[1] != texts.shape[1] and (images.any(axis=1) & texts.any(axis=1)).any():
        raise ConfigError.of(
            "model",
            estimator.identity.model,
            f"gives pictures {images.shape[1]} numbers and texts {texts.shape[1]}; use one with a space for both",
        )
    return Encoded(images, texts, row_cosines(images, texts))


def _explain_zeros(sample: Decoded, part: str) -> tuple[str, str]:
    """Return status and error of a sample without an embedding; if the GPU had to decode its file, find out what is wrong."""
    if part == "image" and sample.pixels is not None and sample.pixels.ndim == 1:
        try:
            decode_array(sample.pixels.tobytes(), Limits())
        except BadSample as error:
            return error.status, str(error)
    return "invalid", invalid_embedding(part)


def _encode_both(estimator: Estimator, pixels: Sequence[Any], texts: Sequence[str]) -> tuple[Float32, Float32]:
    """Embed both as unit rows; the estimator's `encode_pairs`, if it has one, overlaps the two on a GPU."""
    none = np.zeros((0, 0), np.float32)
    encode_pairs = getattr(estimator, "encode_pairs", None)
    if encode_pairs is not None and pixels and texts:
        images, captions = encode_pairs(pixels, texts)
        return normalise(images), normalise(captions)
    captions = normalise(estimator.encode_texts(texts)) if texts else none
    return normalise(estimator.encode_pixels(pixels)) if pixels else none, captions


def encode_pairs(estimator: Estimator, pairs: Iterable[Any]) -> Iterator[tuple[list[Decoded], Encoded]]:
    """Decode and embed (picture, caption) pairs in batches; one batch of pictures is in memory at a time."""
    known_texts: dict[str, Float32] = {}
    remaining = iter(pairs)
    while batch := list(islice(remaining, estimator.batch_size)):
        samples = [decode_pair(pair, estimator.preprocess) for pair in batch]
        yield samples, encode_samples(estimator, samples, known_texts)


def score_pairs(
    similarity: Float32,
    beta: Beta,
    calibration: PairCalibration | None = None,
    quality: Float32 | None = None,
    cut: str = ScoreSettings.cut,
) -> PairScores:
    """Score cosines (N,) and, if the calibration takes it, `pair_quality` (N,); NaN (no pair) stays NaN."""
    known = ~np.isnan(similarity)
    weight = np.where(known, osa_weight(similarity.astype(np.float64), beta.value), np.nan).astype(np.float32)
    probability = np.full(len(similarity), np.nan, np.float32)
    if calibration is not None and calibration.score != QUALITY:
        probability = calibration.clean_probability(similarity)
    elif calibration is not None and quality is not None:
        probability = calibration.clean_probability(quality)
    return PairScores(weight, probability, cut)


def pair_columns(
    table: pa.Table,
    beta: Beta,
    calibration: PairCalibration | None,
    quality: Float32 | None = None,
    cut: str = ScoreSettings.cut,
) -> dict[str, Any]:
    """Compute the score columns from the table's `similarity` and `quality` (N,), null for failed samples."""
    failed = pc.not_equal(table["status"], "ok").to_numpy()
    cosines = np.where(failed, np.nan, table["similarity"].to_numpy()).astype(np.float32)
    if quality is not None:
        quality = np.where(failed, np.nan, quality).astype(np.float32)
    scores = score_pairs(cosines, beta, calibration, quality, cut)
    return {
        "osa_weight": scores.osa_weight,
        "clean": pa.array(scores.clean, mask=~scores.decided),
        "clean_probability": scores.clean_probability,
    }


@dataclass(frozen=True)
class Scorer:
    """A loaded model with its β and, from a run, calibration and pool; `notes` are remarks for the user."""

    estimator: Estimator
    beta: Beta
    calibration: PairCalibration | None = None
    notes: tuple[str, ...] = ()
    pool: RunPool | None = None
    cut: str = ScoreSettings.cut

    def quality(self, encoded: Encoded) -> Float32:
        """Compute `pair_quality` (N,) against the pool; NaN without a pair or a pool."""
        if self.pool is None or not np.isfinite(encoded.similarity).any():
            return np.full(len(encoded.similarity), np.nan, np.float32)
        return self.pool.quality(encoded.images, encoded.texts, encoded.similarity)

    def score(self, images: Iterable[Picture], texts: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Score pairs in batches; yield for each pair a row with the column names of the weight table.

        A bad picture or caption is a row with a status and no scores.
        """
        for samples, encoded in encode_pairs(self.estimator, zip(images, texts, strict=True)):
            quality = self.quality(encoded)
            scores = score_pairs(encoded.similarity, self.beta, self.calibration, quality, self.cut)
            for i, sample in enumerate(samples):
                ok = sample.status == "ok"
                yield {
                    "status": sample.status,
                    "error": sample.error,
                    "similarity": float(encoded.similarity[i]) if ok else None,
                    **{name: value if ok else None for name, value in scores.row(i).items()},
                    "pair_quality": float(quality[i]) if ok and np.isfinite(quality[i]) else None,
                    "flags": list(sample.flags),
                }


@dataclass(frozen=True)
class RecordedScorer:
    """The scorer that a finished run records, not loaded. `beta` is None for a run without pair scores."""

    folder: Path
    run: Mapping[str, Any]  # content of _run.json
    identity: Identity
    beta: Beta | None
    calibration: PairCalibration | None
    cut: str = ScoreSettings.cut

    def compare(self, identity: Identity) -> list[str]:
        """List differing versions of libraries; raise MismatchError if `identity` is another model."""
        if differences := self.identity.differences(identity, versions=False):
            raise MismatchError.of(
                "model", identity.model, "\n  ".join((f"is another model than that of {self.folder}:", *differences))
            )
        return self.identity.differences(identity)


def load_scorer(
    run: str | Path | None = None,
    *,
    model: str | None = None,
    pretrained: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    beta: str = "auto",
    trust: bool = False,
) -> Scorer:
    """Load the scorer of a finished run, or a model (default `embedded`) with its own β.

    `model`, `dtype` and `beta` override the run's record. Raises MismatchError if the model is not the run's own; different
    versions of libraries only give a note. A recorded model that is code, a folder or on the hub is loaded only if `model`
    names it, or with `trust`: the run's folder may come from another person.
    """
    beta = check_beta_mode(beta, has_data=False)
    if run is None:
        estimator = ModelSpec(model or "embedded", pretrained, device, dtype)()
        return Scorer(estimator, _beta_of_model(estimator, beta))
    recorded = read_scorer(run)
    if recorded.beta is None and beta == "auto":
        raise TableError(f"{run} records no β: its pairs were not scored; use --beta random_inputs", "run", str(run))
    estimator = model_of_run(recorded.run, model, pretrained, device, dtype, trust=trust)()
    differences = recorded.compare(estimator.identity)
    notes: tuple[str, ...] = (f"libraries are not the run's own: {'; '.join(differences)}",) if differences else ()
    own = recorded.beta if recorded.beta is not None and beta == "auto" else _beta_of_model(estimator, beta)
    pool = read_pool(RunFolder(recorded.folder))
    if pool is None and recorded.calibration is not None and recorded.calibration.score == QUALITY:
        notes = (*notes, NO_POOL)
    return Scorer(estimator, own, recorded.calibration, notes, pool, recorded.cut)


def _beta_of_model(estimator: Estimator, mode: str) -> Beta:
    mode = "random_inputs" if mode == "auto" else mode
    return estimate_beta(mode=mode, random_inputs=lambda: measure_beta(estimator))


def read_scorer(folder: str | Path) -> RecordedScorer:
    """Read a finished run's record of its scorer; raise TableError if there is no run or it is not finished."""
    run = RunFolder.to_read(folder)
    recorded = run.recorded()
    if recorded.get("finished") is False:
        raise TableError.of("run", str(folder), "is not finished; run the same annotate command again, it goes on")
    stem = next(run.stems(), None)  # all tables of a finished run record the same scoring
    scoring = (None, None, ScoreSettings.cut) if stem is None else read_scoring(run, stem)
    return RecordedScorer(run.path, recorded, Identity.from_dict(recorded["scorer"]), *scoring)


def read_scoring(run: RunFolder, stem: str) -> tuple[Beta | None, PairCalibration | None, str]:
    """Read β and calibration from a table's record, None if missing, and the rule of `clean`."""
    metadata = read_metadata(run.table(stem))
    beta, plain = metadata.get("beta"), metadata.get("calibration")
    calibration = PairCalibration.from_dict(plain) if plain else None
    return Beta.from_dict(beta) if beta else None, calibration, metadata.get("cut") or ScoreSettings.cut


def is_from_training(run: Mapping[str, Any]) -> bool:
    """Return whether a training wrote the tables without a pretrained model: its own network scored them while it learnt."""
    return not run.get("model") and "method" in run


def model_of_run(
    run: Mapping[str, Any],
    model: str | None = None,
    pretrained: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    batch_size: int | None = None,
    trust: bool = False,
    decoder: str = "auto",
) -> ModelSpec:
    """Return the model of `_run.json`, or another `model`, with the run's precision and decoding.

    The recorded precision and decoder replace `auto`, which may choose differently elsewhere. Raises ConfigError for a recorded
    model that is not open_clip's own, unless `trust`.
    """
    recorded = run.get("model") or {}
    if model is None:
        if not recorded:
            raise ConfigError(
                "model is not recorded; name it with --model (serve --model embedded is enough to look at the run), or use "
                "verify --no-rescore",
                "model",
            )
        model, pretrained = recorded["model"], recorded["pretrained"]
        if not trust and (effect := ModelSpec(model, pretrained).describe_outside()):
            named = f"--model {model}" + (f" --pretrained {pretrained}" if pretrained else "")
            raise ConfigError.of(
                "model",
                model,
                f"is recorded by the run, and loading it {effect}; if you trust that, give {named}, or --trust-run "
                "(Python: trust=True)",
            )
        if model.startswith("python:"):
            device = dtype = "auto"  # a user's own model chooses both itself
    if dtype == "auto" and not model.startswith("python:"):
        dtype = str(run["scorer"]["dtype"])
    if decoder == "auto" and not model.startswith("python:"):
        decoder = decoder_name(run["scorer"])
    return ModelSpec(
        model, pretrained, device, dtype, batch_size, bool(recorded.get("draft")), decoder=check_decoder(decoder)
    )
