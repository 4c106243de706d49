"""What a run's report is about: which score, where its cut is, and what the score means."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.pairs.beta import Beta
from noisegate.pipeline.pairs.calibration import PairCalibration

__all__ = ["Lens", "choose_lens"]


@dataclass(frozen=True)
class Lens:
    """`column` is drawn and cut, `rank` sorts worst to best; `noun` and `score` name a sample and its score in sentences.

    `span` is how far the column reaches from 0; rarer values count as its ends.
    """

    column: str
    rank: str
    noun: str
    score: str
    cut: float | None
    cut_name: str
    interval: tuple[float, float] | None
    calibration: PairCalibration | None
    span: float = 1.0

    @property
    def caption(self) -> str:
        """Of the axis that the column is drawn on."""
        return "probability that the label is right" if self.noun == "label" else f"{self.score} of the {self.noun}"

    @property
    def edges(self) -> NDArray[np.float64]:
        """(4001,) ends of the bins that scores are counted in; drawing merges them."""
        return np.linspace(-self.span, self.span, 4001)


def choose_lens(facts: dict[str, Any]) -> Lens:
    """By what a table's metadata say was scored: pairs by cosine, by neighbourhood where there is none, else labels."""
    calibration = _calibration(facts.get("calibration"))
    if facts.get("beta"):
        beta = Beta.from_dict(facts["beta"])
        return Lens("similarity", "similarity", "pair", "similarity", beta.value, "β", beta.interval, calibration)
    near = facts.get("neighbourhood")
    if near and near.get("alone"):
        calibration = _calibration(near.get("calibration"))
        score = "neighbourhood agreement"
        return Lens("neighbourhood", "neighbourhood", "pair", score, near.get("cut"), "cut", None, calibration, span=10)
    if facts.get("labels"):
        return Lens("clean_probability", "label_quality", "label", "probability", 0.5, "cut", None, None)
    return Lens("similarity", "similarity", "pair", "similarity", None, "cut", None, None)


def _calibration(values: dict[str, Any] | None) -> PairCalibration | None:
    return PairCalibration.from_dict(values) if values else None
