"""noisegate's pipeline: noisy image-text shards in, weight tables out.

>>> import pipeline
>>> round(pipeline.osa_weight(0.30, beta=0.215), 6)
0.006611
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .beta import Beta, estimate_beta
    from .errors import NoisegateError
    from .estimators import Estimator, load_estimator
    from .job import annotate
    from .osa import osa_weight
    from .shards import find_shards
    from .summary import Summary
    from .table import read_table

_HOMES = {
    "Beta": "beta",
    "Estimator": "estimators",
    "NoisegateError": "errors",
    "Summary": "summary",
    "annotate": "job",
    "estimate_beta": "beta",
    "find_shards": "shards",
    "load_estimator": "estimators",
    "osa_weight": "osa",
    "read_table": "table",
}

__all__ = [
    "Beta",
    "Estimator",
    "NoisegateError",
    "Summary",
    "annotate",
    "estimate_beta",
    "find_shards",
    "load_estimator",
    "osa_weight",
    "read_table",
]


def __getattr__(name: str) -> Any:
    """Public names load on first use, so that decode workers and `noisegate --help` start at once."""
    if name not in _HOMES:
        raise AttributeError(f"module 'pipeline' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
