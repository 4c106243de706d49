from .beta import (
    PAIRS as PAIRS,
)
from .beta import (
    Beta as Beta,
)
from .beta import (
    PairSample as PairSample,
)
from .beta import (
    estimate_beta as estimate_beta,
)
from .beta import (
    measure_beta as measure_beta,
)
from .calibration import PairCalibration as PairCalibration
from .neighbourhood import Side as Side
from .neighbourhood import agreement_of_new_pairs as agreement_of_new_pairs
from .neighbourhood_scoring import NEIGHBOURS as NEIGHBOURS
from .osa import osa_weight as osa_weight
from .osa import reference_weight as reference_weight
from .scorer import (
    PairScores as PairScores,
)
from .scorer import (
    RecordedScorer as RecordedScorer,
)
from .scorer import (
    Scorer as Scorer,
)
from .scorer import (
    load_scorer as load_scorer,
)
from .scorer import (
    model_of_run as model_of_run,
)
from .scorer import (
    read_scorer as read_scorer,
)
from .scorer import (
    score_pairs as score_pairs,
)
