"""A run of two networks whose similarities are given, for methods that teach one another."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noisegate.trainers.config import TrainConfig, build_method
from noisegate.trainers.data import Batch
from noisegate.trainers.methods import Method, Seen
from tests.trainers.small_targets import batch as rows_from


class VectorTarget:
    """As much of a target as GSL and IN2R ask for."""

    def __init__(self, width: int) -> None:
        self.width = width

    def vector_similarity(self, one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Tensor:
        return one["vectors"] @ other["vectors"].T


class TwoNetworks:
    """Rows with unit image and text vectors for each network; `forward` compares those of a batch's rows."""

    task, seed = "retrieval", 0
    device = torch.device("cpu")

    def __init__(self, images: Tensor, texts: Tensor, pictures: list[int] | None = None) -> None:
        """images, texts: (2, N, d), one for each network; pictures: rows with equal numbers show the same one."""
        self.images, self.texts = images, texts
        self.total_rows = images.shape[1]
        self.pictures = torch.tensor(pictures if pictures is not None else range(self.total_rows))
        self.epoch = self.step = 0
        self.said: list[str] = []
        self.forwards: list[int] = []
        self.observed: list[int] = []
        self.observed_texts: Tensor | None = None
        """other texts for evaluation mode"""
        self.passes = 0

    def forward(self, batch: Batch, network: int = 0) -> Seen:
        self.forwards.append(network)
        return self._seen(batch.rows, network)

    def observe(self, batch: Batch, network: int = 0) -> Seen:
        self.observed.append(network)
        return self._seen(batch.rows, network, self.observed_texts)

    def _seen(self, rows: Tensor, network: int, all_texts: Tensor | None = None) -> Seen:
        images, texts = self.images[network][rows], (self.texts if all_texts is None else all_texts)[network][rows]
        same = self.pictures[rows][:, None] == self.pictures[rows][None, :]
        return Seen(
            rows,
            {"vectors": images},
            torch.tensor(0.05),
            texts={"vectors": texts},
            similarity=images @ texts.T,
            same=same,
        )

    def network(self, network: int = 0) -> VectorTarget:
        return VectorTarget(self.images.shape[2])

    def measure_each(self, function: Callable[[Seen, int], Mapping[str, Tensor]]) -> list[dict[str, NDArray[Any]]]:
        self.passes += 1
        everything = torch.arange(self.total_rows)
        return [
            {name: values.numpy() for name, values in function(self._seen(everything, network), network).items()}
            for network in (0, 1)
        ]

    def random(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.epoch, len(purpose)])

    def note(self, text: str) -> None:
        self.said.append(text)


def units(rows: Tensor) -> Tensor:
    return torch.nn.functional.normalize(rows, dim=-1)


def noisy_run(count: int = 20, wrong: int = 6, seed: int = 0) -> TwoNetworks:
    """Both networks see right pairs near one another, and the first `wrong` captions on the next one's picture."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.eye(count)
    place = torch.arange(count)
    place[:wrong] = place[:wrong].roll(1)

    def near(rows: Tensor) -> Tensor:
        return units(rows + 0.05 * torch.randn(2, *rows.shape, generator=generator))

    return TwoNetworks(near(centres), near(centres[place]))


def prepared(run: TwoNetworks, *, epochs: int = 10, **how: Any) -> Any:
    """A method for that run."""
    made: Method = build_method(TrainConfig.parse({"method": how}))
    made.epochs(epochs)
    made.prepare(run)  # type: ignore[arg-type]
    return made


def everything(run: TwoNetworks) -> Batch:
    return rows_from(0, run.total_rows)
