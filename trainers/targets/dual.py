"""Dual encoders like VSE++ (Faghri et al., 2018) and VSE∞ (Chen et al., 2021).

Image: the grid or the vector of a timm network, or precomputed region features, one linear map per part, pooled.  Text: words
in context, pooled.  Both are scaled to length one; the similarity is their cosine.
"""

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators import allow_torchvision
from noisegate.pipeline.shards import Preprocess

from .base import Encoded, Target, TargetConfig, unit, xavier
from .pictures import Augment, FeatureTransform, PictureTransform
from .pooling import Pooling, build_pooling
from .texts import TextKind, Vocabulary, WordEncoder


class DualConfig(TargetConfig):
    """Settings of `dual`; without a backbone, images are precomputed features."""

    name: Literal["dual"] = "dual"
    width: int = Field(default=1024, ge=1)
    """of the joint space"""
    backbone: str | None = None
    """a timm name, such as resnet50 or vgg19"""
    backbone_weights: str | None = None
    """a file (safetensors, or a checkpoint without code), `download`, or none for random ones"""
    backbone_output: Literal["grid", "vector", "unit_vector"] = "grid"
    """vector: one part, what the backbone's classifier would read, such as VGG's fc7; unit_vector: of length one (VSE++)"""
    train_backbone: bool = True
    image_size: int = Field(default=224, ge=8)
    augment: Augment = Augment()
    features: int = Field(default=2048, ge=1)
    """width of precomputed features"""
    regions: int = Field(default=36, ge=1)
    """the most of them in one image"""
    xavier: bool = False
    """the linear map of the parts starts with Xavier-uniform weights and a bias of 0, as in the published code of VSE++"""
    image_mlp: bool = False
    """adds a two-layer perceptron to the linear map of each part, as VSE∞ does for region features"""
    pooling: Pooling = "gpo"
    text: TextKind = "gru"
    text_pooling: Pooling = "gpo"
    bidirectional: bool = True
    """whether the GRU reads texts in both directions; its states are averaged. VSE++ reads forwards, with text_pooling: last"""
    text_layers: int = Field(default=1, ge=1)
    heads: int = Field(default=4, ge=1)
    word_width: int = Field(default=300, ge=1)
    word_vectors: str | None = None
    dropout: float = Field(default=0.0, ge=0, lt=1)
    drop_parts: float = Field(default=0.0, ge=0, lt=1)
    """share of regions and words left out at random in training (VSE∞: .2), so that GPO meets many sizes"""
    vocabulary: Vocabulary = Vocabulary()

    @property
    def reads_features(self) -> bool:
        return self.backbone is None


class Dual(Target):
    """Images uint8 (B, 3, H, W), or features float32 (B, K, D); tokens (B, L); vectors (B, width)."""

    config: DualConfig

    def __init__(self, config: DualConfig, weights: bool = True) -> None:
        super().__init__(config)
        self.width = config.width
        self.preprocess = Preprocess(size=config.image_size, decoder="fast")
        self.backbone: nn.Module | None = None
        features = config.features
        if config.backbone is not None:
            self.backbone, features, self.preprocess = _backbone(config, weights)
            self.backbone.requires_grad_(config.train_backbone)
            self.scale_pixels(self.preprocess)
        self.to_joint = nn.Linear(features, config.width)
        self.mlp = _mlp(features, config.width) if config.image_mlp else None
        self.pool_parts = build_pooling(config.pooling)
        self.words = WordEncoder(
            config.vocabulary,
            config.width,
            kind=config.text,
            bidirectional=config.bidirectional,
            word_width=config.word_width,
            layers=config.text_layers,
            heads=config.heads,
            dropout=config.dropout,
            vectors=config.word_vectors if weights else None,
        )
        self.pool_words = build_pooling(config.text_pooling)
        self.tokenizer = config.vocabulary.tokenizer()
        if config.xavier:
            xavier(self.to_joint)

    def image_transform(self, train: bool) -> Callable[..., Tensor]:
        if self.backbone is None:
            return FeatureTransform(self.config.regions, self.config.features)
        return PictureTransform(self.preprocess, self.config.augment if train else None)

    def encode_images(self, images: Tensor) -> Encoded:
        images = self.pixels(images)
        if self.backbone is None:
            parts = images.unsqueeze(1) if images.ndim == 2 else images
            mask = (parts != 0).any(dim=-1)
        else:
            parts = _read_parts(self.backbone, self.config.backbone_output, images)
            mask = parts.new_ones(parts.shape[:2], dtype=torch.bool)
        joint = self.to_joint(parts)
        joint = joint if self.mlp is None else joint + self.mlp(parts)
        return {"vectors": unit(self.pool_parts(joint, self._thinned(mask)))}

    def encode_texts(self, tokens: Tensor) -> Encoded:
        words, mask = self.words(tokens)
        pool = mask if self.config.text_pooling == "last" else self._thinned(mask)
        return {"vectors": unit(self.pool_words(words, pool))}

    def _thinned(self, mask: Tensor) -> Tensor:
        """In training, drop a random share of the parts, but never all of them."""
        if not (self.training and self.config.drop_parts):
            return mask
        kept = mask & (torch.rand(mask.shape, device=mask.device) >= self.config.drop_parts)
        return torch.where(kept.any(dim=1, keepdim=True), kept, mask)


