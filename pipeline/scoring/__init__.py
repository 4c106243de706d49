"""Second half of a run: from tables and kept embeddings to scores.

`run_scores` learns β, calibration, label scores and neighbourhoods from all rows; `columns` writes them into the tables;
`summary` counts what came out. Used by `annotate`, `rescore` and `score_embeddings`.
"""

from .columns import RunScores, write_scores
from .run_scores import DUPLICATE_COSINE, learn_scores
from .summary import Summary

__all__ = ["DUPLICATE_COSINE", "RunScores", "Summary", "learn_scores", "write_scores"]
