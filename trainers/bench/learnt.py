"""What a method found out about the samples by itself, judged by the truth (LNC table 7, GSL table 3, TANGO table 9)."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from noisegate.pipeline.inspect.metrics import relabel_accuracy, selection_metrics

__all__ = ["judge_learnt", "kept_by"]

FIGURES = ("noise_precision", "noise_recall", "noise_f1")


def kept_by(columns: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_] | None:
    """(N,) what a method takes for right: `clean`, a weight above 0, a probability or confidence above one half; else None."""
    if "clean" in columns:
        return np.asarray(columns["clean"]) > 0
    if "osa_weight" in columns:
        return np.asarray(columns["osa_weight"]) > 0
    name = next((name for name in columns if name.endswith(("_probability", "lnc_confidence", "ncr_confidence"))), None)
    return None if name is None else np.nan_to_num(np.asarray(columns[name]), nan=1.0) > 0.5


def judge_learnt(columns: Mapping[str, NDArray[Any]], truth: Path) -> dict[str, float]:
    """In percent, noise as positive, and the share of right labels after repair; `truth` is the noise.parquet of the shards.

    Without noise, and for methods that judge no samples, there is nothing to tell, and what cannot be told is left out.
    """
    known = pq.read_table(truth)
    noisy = known["noisy"].to_numpy()
    found: dict[str, float] = {}
    kept = kept_by(columns)
    if kept is not None:
        judged = selection_metrics(None, kept, noisy)
        found = {name: 100 * float(getattr(judged, name)) for name in FIGURES}
    if "refined_label" in columns and "clean_label" in known.column_names:
        right = known["clean_label"].fill_null(-1).to_numpy()
        found["relabel_accuracy"] = 100 * relabel_accuracy(np.asarray(columns["refined_label"]), right)
    return {name: value for name, value in found.items() if math.isfinite(value)}
