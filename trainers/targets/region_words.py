"""The common base of SGRAF and SCAN: targets that compare the regions of an image with the words of a text, pair by pair."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .base import Encoded, Target, TargetConfig, count, take, unit
from .pictures import FeatureTransform
from .pooling import mean_pool
from .texts import Vocabulary, WordEncoder


class RegionWordsConfig(TargetConfig):
    """Settings of `sgraf` and `scan`."""

    features: int = Field(default=2048, ge=1)
    regions: int = Field(default=36, ge=1)
    width: int = Field(default=1024, ge=1)
    """of regions and words in the joint space"""
    word_width: int = Field(default=300, ge=1)
    word_vectors: str | None = None
    text_layers: int = Field(default=1, ge=1)
    dropout: float = Field(default=0.4, ge=0, lt=1)
    block: int = Field(default=8_000_000, ge=1)
    """numbers of the largest tensor of one block of pairs: a batch or an evaluation is done block by block; SAF in training
    takes at least all images of one text"""
    recompute: bool = False
    """in training, forget each block and compute it again for the gradient: memory of one block, a third more time"""
    vocabulary: Vocabulary = Vocabulary()

    @property
    def reads_features(self) -> bool:
        return True


class RegionWords(Target):
    """Features (B, K, D), tokens (B, L); encoded as `vectors` (B, d), `parts` (B, K or L, d) and `mask`, all unit rows."""

    config: RegionWordsConfig
    norms_over_images = False
    """whether `match` norms over all images of a text in training: then blocks divide the texts alone"""

    def __init__(self, config: RegionWordsConfig, weights: bool = True) -> None:
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
        self.tokenizer = config.vocabulary.tokenizer()

    @abstractmethod
    def match(self, images: Encoded, texts: Encoded) -> Tensor:
        """Compute the similarities of one block, (Bi, Bt)."""

    def pool_images(self, parts: Tensor, mask: Tensor) -> Tensor:
        """Pool regions (B, K, d) to each image's global vector (B, d)."""
        return unit(mean_pool(parts, mask))

    def pool_texts(self, parts: Tensor, mask: Tensor) -> Tensor:
        """Pool words (B, L, d) to each text's global vector (B, d)."""
        return unit(mean_pool(parts, mask))

    def image_transform(self, train: bool) -> Callable[..., Tensor]:
        return FeatureTransform(self.config.regions, self.config.features)

    def encode_images(self, images: Tensor) -> Encoded:
        features = images.unsqueeze(1) if images.ndim == 2 else images
        mask = (features != 0).any(dim=-1)
        parts = unit(self.to_joint(features)) * mask.unsqueeze(-1)
        return {"vectors": self.pool_images(parts, mask), "parts": parts, "mask": mask}

    def encode_texts(self, tokens: Tensor) -> Encoded:
        words, mask = self.words(tokens)
        parts = unit(words) * mask.unsqueeze(-1)
        return {"vectors": self.pool_texts(parts, mask), "parts": parts, "mask": mask}

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        """Compute similarities (Bi, Bt) in float32, block by block, so that memory does not grow with the number of pairs.

        In evaluation texts are compared by length: a block is as long as its longest text.
        """
        order = None
        if not self.training and len(texts["mask"]) > 1:
            order = texts["mask"].sum(dim=1).argsort(stable=True)
            texts = take(texts, order)
        pair = (texts["mask"].shape[1] + 1) * self.width
        whole = self.training and self.norms_over_images
        across = max(1, count(images) if whole else min(count(images), self.config.block // pair))
        down = max(1, self.config.block // (pair * across))
        table = self._table(images, texts, across, down)
        return table if order is None else table[:, order.argsort()]

    def _table(self, images: Encoded, texts: Encoded, across: int, down: int) -> Tensor:
        """Compute the similarities of `across` images and `down` texts at a time.

        Without gradients each block is copied into the table at once. A list of small results, each allocated beside the
        large tensors of its block, fragments the heap: 1.4 GB more for 1,000 images and 1,500 texts.
        """
        starts = [(i, t) for i in range(0, count(images), across) for t in range(0, count(texts), down)]
        if torch.is_grad_enabled() and starts:
            each = [self._block(_cut(images, i, across), _cut(texts, t, down)) for i, t in starts]
            wide = -(-count(texts) // down)
            return torch.cat([torch.cat(each[n : n + wide], 1) for n in range(0, len(each), wide)])
        table = images["vectors"].new_empty(count(images), count(texts), dtype=torch.float32)
        for i, t in starts:
            table[i : i + across, t : t + down] = self._block(_cut(images, i, across), _cut(texts, t, down))
        return table

    def _block(self, images: Encoded, texts: Encoded) -> Tensor:
        longest = max(1, int(texts["mask"].any(dim=0).sum()))  # words come first, so the rest is padding
        texts = {name: part[:, :longest] if name != "vectors" else part for name, part in texts.items()}
        if self.config.recompute and torch.is_grad_enabled():
            return self._recomputed(images, texts)
        return self.match(images, texts)

    def _recomputed(self, images: Encoded, texts: Encoded) -> Tensor:
        """Match a block and forget what its gradient needs; each backward pass matches again, without moving statistics."""
        is_again = False

        def match(images: Encoded, texts: Encoded) -> Tensor:
            nonlocal is_again
            statistics, is_again = (_keep_statistics(self) if is_again else nullcontext()), True
            with statistics:
                return self.match(images, texts)

        result: Tensor = checkpoint(match, images, texts, use_reentrant=False)
        return result


@contextmanager
def _keep_statistics(module: nn.Module) -> Iterator[None]:
    """Keep running means and variances of batch norms as they are."""
    norms = [norm for norm in module.modules() if isinstance(norm, nn.BatchNorm1d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


def _cut(encoded: Encoded, start: int, size: int) -> Encoded:
    return take(encoded, slice(start, start + size))


def attend(images: Encoded, texts: Encoded, sharpness: float) -> Tensor:
    """Attend from each word to the regions: unit rows a_j of (D4) and (D5), (Bi, Bt, L, d); zeros without regions."""
    regions, words = images["parts"].float(), texts["parts"].float()
    cosine = torch.einsum("ikd,tld->itkl", regions, words)
    leaky = F.leaky_relu(cosine, 0.1) * texts["mask"][None, :, None, :]
    normal = F.normalize(leaky, dim=-1, eps=1e-8)
    real = images["mask"][:, None, :, None]
    attention = (sharpness * normal).masked_fill(~real, -1e4).softmax(dim=2) * real
    return F.normalize(torch.einsum("itkl,ikd->itld", attention, regions), dim=-1, eps=1e-8)
