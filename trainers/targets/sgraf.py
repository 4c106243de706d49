"""Matching of regions and words by SGR and SAF (Diao et al., 2021), as LNC uses it (its appendix D.1).

An image has K regions v_i, a text L words t_j, all of length one, and each a global vector.  For one pair:

    c_ij = cos(v_i, t_j);  ĉ_ij = leaky(c_ij) / sqrt(sum_j leaky(c_ij)²)
    α_ij = softmax_i(λ ĉ_ij);  a_j = sum_i α_ij v_i / ‖sum_i α_ij v_i‖                (D4, D5: each word looks at the regions)
    s(x, y; W) = W |x - y|² / ‖W |x - y|²‖                                           (D2, |.|² element by element)
    s^g = s(v̂, t̂; W_g);  s^l_j = s(a_j, t_j; W_l)                                   (D3, D4)

SGR reasons over the graph of the L + 1 similarity vectors and reads the global node; SAF averages them by a learnt
attention.  Each ends in a linear layer and a sigmoid, so similarities lie in (0, 1); `sgraf` is the mean of both in one
network.  The papers train SGR and SAF apart and average them in the test: train both modules and evaluate their runs together.

What the description leaves out is as in the published code of SGRAF and NCR: a_j has unit length; dropout on word embeddings
and in the attention behind the global vectors; batch norm in that attention of the regions, and in SAF's attention over all
images and words of one caption; W with a bias; linear layers by Xavier with biases of 0.
"""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .base import Encoded, Target, TargetConfig, count, full_precision, take, unit
from .pictures import FeatureTransform
from .pooling import mean_pool
from .texts import Vocabulary, WordEncoder


class SgrafConfig(TargetConfig):
    """Settings of `sgraf`."""

    name: Literal["sgraf"] = "sgraf"
    module: Literal["sgr", "saf", "sgraf"] = "sgraf"
    features: int = Field(default=2048, ge=1)
    regions: int = Field(default=36, ge=1)
    width: int = Field(default=1024, ge=1)
    """of regions and words in the joint space"""
    similarity_width: int = Field(default=256, ge=1)
    steps: int = Field(default=3, ge=1)
    """of SGR's graph reasoning"""
    sharpness: float = Field(default=9.0, gt=0)
    """λ of the attention"""
    word_width: int = Field(default=300, ge=1)
    word_vectors: str | None = None
    text_layers: int = Field(default=1, ge=1)
    dropout: float = Field(default=0.4, ge=0, lt=1)
    block: int = Field(default=8_000_000, ge=1)
    """numbers of the largest tensor of one block of pairs: a batch or an evaluation is done block by block"""
    recompute: bool = False
    """in training, forget each block and compute it again for the gradient: memory of one block, a third more time"""
    vocabulary: Vocabulary = Vocabulary()

    @property
    def reads_features(self) -> bool:
        return True


