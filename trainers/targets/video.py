"""The video-text embedding of Miech et al. (2019) on precomputed clip features, as in LNC (its appendix D.2).

A clip's features (2D and 3D side by side) are max-pooled over time; a caption's words go through a linear layer and a ReLU and
are max-pooled over words; each result passes its own gated embedding unit, and the similarity is their cosine.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from .base import Encoded, Target, TargetConfig, unit
from .pictures import FeatureTransform
from .pooling import max_pool
from .texts import PADDING, Vocabulary, read_word_vectors


class VideoConfig(TargetConfig):
    """Settings of `video`."""

    name: Literal["video"] = "video"
    features: int = Field(default=4096, ge=1)
    """ResNet-152 and ResNeXt-101 features, 2048 each"""
    frames: int = Field(default=32, ge=1)
    """the most feature rows of one clip; a clip that was pooled already has one"""
    width: int = Field(default=4096, ge=1)
    word_width: int = Field(default=300, ge=1)
    word_vectors: str | None = None
    sentence_width: int = Field(default=2048, ge=1)
    vocabulary: Vocabulary = Vocabulary()

    @property
    def reads_features(self) -> bool:
        return True


class Video(Target):
    """Features (B, T, D) or (B, D), tokens (B, L); vectors (B, width)."""

    config: VideoConfig

    def __init__(self, config: VideoConfig, weights: bool = True) -> None:
        super().__init__(config)
        self.width = config.width
        self.words = nn.Embedding(config.vocabulary.size, config.word_width, padding_idx=PADDING)
        if config.word_vectors is not None and weights:
            read_word_vectors(Path(config.word_vectors), config.vocabulary, self.words)
        self.sentence = nn.Linear(config.word_width, config.sentence_width)
        self.gate_clips = GatedEmbedding(config.features, config.width)
        self.gate_texts = GatedEmbedding(config.sentence_width, config.width)
        self.tokenizer = config.vocabulary.tokenizer()

    def image_transform(self, train: bool) -> Callable[..., Tensor]:
        return FeatureTransform(self.config.frames, self.config.features)

    def encode_images(self, images: Tensor) -> Encoded:
        frames = images.unsqueeze(1) if images.ndim == 2 else images
        return {"vectors": unit(self.gate_clips(max_pool(frames, (frames != 0).any(dim=-1))))}

    def encode_texts(self, tokens: Tensor) -> Encoded:
        words = torch.relu(self.sentence(self.words(tokens)))
        return {"vectors": unit(self.gate_texts(max_pool(words, tokens != PADDING)))}


class GatedEmbedding(nn.Module):
    """f(x) = y ∘ σ(W₂ y + b₂), y = W₁ x + b₁ (D8)."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.embed, self.gate = nn.Linear(features, width), nn.Linear(width, width)

    def forward(self, rows: Tensor) -> Tensor:
        embedded: Tensor = self.embed(rows)
        return embedded * torch.sigmoid(self.gate(embedded))
