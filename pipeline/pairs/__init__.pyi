from .beta import (
    PAIRS as PAIRS,
    Beta as Beta,
    PairSample as PairSample,
    estimate_beta as estimate_beta,
    measure_beta as measure_beta,
)
from .calibration import PairCalibration as PairCalibration
from .neighbourhood import Side as Side, agreement_of_new_pairs as agreement_of_new_pairs
from .neighbourhood_scoring import NEIGHBOURS as NEIGHBOURS
from .osa import osa_weight as osa_weight, reference_weight as reference_weight
from .scorer import (
    PairScores as PairScores,
    RecordedScorer as RecordedScorer,
    Scorer as Scorer,
    load_scorer as load_scorer,
    model_of_run as model_of_run,
    read_scorer as read_scorer,
    score_pairs as score_pairs,
)