def _read_parts(backbone: nn.Module, output: str, images: Tensor) -> Tensor:
    """Read parts (B, K, D): the cells of the backbone's last grid, or with `vector` one part, the input of its classifier.

    unit_vector: the same part scaled to length one, as in the published code of VSE++.
    """
    grid: Tensor = backbone.forward_features(images)  # type: ignore[operator]
    if output != "grid":
        vector: Tensor = backbone.forward_head(grid, pre_logits=True)  # type: ignore[operator]
        return (vector if output == "vector" else unit(vector)).unsqueeze(1)
    return grid.flatten(2).transpose(1, 2) if grid.ndim == 4 else grid  # four dimensions: a convolutional network


def _mlp(features: int, width: int) -> nn.Module:
    hidden = max(1, width // 2)
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, width))


def _backbone(config: DualConfig, weights: bool) -> tuple[nn.Module, int, Preprocess]:
    """Build the network; return it, its output width and its preprocessing; nothing is downloaded unless `download`."""
    allow_torchvision()
    import timm

    name, source = str(config.backbone), config.backbone_weights if weights else None
    if not timm.is_model(name):
        close = difflib.get_close_matches(name, timm.list_models(), 3)
        problem = f"is no timm model; use {', '.join(close) or 'for example resnet50'}"
        raise ConfigError.of("target.backbone", name, problem)
    if source not in (None, "download") and not Path(str(source)).is_file():
        problem = "is no file; give a safetensors file, `download`, or leave it out for random weights"
        raise ConfigError.of("target.backbone_weights", source, problem)
    file = {"file": source} if source not in (None, "download") else None
    sizes = {"img_size": config.image_size} if _takes_size(name) else {}
    network = timm.create_model(
        name, pretrained=source is not None, pretrained_cfg_overlay=file, num_classes=0, **sizes
    )
    was_training = network.training
    with torch.no_grad():
        blank = torch.zeros(1, 3, config.image_size, config.image_size)
        grid = network.eval().forward_features(blank)
        width = _read_parts(network, config.backbone_output, blank).shape[2]
    network.train(was_training)
    if config.backbone_output == "grid" and grid.ndim == 4 and grid.shape[1] != network.num_features:
        problem = f"has a grid {tuple(grid.shape)}, channels last; use for example resnet50 or vit_small_patch16_224"
        raise ConfigError.of("target.backbone", name, problem)
    own = timm.data.resolve_model_data_config(network)
    interpolation = "bilinear" if own["interpolation"] == "bilinear" else "bicubic"
    mean, std = tuple(own["mean"]), tuple(own["std"])
    preprocess = Preprocess(config.image_size, "shortest", interpolation, mean, std, decoder="fast")  # type: ignore[arg-type]
    return network, width, preprocess


def _takes_size(name: str) -> bool:
    """Return whether the picture size must be given: transformers fix it when they are built."""
    return name.startswith(("vit_", "deit", "beit", "swin", "eva", "test_vit"))
