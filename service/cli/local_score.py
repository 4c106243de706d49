"""Pairs scored in this process, without a service: the same decoding, encoding and scoring as a run's. Needs no fastapi."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import MismatchError, TableError
from noisegate.pipeline.estimators import ModelSpec
from noisegate.pipeline.estimators.base import Estimator, Identity
from noisegate.pipeline.inspect.verify.rescore import dtype_of, recorded_model
from noisegate.pipeline.pairs.beta import Beta, check_mode, estimate_beta, measure_beta
from noisegate.pipeline.pairs.calibration import PairCalibration
from noisegate.pipeline.pairs.pair_fit import recorded_scoring
from noisegate.pipeline.pairs.scorer import encode, score_pairs
from noisegate.pipeline.runs.table import RunFolder
from noisegate.pipeline.shards.read import RawSample
from noisegate.pipeline.shards.workers import DecodeOptions, decode_sample

__all__ = ["LocalScorer", "load_scorer", "scorer_of_run"]


@dataclass(frozen=True)
class LocalScorer:
    """A loaded model with what its cosines mean; `notes` are for whoever reads the scores."""

    estimator: Estimator
    beta: Beta
    calibration: PairCalibration | None = None
    notes: tuple[str, ...] = ()

    def score(self, pairs: Iterable[tuple[bytes | OSError, str]]) -> Iterator[dict[str, Any]]:
        """One result for each pair, with the names of the weight table; an image that could not be read is its OSError."""
        waiting = iter(pairs)
        known: dict[str, NDArray[np.float32]] = {}
        while part := list(islice(waiting, self.estimator.batch_size)):
            samples = [
                decode_sample(_raw(image, text), self.estimator.preprocess, DecodeOptions()) for image, text in part
            ]
            for sample, (image, _) in zip(samples, part, strict=True):
                if isinstance(image, OSError):
                    sample.error = f"{image.filename}: {image.strerror}" if image.filename else str(image)
            found = encode(self.estimator, samples, known)
            scores = score_pairs(found.similarity, self.beta, self.calibration)
            for i, sample in enumerate(samples):
                ok = sample.status == "ok"
                chance = scores.clean_probability[i] if scores.clean_probability is not None else None
                yield {
                    "status": sample.status,
                    "error": sample.error,
                    "similarity": float(found.similarity[i]) if ok else None,
                    "osa_weight": float(scores.osa_weight[i]) if ok else None,
                    "clean_probability": float(chance) if ok and chance is not None else None,
                    "clean": bool(scores.clean[i]) if ok else None,
                }


def _raw(image: bytes | OSError, text: str) -> RawSample:
    """A pair as a shard would hold it."""
    parts = {"txt": text.encode("utf-8", "surrogatepass")}
    if isinstance(image, bytes):
        parts["png"] = image
    return RawSample("", 0, parts, list(parts))


def load_scorer(spec: ModelSpec, beta: str = "auto") -> LocalScorer:
    """A model with its own β: of random inputs, remembered from run to run, or `fixed:VALUE`."""
    check_beta(beta)
    model = spec()
    return LocalScorer(model, _own_beta(model, beta))


def scorer_of_run(folder: Path, beta: str = "auto", spec: ModelSpec | None = None, device: str = "auto") -> LocalScorer:
    """Model, β and calibration of a finished run; a `beta` other than auto, and a `spec`, win over the run's own.

    Raises MismatchError where the model is another one; other versions of libraries are a note.
    """
    check_beta(beta)
    run = RunFolder(folder)
    stem = _first_table(run)
    recorded = run.read_run() or {}
    found, calibration = recorded_scoring(run, stem)
    if spec is None:
        spec = recorded_model(recorded, device)
    elif spec.dtype == "auto":
        spec = replace(spec, dtype=dtype_of(recorded, spec.model))
    model = spec()
    differences = Identity.from_dict(recorded["scorer"]).differences(model.identity)
    if other := Identity.from_dict(recorded["scorer"]).differences(model.identity, versions=False):
        raise MismatchError(
            f"{folder} was scored by another model than the one that is loaded:\n  " + "\n  ".join(other)
        )
    notes = (f"libraries are not the run's own: {'; '.join(differences)}",) if differences else ()
    return LocalScorer(model, found if beta == "auto" else _own_beta(model, beta), calibration, notes)


def check_beta(mode: str) -> None:
    """Refuse, before a model is loaded, what a model alone cannot give."""
    check_mode(mode, has_data=False)


def _own_beta(model: Estimator, mode: str) -> Beta:
    return estimate_beta(mode="random_inputs" if mode == "auto" else mode, random_inputs=lambda: measure_beta(model))


def _first_table(run: RunFolder) -> str:
    """Any table: all of a finished run record the same scoring."""
    if (run.read_run() or {}).get("finished") is False:
        raise TableError(f"the run in {run.path} is not finished; run the same annotate command again, it goes on")
    for stem in run.stems():
        return stem
    raise TableError(f"{run.path} holds no weight tables; use a folder that `noisegate annotate` wrote")
