"""Match regions and words by SGR and SAF (Diao et al., 2021), as LNC does (its appendix D.1).

An image has K regions v_i, a text L words t_j, all of length one, and each a global vector.  For one pair:

    c_ij = cos(v_i, t_j);  ĉ_ij = leaky(c_ij) / sqrt(sum_j leaky(c_ij)²)
    α_ij = softmax_i(λ ĉ_ij);  a_j = sum_i α_ij v_i / ‖sum_i α_ij v_i‖                (D4, D5: each word looks at the regions)
    s(x, y; W) = W |x - y|² / ‖W |x - y|²‖                                           (D2, |.|² element by element)
    s^g = s(v̂, t̂; W_g);  s^l_j = s(a_j, t_j; W_l)                                   (D3, D4)

SGR reasons over the graph of the L + 1 similarity vectors and reads the global node; SAF averages them by a learnt
attention.  Each ends in a linear layer and a sigmoid, so similarities lie in (0, 1); `sgraf` is the mean of both in one
network.  The papers train SGR and SAF apart and average them in the test: train both modules and evaluate their runs together.

Details missing in the description are as in the published code of SGRAF and NCR: a_j has unit length; dropout on word
embeddings and in the attention behind the global vectors; batch norm in that attention of the regions, and in SAF's attention
over all images and words of one caption; W with a bias; linear layers by Xavier with biases of 0.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from .base import Encoded, full_precision, unit, xavier
from .pooling import mean_pool
from .region_words import RegionWords, RegionWordsConfig, attend


class SgrafConfig(RegionWordsConfig):
    """Settings of `sgraf`."""

    name: Literal["sgraf"] = "sgraf"
    module: Literal["sgr", "saf", "sgraf"] = "sgraf"
    similarity_width: int = Field(default=256, ge=1)
    steps: int = Field(default=3, ge=1)
    """of SGR's graph reasoning"""
    sharpness: float = Field(default=9.0, gt=0)
    """λ of the attention"""


class Sgraf(RegionWords):
    """The similarity of a pair by SGR, SAF or both, in (0, 1)."""

    config: SgrafConfig

    def __init__(self, config: SgrafConfig, weights: bool = True) -> None:
        super().__init__(config, weights)
        self.pool_regions = SelfPool(config.width, config.dropout, config.regions)
        self.pool_words = SelfPool(config.width, config.dropout)
        self.matchers = nn.ModuleDict()  # each with its own maps, because SGR and SAF are trained separately
        for kind in ("sgr", "saf"):
            if config.module in (kind, "sgraf"):
                self.matchers[kind] = _Matcher(config, kind)
        self.norms_over_images = "saf" in self.matchers
        for module in self.modules():
            if isinstance(module, nn.Linear):
                xavier(module)

    def pool_images(self, parts: Tensor, mask: Tensor) -> Tensor:
        pooled: Tensor = self.pool_regions(parts, mask)
        return pooled

    def pool_texts(self, parts: Tensor, mask: Tensor) -> Tensor:
        pooled: Tensor = self.pool_words(parts, mask)
        return pooled

    def match(self, images: Encoded, texts: Encoded) -> Tensor:
        with full_precision(images["vectors"]):
            seen = attend(images, texts, self.config.sharpness)
            each = [matcher(images, texts, seen) for matcher in self.matchers.values()]
        return torch.stack(each).mean(dim=0)


