from .run_scores import DUPLICATE_COSINE as DUPLICATE_COSINE
from .run_scores import RunScores as RunScores
from .run_scores import learn_scores as learn_scores
from .run_scores import read_scores as read_scores
from .run_scores import write_scores as write_scores
from .summary import Summary as Summary
