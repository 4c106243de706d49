"""A few careful steps of contrastive training on both towers of an open_clip model."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators.openclip import OpenClipEstimator
from noisegate.pipeline.methods.info_nce import info_nce, same_pairs
from noisegate.pipeline.shards.workers import Decoded

__all__ = ["Tuning", "tune"]

LARGEST_SCALE = math.log(100)  # CLIP's own limit of the logarithm of the logit scale


@dataclass(frozen=True)
class Tuning:
    """AdamW with the settings of OSA, appendix A, but for fewer steps and with gradients clipped to the norm `clip`."""

    steps: int = 100
    batch_size: int = 128
    learning_rate: float = 1e-5
    weight_decay: float = 0.2
    clip: float = 1.0

    def __post_init__(self) -> None:
        for name, least, works in (("steps", 1, 100), ("batch_size", 2, 128)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}={getattr(self, name)}: give {least} or more, for example {name}={works}")
        for name, example in (("learning_rate", "1e-5"), ("clip", "1.0")):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ConfigError(f"{name}={getattr(self, name)}: give a number above 0, for example {name}={example}")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ConfigError(f"weight_decay={self.weight_decay}: give 0 or more, for example weight_decay=0.2")

    def rate(self, step: int) -> float:
        """The learning rate of step 0, 1, …: up in a line over the first tenth, then down to 0 along a cosine.

        >>> [round(Tuning(steps=10, learning_rate=1.0).rate(step), 3) for step in (0, 1, 5, 9)]
        [1.0, 0.976, 0.5, 0.024]
        """
        rise = max(1, self.steps // 10)
        if step < rise:
            return self.learning_rate * (step + 1) / rise
        return self.learning_rate * (1 + math.cos(math.pi * (step + 1 - rise) / (self.steps + 1 - rise))) / 2


def tune(
    estimator: OpenClipEstimator,
    samples: Sequence[Decoded],
    pictures: NDArray[np.int64],
    captions: NDArray[np.int64],
    tuning: Tuning,
    rng: np.random.Generator,
    note: Callable[[str], None],
) -> None:
    """Change the estimator's weights in place; its identity still names the old ones, so save it and load it anew.

    samples: N pairs; pictures, captions: (N,) ids, equal where two show the same. The model stays in evaluation mode:
    no dropout, and batch statistics learnt from millions are not replaced by those of a few batches.
    """
    model = estimator.module
    optimiser = torch.optim.AdamW(
        _groups(model, tuning.weight_decay), lr=tuning.learning_rate, betas=(0.9, 0.98), eps=1e-6
    )
    for step, rows in zip(range(tuning.steps), _batches(len(samples), tuning.batch_size, rng), strict=False):
        for group in optimiser.param_groups:
            group["lr"] = tuning.rate(step)
        chosen = [samples[i] for i in rows]
        images, texts = estimator.embed_batch(
            [s.pixels for s in chosen if s.pixels is not None], [s.text for s in chosen if s.text is not None]
        )
        same = same_pairs(rows, pictures, captions).to(images.device)
        scale = model.logit_scale.exp()
        loss = info_nce(F.normalize(images, dim=-1), F.normalize(texts, dim=-1), scale, same).mean()
        if not torch.isfinite(loss):
            works = min(Tuning.learning_rate, tuning.learning_rate / 10)
            raise ConfigError(
                f"learning_rate={tuning.learning_rate}: the loss is no number at step {step + 1}; give a smaller one, "
                f"for example learning_rate={works:g}"
            )
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), tuning.clip)
        optimiser.step()
        with torch.no_grad():
            model.logit_scale.clamp_(max=LARGEST_SCALE)
        if (step + 1) % max(1, tuning.steps // 5) == 0:
            note(f"step {step + 1} of {tuning.steps}, loss {loss.item():.4f}")


def _groups(model: Any, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices decay; gains, biases and the logit scale do not."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]


def _batches(count: int, size: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Rows of one batch after another, for ever: in a new order each time all have been seen, a short rest left out."""
    size = min(size, count)
    while True:
        order = rng.permutation(count)
        for start in range(0, count - size + 1, size):
            yield order[start : start + size]
