"""Fine-tune an open_clip estimator on pairs by InfoNCE with AdamW, as OSA's domain adaptation does (appendix A)."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators.openclip import OpenClipEstimator
from noisegate.pipeline.methods.losses import info_nce
from noisegate.pipeline.methods.pair_batches import same_pairs
from noisegate.pipeline.shards.workers import Decoded
from noisegate.pipeline.system.array_types import Index

LARGEST_SCALE = math.log(100)  # CLIP's own limit of the logarithm of the logit scale
NO_TEXT = ""
"""stands in for the caption of a picture whose partner is another picture"""


@dataclass(frozen=True)
class Tuning:
    """AdamW with the settings of OSA, appendix A, but with fewer steps and gradients clipped to the norm `clip`."""

    steps: int = 100
    batch_size: int = 128
    learning_rate: float = 1e-5
    weight_decay: float = 0.2
    clip: float = 1.0

    def __post_init__(self) -> None:
        least = {"steps": 1, "batch_size": 2, "weight_decay": 0}
        for name, value in asdict(self).items():
            if not math.isfinite(value) or (value < least[name] if name in least else value <= 0):
                raise ConfigError.of(name, value, f"is too small or no number; use {getattr(Tuning, name)}")

    def rate(self, step: int) -> float:
        """Return the learning rate of step 0, 1, …: linear warm-up over the first tenth, then a cosine down to 0.

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
    partners: Index | None = None,
) -> None:
    """Change the estimator's weights in place; its identity still names the old weights, so save and reload it.

    samples: N pairs; pictures, captions: (N,) ids, equal for equal pictures or captions; partners: (N,) rows whose pictures
    replace the texts. The model stays in evaluation mode: no dropout, and batch statistics learnt from millions of samples are
    not replaced by those of a few batches.
    """
    model = estimator.module
    optimiser = torch.optim.AdamW(
        _parameter_groups(model, tuning.weight_decay), lr=tuning.learning_rate, betas=(0.9, 0.98), eps=1e-6
    )
    for step, rows in zip(range(tuning.steps), _batches(len(samples), tuning.batch_size, rng), strict=False):
        for group in optimiser.param_groups:
            group["lr"] = tuning.rate(step)
        chosen = [samples[i] for i in rows]
        images, texts = estimator.embed_batch(
            [s.pixels for s in chosen if s.pixels is not None], [s.text for s in chosen if s.text is not None]
        )
        if partners is not None:
            others = [samples[i].pixels for i in partners[rows]]
            texts = estimator.embed_batch([pixels for pixels in others if pixels is not None], [NO_TEXT])[0]
        same = torch.from_numpy(same_pairs(rows, pictures, captions)).to(images.device)
        scale = model.logit_scale.exp()
        logits = scale * F.normalize(images, dim=-1) @ F.normalize(texts, dim=-1).T
        loss = info_nce(logits, 1.0, same).mean()
        if not torch.isfinite(loss):
            works = min(Tuning.learning_rate, tuning.learning_rate / 10)
            problem = f"is too high: the loss is no number at step {step + 1}; use {works:g}"
            raise ConfigError.of("learning_rate", tuning.learning_rate, problem)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), tuning.clip)
        optimiser.step()
        with torch.no_grad():
            model.logit_scale.clamp_(max=LARGEST_SCALE)
        if (step + 1) % max(1, tuning.steps // 5) == 0:
            note(f"step {step + 1} of {tuning.steps}, loss {loss.item():.4f}")


def _parameter_groups(model: Any, weight_decay: float) -> list[dict[str, Any]]:
    """Split parameters for weight decay: matrices decay; gains, biases and the logit scale do not."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]


def _batches(count: int, size: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Yield rows of batches without end, shuffled for every pass, without an incomplete last batch."""
    size = min(size, count)
    while True:
        order = rng.permutation(count)
        for start in range(0, count - size + 1, size):
            yield order[start : start + size]
