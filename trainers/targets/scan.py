"""SCAN, stacked cross attention (Lee et al., ECCV 2018), as LNC-SCAN uses it.

Regions v_i and words t_j have length one. With words as queries (`t2i`), as in SGRAF's attention:

    c_ij = cos(v_i, t_j);  ĉ_ij = leaky(c_ij) / sqrt(sum_j leaky(c_ij)²)
    α_ij = softmax_i(λ ĉ_ij);  a_j = sum_i α_ij v_i                                region_words: `attend`
    R_j = cos(a_j, t_j)
    S(I, T) = mean_j R_j, or log(sum_j exp(λ_2 R_j)) / λ_2                          `pool_relevance`

With regions as queries (`i2t`) regions and words are exchanged. λ is 9 for t2i and 4 for i2t; λ_2 is 6 for t2i, and for i2t
5 on Flickr30K and 20 on MS-COCO, as published. The linear map of the regions starts with Xavier's weights, as in its code.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from .base import Encoded, full_precision, xavier
from .region_words import RegionWords, RegionWordsConfig, attend

SHARPNESS = {"t2i": 9.0, "i2t": 4.0}
LSE = {"t2i": 6.0, "i2t": 5.0}


class ScanConfig(RegionWordsConfig):
    """Settings of `scan`."""

    name: Literal["scan"] = "scan"
    attention: Literal["t2i", "i2t"] = "t2i"
    """t2i: each word looks at the regions; i2t: each region looks at the words"""
    pooling: Literal["mean", "lse"] = "mean"
    """of the relevances of all words (regions); lse: log of the sum of exponentials"""
    sharpness: float | None = Field(default=None, gt=0)
    """λ of the attention; None: 9 for t2i, 4 for i2t"""
    lse_scale: float | None = Field(default=None, gt=0)
    """λ_2; None: 6 for t2i, 5 for i2t. Published: the same, but 20 for i2t on MS-COCO"""
    dropout: float = Field(default=0.0, ge=0, lt=1)


class Scan(RegionWords):
    """The similarity of a pair is the mean relevance of its words to the attended regions, or of regions to attended words."""

    config: ScanConfig

    def __init__(self, config: ScanConfig, weights: bool = True) -> None:
        super().__init__(config, weights)
        xavier(self.to_joint)

    def match(self, images: Encoded, texts: Encoded) -> Tensor:
        way = self.config.attention
        asking, asked = (texts, images) if way == "t2i" else (images, texts)
        with full_precision(images["vectors"]):
            seen = attend(asked, asking, self.config.sharpness or SHARPNESS[way])
            relevance = (seen * asking["parts"].float().unsqueeze(0)).sum(dim=-1)
            scale = (self.config.lse_scale or LSE[way]) if self.config.pooling == "lse" else None
            pooled = pool_relevance(relevance, asking["mask"].unsqueeze(0), scale)
        return pooled if way == "t2i" else pooled.T


def pool_relevance(relevance: Tensor, mask: Tensor, scale: float | None = None) -> Tensor:
    """Pool relevances (N, M, L) under a mask of the same shape to (N, M): their mean, or with a scale their log-sum-exp.

    >>> pool_relevance(torch.tensor([[[0.5, 0.3, 9.0]]]), torch.tensor([[[True, True, False]]])).tolist()
    [[0.4000000059604645]]
    """
    if scale is None:
        return (relevance * mask).sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)
    return (scale * relevance).masked_fill(~mask, -torch.inf).logsumexp(dim=-1) / scale
