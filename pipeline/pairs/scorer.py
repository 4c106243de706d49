"""The scorer: status, cosine, weight and probability of a pair, the same for the job, the service, `score` and `verify`.

`encode_samples` embeds a batch, `score_pairs` turns cosines into scores. A `Scorer` does both for pictures and captions;
`load_scorer` makes the one of a finished run.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from noisegate.pipeline.errors import ConfigError, MismatchError, TableError
from noisegate.pipeline.estimators import ModelSpec
from noisegate.pipeline.estimators.base import Estimator, Identity, invalid_embedding, normalise, row_cosines
from noisegate.pipeline.runs.table import RunFolder, read_metadata
from noisegate.pipeline.settings import check_beta_mode
from noisegate.pipeline.shards.given_pairs import Picture, decode_pair
from noisegate.pipeline.shards.workers import Decoded
from noisegate.pipeline.system.array_types import Float32, Mask

from .beta import Beta, estimate_beta, measure_beta
from .calibration import PairCalibration
from .osa import osa_weight
from .pair_pool import RunPool, read_pool


@dataclass
class Encoded:
    """Unit embeddings (N, d) of a batch, rows of zeros where there is no picture or no text, and the cosines (N,)."""

    images: Float32
    texts: Float32
    similarity: Float32


@dataclass(frozen=True)
class PairScores:
    """Scores of cosines (N,): OSA's weight, P(clean) (None without a calibration), and whether the weight is above 0."""

    osa_weight: Float32
    clean_probability: Float32 | None
    clean: Mask


def encode_samples(estimator: Estimator, samples: Sequence[Decoded], known_texts: dict[str, Float32]) -> Encoded:
    """Embed a batch and give samples whose embedding is not finite the status `invalid`.

    Each text is encoded once: `known_texts` holds those embedded so far, of the same shard only, so that a row never
    depends on another shard.
    """
    pictures = [i for i, sample in enumerate(samples) if sample.pixels is not None]
    captions = [i for i, sample in enumerate(samples) if sample.text is not None]
    fresh = list(dict.fromkeys(s.text for s in samples if s.text is not None and s.text not in known_texts))
    pixels = [p for s in samples if (p := s.pixels) is not None]
    image_rows, fresh_rows = _encode_both(estimator, pixels, fresh)
    known_texts.update(zip(fresh, fresh_rows, strict=True))
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
                samples[i].status, samples[i].error = "invalid", invalid_embedding(part)
    if images.shape[1] != texts.shape[1] and (images.any(axis=1) & texts.any(axis=1)).any():
        raise ConfigError.of(
            "model",
            estimator.identity.model,
            f"gives pictures {images.shape[1]} numbers and texts {texts.shape[1]}; use one with a space for both",
        )
    return Encoded(images, texts, row_cosines(images, texts))


def _encode_both(estimator: Estimator, pixels: Sequence[Any], texts: Sequence[str]) -> tuple[Float32, Float32]:
    """Unit rows of both; by the estimator's own `encode_pairs` if it has one, which overlaps the two on a GPU."""
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


def score_pairs(similarity: Float32, beta: Beta, calibration: PairCalibration | None = None) -> PairScores:
    """Weights, probabilities and the cut w > 0 for cosines (N,); NaN (no pair) stays NaN and is not clean."""
    known = ~np.isnan(similarity)
    weight = np.where(known, osa_weight(similarity.astype(np.float64), beta.value), np.nan).astype(np.float32)
    probability = calibration.clean_probability(similarity) if calibration is not None else None
    return PairScores(weight, probability, np.nan_to_num(weight) > 0)


def pair_columns(table: pa.Table, beta: Beta, calibration: PairCalibration | None) -> dict[str, Any]:
    """The score columns that follow from the table's `similarity`, null where the sample failed."""
    scores = score_pairs(table["similarity"].to_numpy().astype(np.float32), beta, calibration)
    ok = pc.equal(table["status"], "ok").to_numpy()
    weight = np.where(ok, scores.osa_weight, np.nan)
    probability = np.full(len(ok), np.nan) if scores.clean_probability is None else scores.clean_probability
    return {
        "osa_weight": weight,
        "clean": pa.array(scores.clean, mask=np.isnan(weight)),
        "clean_probability": np.where(ok, probability, np.nan),
    }


