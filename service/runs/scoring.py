"""The service's scorer: model, β and calibration of a finished run, or a model with a set or measured β."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from noisegate.pipeline.estimators import Identity, ModelSpec
from noisegate.pipeline.pairs import (
    NO_POOL,
    QUALITY,
    Beta,
    PairCalibration,
    RecordedScorer,
    RunPool,
    estimate_beta,
    model_of_run,
    read_pool,
    read_scorer,
    score_pairs,
)
from noisegate.pipeline.runs import RunFolder
from noisegate.pipeline.settings import ScoreSettings
from noisegate.pipeline.system import Float32
from noisegate.service.engine.items import Embedded
from noisegate.service.errors import Unavailable
from noisegate.service.settings import Settings

log = logging.getLogger("noisegate.scoring")


@dataclass
class ServiceScorer:
    """The scorer of a service, whose model is loaded in other processes; `complete` takes their reports.

    `recorded` is the scorer of the run that this one comes from; `run` is that run's name.
    """

    spec: ModelSpec
    beta: Beta | None = None
    calibration: PairCalibration | None = None
    recorded: RecordedScorer | None = None
    run: str | None = None
    identity: Identity | None = None
    pool: RunPool | None = None
    cut: str = ScoreSettings.cut

    @property
    def measure(self) -> bool:
        """Whether β must still be measured with the model."""
        return self.beta is None

    def complete(self, identity: Identity, measured: Beta | None) -> None:
        """Take the identity and β of the loaded model; raise MismatchError if it is not the model of the run."""
        if self.recorded is not None and (differences := self.recorded.compare(identity)):
            log.warning("libraries are not the run's own", extra={"run": self.run, "differences": differences})
        self.identity, self.beta = identity, self.beta or measured

    def score(self, embedded: Sequence[Embedded]) -> list[dict[str, float | bool | None]]:
        """Compute weight, probability, cut and quality of each pair, as in the table; None for missing values.

        With a pool this takes milliseconds: call it in a thread.
        """
        if self.beta is None:
            raise Unavailable("not_ready", "the model is loading", 2)
        cosines = np.array([np.nan if e.similarity is None else e.similarity for e in embedded], np.float32)
        quality = self._pair_quality(embedded, cosines)
        scores = score_pairs(cosines, self.beta, self.calibration, quality, self.cut)
        known = np.isfinite(quality)
        return [
            {**scores.row(i), "pair_quality": float(quality[i]) if known[i] else None} for i in range(len(embedded))
        ]

    def _pair_quality(self, embedded: Sequence[Embedded], cosines: Float32) -> Float32:
        """Compute the quality (N,) of each pair against the pool of the run; NaN without a pair or a pool."""
        quality = np.full(len(embedded), np.nan, np.float32)
        pairs = np.flatnonzero(np.isfinite(cosines))
        if self.pool is not None and len(pairs):
            images, texts = (
                np.stack([getattr(embedded[i], part) for i in pairs.tolist()]) for part in ("image", "text")
            )
            quality[pairs] = self.pool.quality(images, texts, cosines[pairs])
        return quality

    def facts(self) -> dict[str, Any]:
        """Return the facts of `GET /v1/scorer` as JSON values."""
        calibration = None
        if self.calibration is not None and self.beta is not None:
            values = self.calibration.to_dict()
            names = ("score", "noise_rate", "noise_interval", "method", "ece", "crossing", "pairs", "mismatched")
            expected = self.calibration.expected_of(self.cut, self.beta.value)._asdict()
            calibration = {name: values[name] for name in names} | {
                "expected": {name: float(value) if np.isfinite(value) else None for name, value in expected.items()}
            }
        return {
            "beta": self.beta.to_dict() if self.beta else None,
            "calibration": calibration,
            "cut": self.cut,
            "run": self.run,
            "identity": self.identity.to_dict() if self.identity else None,
            "scorer": self.identity.digest if self.identity else None,
        }


def plan_scorer(settings: Settings) -> ServiceScorer:
    """Make the scorer of these settings, as far as it is known before the model is loaded.

    With `scorer_run`, or with runs and no model, a run gives model, β and calibration; a set `beta` overrides the run's.
    """
    batch_size = settings.batch_size
    name = settings.scorer_run or (next(iter(settings.runs), None) if settings.model is None else None)
    if name is None:
        spec = ModelSpec(
            settings.model or "embedded",
            settings.pretrained,
            dtype=settings.dtype,
            batch_size=batch_size,
            decoder=settings.decoder,
        )
        scorer = ServiceScorer(spec)
    else:
        recorded = read_scorer(settings.runs[name])
        spec = model_of_run(
            recorded.run,
            settings.model,
            settings.pretrained,
            dtype=settings.dtype,
            batch_size=batch_size,
            trust=settings.trust_run,
            decoder=settings.decoder,
        )
        pool = read_pool(RunFolder(recorded.folder))
        scorer = ServiceScorer(spec, recorded.beta, recorded.calibration, recorded, name, pool=pool, cut=recorded.cut)
        if pool is None and recorded.calibration is not None and recorded.calibration.score == QUALITY:
            log.warning(NO_POOL, extra={"run": name})
    if settings.beta.startswith("fixed:"):
        scorer.beta = estimate_beta(mode=settings.beta)
    elif settings.beta == "random_inputs":
        scorer.beta = None
    return scorer
