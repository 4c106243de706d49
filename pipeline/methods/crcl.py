"""CRCL on a frozen model: the matching probability, which is a pair's label before training.

    p°_ij = softmax_j(S_ij / τ), p◇_ij = softmax_i(S_ij / τ)      Eq. 3    `log_matching_probabilities`
    p̂_i  = (p°_ii + p◇_ii) / 2                                   Eq. 10   `matching_probability`

All other equations are in trainers/methods/crcl.py.
"""

import numpy as np
import torch
from torch import Tensor

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.runs.rows import Embeddings
from noisegate.pipeline.system.array_types import Float32

from .losses import diagonal_mask, one_thread
from .pair_batches import EmbeddedPairs, mean_and_spread


@one_thread()
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
    temperature: τ; for a CLIP model its own 1 / exp(logit_scale), such as 0.01: at 0.05 its narrow range of cosines gives only
    small p̂. p̂ depends on `batch`: a pair whose cosines are all alike has about 1 / batch. Pairs with the same picture or the
    same text are no negatives of each other.

    >>> rows = np.eye(3)
    >>> crcl_columns(rows, rows[[0, 2, 1]])["crcl_label"].round(2).tolist()
    [1.0, 0.0, 0.0]
    """
    if not temperature > 0:
        raise ConfigError.of("temperature", temperature, "cannot divide cosines; use 0.05, or 0.01 for a CLIP")
    pairs = EmbeddedPairs(images, texts)
    labels = np.full((permutations, len(pairs.valid)), np.nan)
    for number, pair_batch in pairs.batches(batch, permutations, seed):
        logs = log_matching_probabilities(
            torch.from_numpy(pair_batch.similarity), temperature, torch.from_numpy(pair_batch.same)
        )
        labels[number, pair_batch.rows] = matching_probability(*logs).numpy()
    return mean_and_spread("crcl_label", labels, pairs)


def log_matching_probabilities(
    similarity: Tensor, temperature: Tensor | float, same: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """CRCL Eq. 3: log p° (B, B), images over texts, and log p◇ (B, B), texts over images; pair i is row i of both.

    same: (B, B) bool, other pairs with the same picture or caption; they are left out, because they would share the probability
    of the given pair.
    """
    logits = similarity / temperature
    if same is not None:
        logits = logits.masked_fill(same & ~diagonal_mask(logits), -torch.inf)
    return logits.log_softmax(dim=1), logits.T.log_softmax(dim=1)


def matching_probability(images: Tensor, texts: Tensor) -> Tensor:
    """CRCL Eq. 10: p̂ (B,) = (p°_ii + p◇_ii) / 2, from the two logarithms of `log_matching_probabilities`.

    >>> logs = log_matching_probabilities(torch.tensor([[0.1, 0.0], [0.0, 0.1]]), 0.1)
    >>> matching_probability(*logs).tolist()  # 1 / (1 + e^-1)
    [0.7310585975646973, 0.7310585975646973]
    """
    return (images.diagonal().exp() + texts.diagonal().exp()) / 2
