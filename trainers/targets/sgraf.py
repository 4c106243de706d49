"""Matching of regions and words by SGR and SAF (Diao et al., 2021), as LNC uses it (its appendix D.1).

An image has K regions v_i, a text L words t_j, all of length one, and each a global vector.  For one pair:

    c_ij = cos(v_i, t_j);  ĉ_ij = leaky(c_ij) / sqrt(sum_j leaky(c_ij)²)
    α_ij = softmax_i(λ ĉ_ij);  a_j = sum_i α_ij v_i                                  (D4, D5: each word looks at the regions)
    s(x, y; W) = W |x - y|² / ‖W |x - y|²‖                                           (D2, |.|² element by element)
    s^g = s(v̂, t̂; W_g);  s^l_j = s(a_j, t_j; W_l)                                   (D3, D4)

SGR reasons over the graph of the L + 1 similarity vectors and reads the global node; SAF averages them by a learnt
attention.  Each ends in a linear layer and a sigmoid, so similarities lie in (0, 1); `sgraf` is the mean of both.

Where the published description normalises over the batch (batch norm in SAF's attention and in the global vectors), this
code does not: the similarity of a pair depends on that pair alone, and padding never changes it.
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
        self.dropout = nn.Dropout(config.dropout)
        self.pool_regions, self.pool_words = SelfPool(config.width), SelfPool(config.width)
        self.matchers = nn.ModuleDict()  # each with its own maps, as SGR and SAF are trained apart
        for kind in ("sgr", "saf"):
            if config.module in (kind, "sgraf"):
                self.matchers[kind] = _Matcher(config, kind)
        self.tokenizer = config.vocabulary.tokenizer()

    def image_transform(self, train: bool) -> Callable[..., Tensor]:
        return FeatureTransform(self.config.regions, self.config.features)

    def encode_images(self, images: Tensor) -> Encoded:
        features = images.unsqueeze(1) if images.ndim == 2 else images
        mask = (features != 0).any(dim=-1)
        parts = unit(self.dropout(self.to_joint(features))) * mask.unsqueeze(-1)
        return {"vectors": self.pool_regions(parts, mask), "parts": parts, "mask": mask}

    def encode_texts(self, tokens: Tensor) -> Encoded:
        words, mask = self.words(tokens)
        parts = unit(self.dropout(words)) * mask.unsqueeze(-1)
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


def similarity_vector(one: Tensor, other: Tensor, weight: Tensor) -> Tensor:
    """s(x, y; W) (…, m) of unit length (D2), for x and y (…, d) and W (m, d).

    >>> similarity_vector(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0]), torch.tensor([[3.0, 0.0], [0.0, 1.0]])).tolist()
    [0.6000000238418579, 0.800000011920929]
    """
    return F.normalize(F.linear((one - other) ** 2, weight), dim=-1, eps=1e-12)


class SelfPool(nn.Module):
    """A set's global vector: its mean asks each part how much it matters (D.1), and the answers weigh the parts."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.part, self.whole = nn.Linear(width, width), nn.Linear(width, width)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, parts: Tensor, mask: Tensor) -> Tensor:
        """(N, d) unit rows, zeros where there are no parts."""
        gated = torch.tanh(self.part(parts)) * torch.tanh(self.whole(mean_pool(parts, mask))).unsqueeze(1)
        weights = self.score(gated).squeeze(-1).float().masked_fill(~mask, -1e4).softmax(dim=1) * mask
        return unit((weights.unsqueeze(-1) * parts.float()).sum(dim=1))


def attend(images: Encoded, texts: Encoded, sharpness: float) -> Tensor:
    """(Bi, Bt, L, d), what each word sees of the regions: a_j of (D4) and (D5); zeros where an image has no regions."""
    regions, words = images["parts"].float(), texts["parts"].float()
    cosine = torch.einsum("ikd,tld->itkl", regions, words)
    leaky = F.leaky_relu(cosine, 0.1) * texts["mask"][None, :, None, :]
    normal = F.normalize(leaky, dim=-1, eps=1e-8)
    real = images["mask"][:, None, :, None]
    attention = (sharpness * normal).masked_fill(~real, -1e4).softmax(dim=2) * real
    return torch.einsum("itkl,ikd->itld", attention, regions)


class _Matcher(nn.Module):
    """One of SGR and SAF with its similarity maps W_g and W_l and its last layer."""

    def __init__(self, config: SgrafConfig, kind: str) -> None:
        super().__init__()
        width = config.similarity_width
        self.of_wholes = nn.Linear(config.width, width, bias=False)
        self.of_words = nn.Linear(config.width, width, bias=False)
        self.combine: nn.Module = SGR(width, config.steps) if kind == "sgr" else SAF(width)
        self.last = nn.Linear(width, 1)

    def forward(self, images: Encoded, texts: Encoded, seen: Tensor) -> Tensor:
        wholes = similarity_vector(
            images["vectors"].float().unsqueeze(1), texts["vectors"].float().unsqueeze(0), self.of_wholes.weight
        )
        words = similarity_vector(seen, texts["parts"].float().unsqueeze(0), self.of_words.weight)
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
    """Similarity attention filtration: nodes (…, n, m) to their mean, weighed by β_n = σ(w·s_n + b) / sum σ, of unit length."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1)

    def forward(self, nodes: Tensor, real: Tensor) -> Tensor:
        gates = torch.sigmoid(self.score(nodes).squeeze(-1)) * real
        weights = gates / gates.sum(dim=-1, keepdim=True).clamp(min=1e-12)
        return F.normalize((weights.unsqueeze(-1) * nodes).sum(dim=-2), dim=-1, eps=1e-12)
