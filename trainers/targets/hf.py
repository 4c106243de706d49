"""A dual encoder of transformers (ALIGN, CLIP, SigLIP, …): fine-tune all, the visual tower only, or train from scratch.

A checkpoint contains the weights; configuration, tokenizer and image processor are read again from `model`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field
from torch import Tensor, nn

from noisegate.pipeline.estimators import context_length, load_transformers, pooled_features
from noisegate.pipeline.settings import Limits
from noisegate.pipeline.shards import ProcessorPixels, decode_pixels

from .base import Encoded, Target, TargetConfig, unit
from .pictures import channels_first

PADDED = -1
"""in place of the tokenizer's padding, whose number may be that of the end token (CLIP)"""
TEMPERATURES = (0.01, 1.0)
"""within which a learnt temperature stays, as CLIP's does"""


class HfConfig(TargetConfig):
    """Settings of `hf`."""

    name: Literal["hf"] = "hf"
    model: str = Field(examples=["hf:kakaobrain/align-base"])
    """hf:NAME on the hub or in its cache, or hf:FOLDER that save_pretrained wrote"""
    random: bool = False
    """begin with random weights"""
    train: Literal["all", "visual"] = "all"
    flip: float = Field(default=0.0, ge=0, le=1)
    """probability of a mirrored picture in training"""

    @property
    def from_scratch(self) -> bool:
        return self.random


class Hf(Target):
    """Images uint8 (B, 3, H, W), tokens (B, L) with -1 for padding; similarity is the cosine."""

    config: HfConfig

    def __init__(self, config: HfConfig, weights: bool = True) -> None:
        super().__init__(config)
        self.model, self._processor, name = load_transformers(config.model, weights and not config.random)
        self.model.float()
        self.preprocess = ProcessorPixels.of(self._processor.image_processor, name, decoder="fast")
        self.tokenizer = HfTokenizer(self._processor.tokenizer, context_length(self.model, self._processor))
        self.scale_pixels(self.preprocess)
        with torch.no_grad():
            self.width = self.encode_texts(self.tokenizer(["a"]))["vectors"].shape[1]
        if config.train == "visual":
            for part, parameter in self.model.named_parameters():
                parameter.requires_grad_(part.startswith(("vision", "visual")) or parameter.ndim == 0)

    def image_transform(self, train: bool) -> Callable[..., Tensor]:
        return ProcessorTransform(self.preprocess, self.config.flip if train else 0.0)

    def encode_images(self, images: Tensor) -> Encoded:
        return {"vectors": unit(pooled_features(self.model.get_image_features(pixel_values=self.pixels(images))))}

    def encode_texts(self, tokens: Tensor) -> Encoded:
        known = tokens != PADDED
        inputs = {"input_ids": torch.where(known, tokens, self.tokenizer.padding)}  # type: ignore[attr-defined]
        if "attention_mask" in self._processor.tokenizer.model_input_names:
            inputs["attention_mask"] = known.long()
        return {"vectors": unit(pooled_features(self.model.get_text_features(**inputs)))}

    @property
    def logit_scale(self) -> nn.Parameter | None:
        scale: nn.Parameter | None = getattr(self.model, "logit_scale", None)
        return scale

    @property
    def scale(self) -> Tensor:
        """Return exp(logit_scale), or 1 / temperature for ALIGN."""
        learnt: Tensor | None = getattr(self.model, "temperature", None)
        return super().scale if learnt is None else 1 / learnt.float()

    @torch.no_grad()
    def after_step(self) -> None:
        super().after_step()
        if getattr(self.model, "temperature", None) is not None:
            self.model.temperature.clamp_(*TEMPERATURES)

    def export(self, folder: Path) -> None:
        """Save as a folder that transformers, and noisegate as an estimator, load by `hf:FOLDER`."""
        self.model.save_pretrained(folder)
        self._processor.save_pretrained(folder)


@dataclass(frozen=True)
class HfTokenizer:
    """Convert texts to token ids (N, L) int64, cut and padded to the context."""

    tokenizer: Any
    context: int

    @property
    def padding(self) -> int:
        return int(self.tokenizer.pad_token_id or 0)

    def __call__(self, texts: list[str]) -> Tensor:
        made = self.tokenizer(
            list(texts),
            padding="max_length",
            truncation=True,
            max_length=self.context,
            return_tensors="pt",
            return_attention_mask=True,
        )
        tokens: Tensor = made["input_ids"].masked_fill(made["attention_mask"] == 0, PADDED)
        return tokens


@dataclass(frozen=True)
class ProcessorTransform:
    """Convert a PIL picture to uint8 (3, crop, crop) like the model's image processor; mirror it with probability `flip`."""

    preprocess: ProcessorPixels
    flip: float = 0.0

    @property
    def deterministic(self) -> bool:
        return self.flip == 0

    def decode(self, data: bytes, limits: Limits, rng: np.random.Generator | None = None) -> Tensor:
        """Decode a file as `annotate` does, and transform it; raise BadSample for a bad one."""
        return self._mirror(decode_pixels(data, self.preprocess, limits), rng)

    def __call__(self, image: Image.Image, rng: np.random.Generator | None = None) -> Tensor:
        return self._mirror(self.preprocess(image.convert("RGB")), rng)

    def _mirror(self, pixels: NDArray[np.uint8], rng: np.random.Generator | None) -> Tensor:
        if self.flip:
            drawn = rng.random() if rng is not None else float(torch.rand(()))
            pixels = pixels[:, ::-1] if drawn < self.flip else pixels
        return channels_first(pixels)
