"""A moving average of a network's weights."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["Average"]


class Average:
    """avg ← d avg + (1 - d) weight after each update, with d = min(decay, (1 + n) / (10 + n)) so that the start is forgotten.

    n counts the updates so far. What is no floating-point number, and frozen weights, are as the network has them.
    """

    def __init__(self, networks: Sequence[nn.Module], decay: float) -> None:
        self._networks = networks
        self.decay, self.updates = decay, 0
        self.weights = {name: tensor.detach().clone() for name, tensor in self._named()}

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        for i, network in enumerate(self._networks):
            for name, tensor in network.state_dict().items():
                yield f"{i}.{name}", tensor

    @torch.no_grad()
    def update(self) -> None:
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        for name, tensor in self._named():
            if tensor.is_floating_point():
                self.weights[name].lerp_(tensor, 1 - decay)
            else:
                self.weights[name].copy_(tensor)

    @torch.no_grad()
    def restart(self) -> None:
        """Begin again from the networks as they are."""
        self.updates = 0
        for name, tensor in self._named():
            self.weights[name].copy_(tensor)

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor], updates: int) -> None:
        self.updates = updates
        for name, tensor in weights.items():
            self.weights[name].copy_(tensor)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The networks have the average's weights meanwhile."""
        with torch.no_grad():
            self._swap()
        try:
            yield
        finally:
            with torch.no_grad():
                self._swap()

    def _swap(self) -> None:
        for name, tensor in self._named():
            other = self.weights[name]
            kept = tensor.clone()
            tensor.copy_(other)
            other.copy_(kept)
