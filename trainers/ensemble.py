"""Several networks as one: their similarities averaged (METHODS 1.6)."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .targets import Encoded, Target

__all__ = ["Ensemble", "as_one"]


class Ensemble(Target):
    """Reads as a target wherever one is evaluated. `vectors` are joined, so that cosines of them are averages too."""

    def __init__(self, networks: Sequence[Target]) -> None:
        super().__init__(networks[0].config)
        self.networks = nn.ModuleList(networks)
        self.classes = networks[0].classes
        self.width = sum(network.width for network in networks)

    def _each(self) -> list[Target]:
        return list(self.networks)  # type: ignore[arg-type]

    def image_transform(self, train: bool) -> Callable[[Any], Tensor]:
        return self._each()[0].image_transform(train)

    @property
    def tokenizer(self) -> Callable[[list[str]], Tensor]:
        return self._each()[0].tokenizer

    def encode_images(self, images: Tensor) -> Encoded:
        return _joined([network.encode_images(images) for network in self._each()])

    def encode_texts(self, tokens: Tensor) -> Encoded:
        return _joined([network.encode_texts(tokens) for network in self._each()])

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        found = [n.similarity(_part(images, i), _part(texts, i)) for i, n in enumerate(self._each())]
        return torch.stack(found).mean(dim=0)

    def encode_classes(self) -> Encoded:
        return _joined([network.encode_classes() for network in self._each()])

    def class_logits(self, images: Encoded, anchors: Encoded | None = None) -> Tensor:
        """Mean logits."""
        found = [
            network.class_logits(_part(images, i), None if anchors is None else _part(anchors, i))
            for i, network in enumerate(self._each())
        ]
        return torch.stack(found).mean(dim=0)

    @property
    def scale(self) -> Tensor:
        return torch.stack([network.scale for network in self._each()]).mean()


def as_one(networks: Sequence[Target]) -> Target:
    """The network itself where there is one."""
    return networks[0] if len(networks) == 1 else Ensemble(networks)


def _joined(parts: Sequence[Encoded]) -> Encoded:
    joined = {f"{i}.{name}": tensor for i, part in enumerate(parts) for name, tensor in part.items()}
    vectors = torch.cat([part["vectors"] for part in parts], dim=1)
    return {"vectors": vectors / len(parts) ** 0.5, **joined}


def _part(encoded: Encoded, number: int) -> Encoded:
    start = f"{number}."
    return {name.removeprefix(start): tensor for name, tensor in encoded.items() if name.startswith(start)}
