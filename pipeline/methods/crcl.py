"""CRCL's label of a pair before training: the matching probability p̂ under a frozen model (METHODS 4, 1.11)."""

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.runs.rows import Embeddings
from noisegate.pipeline.system.array_types import Float32, Floats

from .pairs import Pairs, mean_and_spread

__all__ = ["crcl_columns", "matching_probability"]


def crcl_columns(
    images: Embeddings,
    texts: Embeddings,
    *,
    batch: int = 128,
    permutations: int = 5,
    seed: int = 0,
    temperature: float = 0.05,
) -> dict[str, Float32]:
    """`crcl_label` and `crcl_label_sd` (N,): mean and spread of p̂ over seeded permutations into batches.

    images, texts: (N, d), pair by pair. NaN where either row has no direction, and where there is no second pair.
    temperature: τ; for a CLIP its own 1 / exp(logit_scale), such as 0.01: at 0.05 its narrow cosines all give small p̂.
    p̂ depends on `batch`, since a pair that cannot be told apart has about 1 / batch. Pairs with the same picture or the
    same text as another are no negatives for it.

    >>> rows = np.eye(3)
    >>> crcl_columns(rows, rows[[0, 2, 1]])["crcl_label"].round(2).tolist()
    [1.0, 0.0, 0.0]
    """
    if not temperature > 0:
        raise ConfigError(f"temperature={temperature} cannot divide similarities; use 0.05, or 0.01 for a CLIP")
    pairs = Pairs(images, texts)
    found = np.full((permutations, len(pairs.valid)), np.nan)
    for number, one in pairs.batches(batch, permutations, seed):
        found[number, one.rows] = matching_probability(one.similarity, temperature, one.same)
    return mean_and_spread("crcl_label", found, pairs)


def matching_probability(similarity: Floats, temperature: float, same: NDArray[np.bool_] | None = None) -> Floats:
    """p̂ (B,) = (p°_ii + p◇_ii) / 2, softmaxes of S / τ along rows and along columns (CRCL Eq. 3, 10).

    similarity: (B, B), images against texts; same: (B, B) bool, pairs beside the diagonal that are no negatives.

    >>> matching_probability(np.array([[0.1, 0.0], [0.0, 0.1]]), 0.1).round(4).tolist()  # 1 / (1 + e^-1)
    [0.7311, 0.7311]
    """
    logits = np.clip(similarity, -1, 1).astype(np.float64) / temperature
    if same is not None:
        logits = np.where(same & ~np.eye(len(logits), dtype=bool), -np.inf, logits)
    own = logits.diagonal()
    shares = [np.exp(own - _log_sum(logits, axis)) for axis in (1, 0)]
    result: Floats = (shares[0] + shares[1]) / 2
    return result


def _log_sum(logits: Floats, axis: int) -> Floats:
    """log Σ exp, with the largest taken out first."""
    largest = logits.max(axis=axis)
    total: Floats = largest + np.log(np.exp(logits - np.expand_dims(largest, axis)).sum(axis=axis))
    return total
