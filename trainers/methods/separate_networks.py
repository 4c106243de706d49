"""The base of methods whose networks do not know of each other: one network, or several that are measured together.

Several networks make such a method comparable with those of two networks (`co_teaching.py`), whose figures are also those of
an average: two networks are better than one whatever they learn by.
"""

from abc import abstractmethod
from collections.abc import Mapping

import torch
from pydantic import Field

from noisegate.trainers.data import Batch

from .base import ALL, Method, MethodConfig, Run, StepLoss, Stream


class SeparateNetworksConfig(MethodConfig):
    """Settings of all methods that can train several networks apart."""

    networks: int | None = Field(default=None, ge=1, examples=[2])
    """trained apart in one run, from different weights and on the data in different orders, and measured together; None: 1"""


class SeparateNetworks(Method):
    """Train each network on its own batch by the same loss."""

    config: SeparateNetworksConfig

    def __init__(self, config: MethodConfig, task: str) -> None:
        super().__init__(config, task)
        self.networks = self.config.networks or 1

    @abstractmethod
    def network_loss(self, batch: Batch, network: int, run: Run) -> StepLoss:
        """Compute the loss of one network on its batch."""

    def uses_all_parameters(self) -> bool:
        """False for several networks: a step may have samples, or weights, for only some of them."""
        return self.networks == 1 and self.loss_name == "info_nce" and self.config.temperature is None

    def streams(self, run: Run) -> dict[str, Stream]:
        return {stream_name(network): Stream(order=network) for network in range(self.networks)}

    def loss(self, batches: Mapping[str, Batch], run: Run) -> StepLoss:
        """Sum the losses of the networks, which share no parameters; log the values of the first that learns in this step."""
        numbers = [number for number in range(self.networks) if stream_name(number) in batches]
        steps = [self.network_loss(batches[stream_name(number)], number, run) for number in numbers]
        losses = [step.loss for step in steps if step.loss is not None]
        logs = {name: value for step in reversed(steps) for name, value in step.logs.items()}
        return StepLoss(torch.stack(losses).sum() if losses else None, logs)


def stream_name(network: int) -> str:
    """Name the stream of a network.

    >>> stream_name(0), stream_name(1)
    ('all', 'all_1')
    """
    return f"{ALL}_{network}" if network else ALL
