"""The learning rate at any moment, and which parameters decay."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from noisegate.trainers.config import OptimizerConfig, ScheduleConfig

__all__ = ["Course", "build_optimizer", "parameter_groups"]


@dataclass(frozen=True)
class Course:
    """The schedule of a run, or of a piece of it that began at `start` (epochs) and lasts `epochs`.

    Time is counted in epochs, so that epochs of different lengths, as methods that select make them, need no forecast.
    """

    config: ScheduleConfig
    epochs: int
    warmup: float
    """in epochs: schedule.warmup updates over the updates of the first epoch"""
    start: int = 0

    def factor(self, now: float) -> float:
        """Share of optimizer.lr at `now` epochs, which is the epoch plus the share of its updates already done.

        The first update of a warm-up of n has 1/n, the last of them 1; the cosine falls from there to `floor`.

        >>> course = Course(ScheduleConfig(warmup=2), epochs=1, warmup=0.2)
        >>> [round(course.factor(step / 10), 4) for step in (0, 1, 2, 6, 9)]
        [0.5, 1.0, 1.0, 0.5, 0.0381]
        """
        time = now - self.start
        if time < self.warmup - 1e-9:
            return (round(time / self.warmup * self.config.warmup) + 1) / self.config.warmup
        if self.config.name == "constant":
            return 1.0
        if self.config.name == "step":
            return self.config.factor ** (int(time + 1e-9) // self.config.every)
        part = min(1.0, (time - self.warmup) / max(self.epochs - self.warmup, 1e-9))
        return self.config.floor + (1 - self.config.floor) * (1 + math.cos(math.pi * part)) / 2


def parameter_groups(networks: Iterable[nn.Module], weight_decay: float) -> list[dict[str, Any]]:
    """Matrices decay; gains, biases and scales do not."""
    trained = [pair for network in networks for pair in network.named_parameters() if pair[1].requires_grad]
    decays = [p.ndim > 1 and not name.endswith("bias") for name, p in trained]
    return [
        {"params": [p for (_, p), decay in zip(trained, decays, strict=True) if decay], "weight_decay": weight_decay},
        {"params": [p for (_, p), decay in zip(trained, decays, strict=True) if not decay], "weight_decay": 0.0},
    ]


def build_optimizer(config: OptimizerConfig, networks: Iterable[nn.Module]) -> torch.optim.Optimizer:
    """AdamW, Adam or SGD over what is not frozen."""
    groups = [group for group in parameter_groups(networks, config.weight_decay) if group["params"]]
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov)
    kind = torch.optim.AdamW if config.name == "adamw" else torch.optim.Adam
    return kind(groups, lr=config.lr, betas=config.betas, eps=config.eps)