class Sgraf(Target):
    """Features (B, K, D), tokens (B, L); encoded as `vectors` (B, d), `parts` (B, K or L, d) and `mask`, all unit rows."""

    config: SgrafConfig

    def __init__(self, config: SgrafConfig, weights: bool = True) -> None:
        super().__init__(config)
        self.width = config.width
        self.to_joint = nn.Linear(config.features, config.width)
        self.words = WordEncoder(
            config.vocabulary,
            config.width,
            word_width=config.word_width,
            layers=config.text_layers,
            dropout=config.dropout,
            vectors=config.word_vectors if weights else None,
        )
        self.pool_regions = SelfPool(config.width, config.dropout, config.regions)
        self.pool_words = SelfPool(config.width, config.dropout)
        self.matchers = nn.ModuleDict()  # each with its own maps, as SGR and SAF are trained apart
        for kind in ("sgr", "saf"):
            if config.module in (kind, "sgraf"):
                self.matchers[kind] = _Matcher(config, kind)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        self.tokenizer = config.vocabulary.tokenizer()

    def image_transform(self, train: bool) -> Callable[..., Tensor]:
        return FeatureTransform(self.config.regions, self.config.features)

    def encode_images(self, images: Tensor) -> Encoded:
        features = images.unsqueeze(1) if images.ndim == 2 else images
        mask = (features != 0).any(dim=-1)
        parts = unit(self.to_joint(features)) * mask.unsqueeze(-1)
        return {"vectors": self.pool_regions(parts, mask), "parts": parts, "mask": mask}

    def encode_texts(self, tokens: Tensor) -> Encoded:
        words, mask = self.words(tokens)
        parts = unit(words) * mask.unsqueeze(-1)
        return {"vectors": self.pool_words(parts, mask), "parts": parts, "mask": mask}

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        """(Bi, Bt) float32 in (0, 1), block by block, so that memory does not grow with the number of pairs."""
        pair = (texts["mask"].shape[1] + 1) * self.width
        across = max(1, min(count(images), self.config.block // pair))
        down = max(1, self.config.block // (pair * across))
        rows = [
            torch.cat(
                [self._block(_cut(images, i, across), _cut(texts, t, down)) for t in range(0, count(texts), down)], 1
            )
            for i in range(0, count(images), across)
        ]
        return torch.cat(rows) if rows else images["vectors"].new_zeros(0, count(texts))

    def _block(self, images: Encoded, texts: Encoded) -> Tensor:
        longest = max(1, int(texts["mask"].any(dim=0).sum()))  # words come first, so the rest is padding
        texts = {name: part[:, :longest] if name != "vectors" else part for name, part in texts.items()}
        if self.config.recompute and torch.is_grad_enabled():
            result: Tensor = checkpoint(self._match, images, texts, use_reentrant=False)
            return result
        return self._match(images, texts)

    def _match(self, images: Encoded, texts: Encoded) -> Tensor:
        with full_precision(images["vectors"]):
            seen = attend(images, texts, self.config.sharpness)
            each = [matcher(images, texts, seen) for matcher in self.matchers.values()]
        return torch.stack(each).mean(dim=0)


def _cut(encoded: Encoded, start: int, size: int) -> Encoded:
    return take(encoded, slice(start, start + size))


def similarity_vector(one: Tensor, other: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """s(x, y; W) (…, m) of unit length (D2), for x and y (…, d), W (m, d) and a bias (m,).

    >>> similarity_vector(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0]), torch.tensor([[3.0, 0.0], [0.0, 1.0]])).tolist()
    [0.6000000238418579, 0.800000011920929]
    """
    return F.normalize(F.linear((one - other) ** 2, weight, bias), dim=-1, eps=1e-12)


class SelfPool(nn.Module):
    """A set's global vector: its mean asks each part how much it matters (D.1), and the answers weigh the parts.

    regions: the number of parts; each place, and each dimension of the mean, then has its batch norm. Texts have none.
    """

    def __init__(self, width: int, dropout: float = 0.0, regions: int | None = None) -> None:
        super().__init__()
        self.part, self.whole = nn.Linear(width, width), nn.Linear(width, width)
        self.norm_part = None if regions is None else nn.BatchNorm1d(regions)
        self.norm_whole = None if regions is None else nn.BatchNorm1d(width)
        self.dropout = nn.Dropout(dropout)
        self.score = nn.Linear(width, 1, bias=False)  # the softmax takes no notice of a bias

    def forward(self, parts: Tensor, mask: Tensor) -> Tensor:
        """(N, d) unit rows, zeros where there are no parts."""
        each, whole = self.part(parts), self.whole(mean_pool(parts, mask))
        if self.norm_part is not None and self.norm_whole is not None:
            padded = F.pad(each, (0, 0, 0, self.norm_part.num_features - each.shape[1]))
            each, whole = _batch_norm(self.norm_part, padded)[:, : each.shape[1]], _batch_norm(self.norm_whole, whole)
        gated = self.dropout(torch.tanh(each)) * self.dropout(torch.tanh(whole)).unsqueeze(1)
        weights = self.score(gated).squeeze(-1).float().masked_fill(~mask, -1e4).softmax(dim=1) * mask
        return unit((weights.unsqueeze(-1) * parts.float()).sum(dim=1))


def _batch_norm(layer: nn.BatchNorm1d, values: Tensor) -> Tensor:
    """Normalise; a batch of one value per channel has no deviation, so that the running one is used."""
    if layer.training and values.numel() == layer.num_features:
        return F.batch_norm(
            values, layer.running_mean, layer.running_var, layer.weight, layer.bias, training=False, eps=layer.eps
        )
    normal: Tensor = layer(values)
    return normal


def attend(images: Encoded, texts: Encoded, sharpness: float) -> Tensor:
    """(Bi, Bt, L, d) unit rows, what each word sees of the regions: a_j of (D4) and (D5); zeros without regions."""
    regions, words = images["parts"].float(), texts["parts"].float()
    cosine = torch.einsum("ikd,tld->itkl", regions, words)
    leaky = F.leaky_relu(cosine, 0.1) * texts["mask"][None, :, None, :]
    normal = F.normalize(leaky, dim=-1, eps=1e-8)
    real = images["mask"][:, None, :, None]
    attention = (sharpness * normal).masked_fill(~real, -1e4).softmax(dim=2) * real
    return F.normalize(torch.einsum("itkl,ikd->itld", attention, regions), dim=-1, eps=1e-8)


class _Matcher(nn.Module):
    """One of SGR and SAF with its similarity maps W_g and W_l and its last layer."""

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
        for incoming, outgoing, renew in zip(self.incoming, self.outgoing, self.renew, strict=True):
            affinity = incoming(nodes) @ outgoing(nodes).transpose(-1, -2)
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

    Running mean and variance move once for each caption, in their order, as if each were a batch.
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
        """r ← (1 - m) r + m x for each x (Bt,) in turn, in one step."""
        assert self.momentum is not None
        kept = 1 - self.momentum
        shares = self.momentum * kept ** torch.arange(len(means) - 1, -1, -1, device=means.device)
        for running, values in ((self.running_mean, means), (self.running_var, variances)):
            assert running is not None
            running.mul_(kept ** len(values)).add_((shares * values).sum())
