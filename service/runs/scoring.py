"""What a cosine means here: β and calibration of a finished run, or β as set or measured; and the scores that follow."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from noisegate.pipeline.errors import ConfigError, MismatchError
from noisegate.pipeline.estimators import ModelSpec
from noisegate.pipeline.estimators.base import Identity
from noisegate.pipeline.pairs.beta import Beta, estimate_beta
from noisegate.pipeline.pairs.calibration import PairCalibration
from noisegate.pipeline.pairs.pair_fit import recorded_scoring
from noisegate.pipeline.pairs.scorer import PairScores, score_pairs
from noisegate.pipeline.runs.table import RunFolder, read_metadata
from noisegate.service.engine.items import Embedded
from noisegate.service.errors import Unavailable
from noisegate.service.settings import Settings

__all__ = ["ServiceScorer", "plan_scorer"]

log = logging.getLogger("noisegate.scoring")


@dataclass
class ServiceScorer:
    """The scorer of a service. What is not known before the model is loaded is filled in by `complete`.

    `expected` is the identity of the run it comes from; `run` is that run's name.
    """

    spec: ModelSpec
    beta: Beta | None = None
    calibration: PairCalibration | None = None
    expected: Identity | None = None
    run: str | None = None
    identity: Identity | None = None

    @property
    def measure(self) -> bool:
        """Whether β has still to be measured with the model."""
        return self.beta is None

    def complete(self, identity: Identity, measured: Beta | None) -> None:
        """Take over what the loaded model says; raises MismatchError where it is not the one of the run.

        Other versions of libraries are a line in the log, as they are a note of `noisegate score`.
        """
        if self.expected is not None:
            if differences := self.expected.differences(identity, versions=False):
                raise MismatchError(
                    f"run {self.run!r} was scored by another model than the one that is loaded:\n  "
                    + "\n  ".join(differences)
                )
            if differences := self.expected.differences(identity):
                log.warning("libraries are not the run's own", extra={"run": self.run, "differences": differences})
        self.identity, self.beta = identity, self.beta or measured

    def score(self, embedded: Sequence[Embedded]) -> PairScores:
        """Weights, probabilities and the cut, as the table has them; NaN where there is no cosine."""
        if self.beta is None:
            raise Unavailable("not_ready", "the model is loading", 2)
        cosines = [np.nan if e.similarity is None else e.similarity for e in embedded]
        return score_pairs(np.array(cosines, np.float32), self.beta, self.calibration)

    def facts(self) -> dict[str, Any]:
        """For `GET /v1/scorer`, as JSON values."""
        calibration = None
        if self.calibration is not None and self.beta is not None:
            known = self.calibration.to_dict()
            names = ("noise_rate", "noise_interval", "method", "ece", "crossing", "pairs", "mismatched")
            calibration = {name: known[name] for name in names} | {
                "expected": _finite(self.calibration.expected(self.beta.value)._asdict())
            }
        return {
            "beta": self.beta.to_dict() if self.beta else None,
            "calibration": calibration,
            "run": self.run,
            "identity": self.identity.to_dict() if self.identity else None,
            "scorer": self.identity.digest if self.identity else None,
        }


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    return {name: float(value) if np.isfinite(value) else None for name, value in values.items()}


def plan_scorer(settings: Settings) -> ServiceScorer:
    """The scorer that the settings ask for, as far as it is known without a model.

    With `scorer_run`, or with runs and no model, that run gives model, β and calibration; `beta` set by hand wins.
    """
    name = settings.scorer_run or (next(iter(settings.runs), None) if settings.model is None else None)
    spec = ModelSpec(
        settings.model or "embedded", settings.pretrained, dtype=settings.dtype, batch_size=settings.batch_size
    )
    found = ServiceScorer(spec) if name is None else _of_run(settings, name, spec)
    if settings.beta.startswith("fixed:"):
        found.beta = estimate_beta(mode=settings.beta)
    elif settings.beta == "random_inputs":
        found.beta = None
    return found


def _of_run(settings: Settings, name: str, spec: ModelSpec) -> ServiceScorer:
    path = settings.runs[name]
    folder = RunFolder(path)
    run = folder.read_run()
    if run is None:
        raise ConfigError(
            f"run {name}={path} holds no run (no _run.json); make one with: noisegate annotate SHARDS --out DIR"
        )
    if not run.get("finished"):
        raise ConfigError(f"run {name}={path} is not finished; run the same annotate command again, it goes on")
    if settings.model is None:
        if not run.get("model"):
            raise ConfigError(
                f"run {name}={path} does not say which model scored it; name one, such as --model ViT-B-32"
            )
        made = run["model"]
        spec = replace(
            spec,
            model=made["model"],
            pretrained=made["pretrained"],
            dtype=made["dtype"],
            draft=made.get("draft", False),
        )
    stem = next(folder.stems(), None)
    scored = stem is not None and bool(read_metadata(folder.table(stem)).get("beta"))
    beta, calibration = recorded_scoring(folder, stem) if stem is not None and scored else (None, None)
    return ServiceScorer(spec, beta, calibration, Identity.from_dict(run["scorer"]), name)
