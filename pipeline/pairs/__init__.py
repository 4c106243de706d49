"""Scores of image-text pairs.

`scorer` embeds and scores pairs, for all who need it; `osa` is the weight of a cosine, `beta` the shift it needs,
`calibration` what a cosine means on some data (with the models of `density_ratio`). `pair_fit` learns β and calibration of a
whole run, `first_pairs` those of a few pairs before a long job. `neighbourhood` and `neighbourhood_scoring` judge a pair by
the partners of its neighbours.
"""

from .beta import PAIRS, Beta, PairSample, estimate_beta, measure_beta
from .calibration import PairCalibration
from .neighbourhood import Side, agreement_of_new_pairs
from .neighbourhood_scoring import NEIGHBOURS
from .osa import osa_weight, reference_weight
from .scorer import PairScores, RecordedScorer, Scorer, load_scorer, model_of_run, read_scorer, score_pairs

__all__ = [
    "NEIGHBOURS",
    "PAIRS",
    "Beta",
    "PairCalibration",
    "PairSample",
    "PairScores",
    "RecordedScorer",
    "Scorer",
    "Side",
    "agreement_of_new_pairs",
    "estimate_beta",
    "load_scorer",
    "measure_beta",
    "model_of_run",
    "osa_weight",
    "read_scorer",
    "reference_weight",
    "score_pairs",
]