def similarity_vector(one: Tensor, other: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """s(x, y; W) (…, m) of unit length (D2), for x and y (…, d), W (m, d) and a bias (m,).

    >>> similarity_vector(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0]), torch.tensor([[3.0, 0.0], [0.0, 1.0]])).tolist()
    [0.6000000238418579, 0.800000011920929]
    """
    return F.normalize(F.linear((one - other) ** 2, weight, bias), dim=-1, eps=1e-12)


class SelfPool(nn.Module):
    """Pool a set to its global vector: attention of its mean to each part weighs the parts (D.1).

    regions: the number of parts; each place, and each dimension of the mean, then has its own batch norm. Texts have none.
    """

    def __init__(self, width: int, dropout: float = 0.0, regions: int | None = None) -> None:
        super().__init__()
        self.part, self.whole = nn.Linear(width, width), nn.Linear(width, width)
        self.norm_part = None if regions is None else nn.BatchNorm1d(regions)
        self.norm_whole = None if regions is None else nn.BatchNorm1d(width)
        self.dropout = nn.Dropout(dropout)
        self.score = nn.Linear(width, 1, bias=False)  # a bias would not change the softmax

    def forward(self, parts: Tensor, mask: Tensor) -> Tensor:
        """Return unit rows (N, d), zeros for sets without parts."""
        each, whole = self.part(parts), self.whole(mean_pool(parts, mask))
        if self.norm_part is not None and self.norm_whole is not None:
            padded = F.pad(each, (0, 0, 0, self.norm_part.num_features - each.shape[1]))
            each, whole = _batch_norm(self.norm_part, padded)[:, : each.shape[1]], _batch_norm(self.norm_whole, whole)
        gated = self.dropout(torch.tanh(each)) * self.dropout(torch.tanh(whole)).unsqueeze(1)
        weights = self.score(gated).squeeze(-1).float().masked_fill(~mask, -1e4).softmax(dim=1) * mask
        return unit((weights.unsqueeze(-1) * parts.float()).sum(dim=1))


def _batch_norm(layer: nn.BatchNorm1d, values: Tensor) -> Tensor:
    """Normalise; a batch of one value per channel has no deviation, so the running one is used."""
    if layer.training and values.numel() == layer.num_features:
        return F.batch_norm(
            values, layer.running_mean, layer.running_var, layer.weight, layer.bias, training=False, eps=layer.eps
        )
    normal: Tensor = layer(values)
    return normal


class _Matcher(nn.Module):
    """SGR or SAF with its similarity maps W_g and W_l and its last layer."""

    def __init__(self, config: SgrafConfig, kind: str) -> None:
        super().__init__()
        width = config.similarity_width
        self.of_wholes = nn.Linear(config.width, width)
        self.of_words = nn.Linear(config.width, width)
        self.combine: nn.Module = SGR(width, config.steps) if kind == "sgr" else SAF(width)
        self.last = nn.Linear(width, 1)

    def forward(self, images: Encoded, texts: Encoded, seen: Tensor) -> Tensor:
        image, text = images["vectors"].float().unsqueeze(1), texts["vectors"].float().unsqueeze(0)
        wholes = similarity_vector(image, text, self.of_wholes.weight, self.of_wholes.bias)
        own = texts["parts"].float().unsqueeze(0)
        words = similarity_vector(seen, own, self.of_words.weight, self.of_words.bias)
        nodes = torch.cat([wholes.unsqueeze(2), words], dim=2)
        real = F.pad(texts["mask"], (1, 0), value=True).unsqueeze(0).expand(nodes.shape[:3])
        return torch.sigmoid(self.last(self.combine(nodes, real)).squeeze(-1))


class SGR(nn.Module):
    """Similarity graph reasoning (D6, D7): nodes (…, n, m), global one first, to the global node after all steps (…, m)."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.incoming = nn.ModuleList(nn.Linear(width, width) for _ in range(steps))
        self.outgoing = nn.ModuleList(nn.Linear(width, width) for _ in range(steps))
        self.renew = nn.ModuleList(nn.Linear(width, width) for _ in range(steps))

    def forward(self, nodes: Tensor, real: Tensor) -> Tensor:
        for step, (incoming, outgoing, renew) in enumerate(
            zip(self.incoming, self.outgoing, self.renew, strict=True), 1
        ):
            renewed = nodes[..., :1, :] if step == len(self.renew) else nodes  # only the global node is read afterwards
            affinity = incoming(renewed) @ outgoing(nodes).transpose(-1, -2)
            known = affinity.masked_fill(~real.unsqueeze(-2), -torch.inf)  # the global node is always real
            edges = known.softmax(dim=-1)
            nodes = torch.relu(renew(edges @ nodes))
        return nodes[..., 0, :]


class SAF(nn.Module):
    """Similarity attention filtration: nodes (…, n, m) to their mean of unit length, weighed by β_n.

    β_n = σ(norm(w·s_n + b)) / sum σ, with batch norm over all images and words of one caption: in training nodes are
    (Bi, Bt, n, m).
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1)
        self.norm = CaptionNorm()

    def forward(self, nodes: Tensor, real: Tensor) -> Tensor:
        gates = torch.sigmoid(self.norm(self.score(nodes).squeeze(-1), real)) * real
        weights = gates / gates.sum(dim=-1, keepdim=True).clamp(min=1e-12)
        return F.normalize((weights.unsqueeze(-1) * nodes).sum(dim=-2), dim=-1, eps=1e-12)


class CaptionNorm(nn.BatchNorm1d):
    """Batch norm of one channel, caption after caption: of scores (Bi, Bt, n), over images and those nodes that are real.

    Running mean and variance are updated once per caption, in order, as if each caption were a batch.
    """

    def __init__(self) -> None:
        super().__init__(1)

    def forward(self, scores: Tensor, real: Tensor) -> Tensor:  # type: ignore[override]
        assert self.running_mean is not None and self.running_var is not None
        mean, variance = self.running_mean, self.running_var
        if self.training:
            count = real.sum(dim=(0, 2))
            mean = (scores * real).sum(dim=(0, 2)) / count
            variance = ((scores - mean[None, :, None]).square() * real).sum(dim=(0, 2)) / count
            self._move(mean.detach(), variance.detach() * count / (count - 1).clamp(min=1))
            mean, variance = mean[None, :, None], variance[None, :, None]
        return (scores - mean) / (variance + self.eps).sqrt() * self.weight + self.bias

    @torch.no_grad()
    def _move(self, means: Tensor, variances: Tensor) -> None:
        """Apply r ← (1 - m) r + m x for each x (Bt,) in turn, in one step."""
        assert self.momentum is not None
        kept = 1 - self.momentum
        shares = self.momentum * kept ** torch.arange(len(means) - 1, -1, -1, device=means.device)
        for running, values in ((self.running_mean, means), (self.running_var, variances)):
            assert running is not None
            running.mul_(kept ** len(values)).add_((shares * values).sum())
