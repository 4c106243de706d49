"""Which score of a run a report shows, where its cut is, and how the score is named in sentences."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.pairs.beta import Beta
from noisegate.pipeline.pairs.calibration import PairCalibration


@dataclass(frozen=True)
class ScoreView:
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


def choose_score_view(facts: dict[str, Any]) -> ScoreView:
    """Choose by a table's metadata: the cosine of pairs, their neighbourhood where there is no cosine, else labels."""
    calibration = _calibration(facts.get("calibration"))
    if facts.get("beta"):
        beta = Beta.from_dict(facts["beta"])
        return ScoreView("similarity", "similarity", "pair", "similarity", beta.value, "β", beta.interval, calibration)
    near = facts.get("neighbourhood")
    if near and near.get("alone"):
        calibration = _calibration(near.get("calibration"))
        score = "neighbourhood agreement"
        return ScoreView(
            "neighbourhood", "neighbourhood", "pair", score, near.get("cut"), "cut", None, calibration, span=10
        )
    if facts.get("labels"):
        return ScoreView("clean_probability", "label_quality", "label", "probability", 0.5, "cut", None, None)
    return ScoreView("similarity", "similarity", "pair", "similarity", None, "cut", None, None)


def _calibration(values: dict[str, Any] | None) -> PairCalibration | None:
    return PairCalibration.from_dict(values) if values else None