@dataclass(frozen=True)
class Scorer:
    """A loaded model with its β and, from a run, its calibration and pool; `notes` are remarks for the reader of the scores."""

    estimator: Estimator
    beta: Beta
    calibration: PairCalibration | None = None
    notes: tuple[str, ...] = ()
    pool: RunPool | None = None

    def score(self, images: Iterable[Picture], texts: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Score pairs in batches: for each a row with the column names of the weight table.

        A bad picture or caption is a row with a status and no scores.
        """
        for samples, encoded in encode_pairs(self.estimator, zip(images, texts, strict=True)):
            scores = score_pairs(encoded.similarity, self.beta, self.calibration)
            probability = scores.clean_probability
            quality = np.full(len(samples), np.nan)
            if self.pool is not None and np.isfinite(encoded.similarity).any():
                quality = self.pool.quality(encoded.images, encoded.texts, encoded.similarity)
            for i, sample in enumerate(samples):
                ok = sample.status == "ok"
                yield {
                    "status": sample.status,
                    "error": sample.error,
                    "similarity": float(encoded.similarity[i]) if ok else None,
                    "osa_weight": float(scores.osa_weight[i]) if ok else None,
                    "clean_probability": float(probability[i]) if ok and probability is not None else None,
                    "clean": bool(scores.clean[i]) if ok else None,
                    "pair_quality": float(quality[i]) if ok and np.isfinite(quality[i]) else None,
                }


@dataclass(frozen=True)
class RecordedScorer:
    """The scorer that a finished run records, not loaded. `beta` is None for a run without pair scores."""

    folder: Path
    run: Mapping[str, Any]  # what _run.json says
    identity: Identity
    beta: Beta | None
    calibration: PairCalibration | None

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

    `model`, `dtype` and `beta` win over what the run records. Raises MismatchError if the model is not the run's own; other
    versions of libraries are a note. A recorded model that is code, a folder or on the hub is loaded only if `model` names
    it, or with `trust`: the folder may come from somebody else.
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
    notes = (f"libraries are not the run's own: {'; '.join(differences)}",) if differences else ()
    own = recorded.beta if recorded.beta is not None and beta == "auto" else _beta_of_model(estimator, beta)
    return Scorer(estimator, own, recorded.calibration, notes, read_pool(RunFolder(recorded.folder)))


def _beta_of_model(estimator: Estimator, mode: str) -> Beta:
    mode = "random_inputs" if mode == "auto" else mode
    return estimate_beta(mode=mode, random_inputs=lambda: measure_beta(estimator))


def read_scorer(folder: str | Path) -> RecordedScorer:
    """Read what a finished run records of its scorer; raise TableError if there is no run or it is not finished."""
    run = RunFolder.to_read(folder)
    recorded = run.recorded()
    if recorded.get("finished") is False:
        raise TableError.of("run", str(folder), "is not finished; run the same annotate command again, it goes on")
    stem = next(run.stems(), None)  # all tables of a finished run record the same scoring
    beta, calibration = (None, None) if stem is None else read_scoring(run, stem)
    return RecordedScorer(run.path, recorded, Identity.from_dict(recorded["scorer"]), beta, calibration)


def read_scoring(run: RunFolder, stem: str) -> tuple[Beta | None, PairCalibration | None]:
    """β and calibration as a table records them, None for those it does not have."""
    metadata = read_metadata(run.table(stem))
    beta, calibration = metadata.get("beta"), metadata.get("calibration")
    return Beta.from_dict(beta) if beta else None, PairCalibration.from_dict(calibration) if calibration else None


def is_from_training(run: Mapping[str, Any]) -> bool:
    """Whether a training wrote the tables without a pretrained model: its own network scored them while it learnt."""
    return not run.get("model") and "method" in run


def model_of_run(
    run: Mapping[str, Any],
    model: str | None = None,
    pretrained: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    batch_size: int | None = None,
    trust: bool = False,
) -> ModelSpec:
    """The model that `_run.json` names, or another `model`, with the precision and decoding that the run was scored with.

    The recorded precision replaces `auto`, which may choose differently on another machine. Raises ConfigError for a
    recorded model that is not open_clip's own, unless the caller says `trust`.
    """
    recorded = run.get("model") or {}
    if model is None:
        if not recorded:
            raise ConfigError("model is not recorded; name it with --model, or use verify --no-rescore", "model")
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
    return ModelSpec(model, pretrained, device, dtype, batch_size, bool(recorded.get("draft")))
