"""Second half of a run: from tables and kept embeddings to scores.

`run_scores` learns β, calibration, label scores and neighbourhoods from all rows, and writes them into the tables; `summary`
counts the results. Used by `annotate`, `rescore` and `score_embeddings`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
