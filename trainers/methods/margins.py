"""Soft correspondence labels as margins of a triplet loss (LNC Eq. 11, METHODS 1.8).

A pair that surely belongs together must stand above its negatives by the whole margin α, one that surely does not by none.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from noisegate.pipeline.errors import ConfigError

__all__ = ["Recast", "soft_margin"]

Recast = Literal["linear", "exponential", "sine", "sigmoid"]


def soft_margin(
    label: Tensor, margin: float = 0.2, recast: str = "exponential", *, base: float = 10.0, boundary: float = 0.5
) -> Tensor:
    """α̂_i = Ψ(ŷ_i) of labels (B,) in [0, 1], one margin for each pair, in [0, α].

    linear       Ψ1 = ŷ α
    exponential  Ψ2 = (m^ŷ - 1) / (m - 1) α with the base m; m = 1 is its limit Ψ1
    sine         Ψ3 = (sin(π ŷ - π/2) / 2 + 1/2) α
    sigmoid      Ψ4 = sigmoid((10 + 100 (div - ½)) (ŷ - div)) α with the boundary div between clean and noisy labels; its
                 slope turns negative for div < .4, so it is held at 1 or more; reaches neither 0 nor α

    >>> [round(float(margin), 4) for margin in soft_margin(torch.tensor([0.0, 0.5, 1.0]))]
    [0.0, 0.0481, 0.2]
    """
    y = label.clamp(0.0, 1.0)
    if recast == "linear":
        share = y
    elif recast == "exponential":
        share = y if abs(base - 1) < 1e-6 else torch.expm1(y * math.log(base)) / (base - 1)
    elif recast == "sine":
        share = torch.sin(math.pi * y - math.pi / 2) / 2 + 0.5
    elif recast == "sigmoid":
        share = torch.sigmoid(max(1.0, 10 + 100 * (boundary - 0.5)) * (y - boundary))
    else:
        raise ConfigError(f"recast={recast!r} is unknown; use linear, exponential, sine or sigmoid")
    return share * margin
