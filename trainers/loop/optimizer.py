"""Optimiser, learning-rate schedule, and moving average of the weights."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from noisegate.trainers.config import OptimizerConfig, ScheduleConfig


@dataclass(frozen=True)
class LearningRate:
    """Schedule of a run, or of a piece that begins at epoch `start` and lasts `epochs`.

    Time is counted in epochs, because methods that select samples make epochs of different lengths.
    """

    config: ScheduleConfig
    epochs: int
    warmup: float
    """in epochs: schedule.warmup divided by the updates of the first epoch"""
    start: int = 0

    def factor(self, now: float) -> float:
        """Return the share of optimizer.lr at time `now`: the epoch plus the share of its updates already done.

        A warm-up of n updates goes from 1/n to 1; the cosine falls from there to `floor`.

        >>> rate = LearningRate(ScheduleConfig(warmup=2), epochs=1, warmup=0.2)
        >>> [round(rate.factor(step / 10), 4) for step in (0, 1, 2, 6, 9)]
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
    """Make two parameter groups: matrices decay; gains, biases and scales do not."""
    trained = [pair for network in networks for pair in network.named_parameters() if pair[1].requires_grad]
    decays = [p.ndim > 1 and not name.endswith("bias") for name, p in trained]
    return [
        {"params": [p for (_, p), decay in zip(trained, decays, strict=True) if decay], "weight_decay": weight_decay},
        {"params": [p for (_, p), decay in zip(trained, decays, strict=True) if not decay], "weight_decay": 0.0},
    ]


def build_optimizer(config: OptimizerConfig, networks: Iterable[nn.Module]) -> torch.optim.Optimizer:
    """Build AdamW, Adam or SGD over the parameters that are not frozen."""
    groups = [group for group in parameter_groups(networks, config.weight_decay) if group["params"]]
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov)
    kind = torch.optim.AdamW if config.name == "adamw" else torch.optim.Adam
    return kind(groups, lr=config.lr, betas=config.betas, eps=config.eps)


class WeightAverage:
    """Moving average: avg ← d avg + (1 - d) weight after update n, with d = min(decay, (1 + n) / (10 + n)).

    The smaller d of the first updates forgets the initial weights. Integer buffers are copied.
    """

    def __init__(self, networks: Sequence[nn.Module], decay: float) -> None:
        self._networks = networks
        self.decay, self.updates = decay, 0
        self.weights = {name: tensor.detach().clone() for name, tensor in self._named_tensors()}

    def _named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        for i, network in enumerate(self._networks):
            for name, tensor in network.state_dict().items():
                yield f"{i}.{name}", tensor

    @torch.no_grad()
    def update(self) -> None:
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        for name, tensor in self._named_tensors():
            if tensor.is_floating_point():
                self.weights[name].lerp_(tensor, 1 - decay)
            else:
                self.weights[name].copy_(tensor)

    def restart(self) -> None:
        """Restart the average from the current weights."""
        self.load(dict(self._named_tensors()), 0)

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor], updates: int) -> None:
        self.updates = updates
        for name, tensor in weights.items():
            self.weights[name].copy_(tensor)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the networks the averaged weights inside the `with` block."""
        with torch.no_grad():
            self._swap()
        try:
            yield
        finally:
            with torch.no_grad():
                self._swap()

    def _swap(self) -> None:
        for name, tensor in self._named_tensors():
            average = self.weights[name]
            before = tensor.clone()
            tensor.copy_(average)
            average.copy_(before)
