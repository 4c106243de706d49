"""Several networks as one: their similarities averaged, as co-teaching methods are evaluated."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from noisegate.pipeline.errors import ConfigError

from .base import Target
from .encoded import Encoded


class Ensemble(Target):
    """Targets of one kind that read the same inputs; for evaluation, as it has no configuration of its own.

    Encoded tensors are those of the members under `0.`, `1.`, …; `vectors` puts the members' vectors side by side, divided
    by sqrt(n), so that its cosines are the averages of theirs.
    """

    def __init__(self, members: Sequence[Target]) -> None:
        if not members:
            raise ConfigError("members: none were given; an ensemble needs at least one target", "members", 0)
        super().__init__(members[0].config)
        self.members = nn.ModuleList(members)
        self.classes = members[0].classes
        self.width = sum(member.width for member in members)

    def _each(self) -> list[Target]:
        return [member for member in self.members if isinstance(member, Target)]

    def image_transform(self, train: bool) -> Callable[..., Tensor]:
        return self._each()[0].image_transform(train)

    @property
    def tokenizer(self) -> Callable[[list[str]], Tensor]:
        return self._each()[0].tokenizer

    def pixels(self, images: Tensor) -> Tensor:
        return self._each()[0].pixels(images)

    def encode_images(self, images: Tensor) -> Encoded:
        return _joined([member.encode_images(images) for member in self._each()])

    def encode_texts(self, tokens: Tensor) -> Encoded:
        return _joined([member.encode_texts(tokens) for member in self._each()])

    def encode_classes(self) -> Encoded:
        return _joined([member.encode_classes() for member in self._each()])

    def similarity(self, images: Encoded, texts: Encoded) -> Tensor:
        """(Bi, Bt) mean over the members."""
        each = [
            member.similarity(_member(images, number), _member(texts, number))
            for number, member in enumerate(self._each())
        ]
        return torch.stack(each).mean(dim=0)

    def class_similarity(self, images: Encoded, anchors: Encoded | None = None) -> Tensor:
        """(B, C) mean over the members."""
        return self._mean_over_classes("class_similarity", images, anchors)

    def class_logits(self, images: Encoded, anchors: Encoded | None = None) -> Tensor:
        """(B, C) mean over the members, each with its own scale or linear head."""
        return self._mean_over_classes("class_logits", images, anchors)

    def _mean_over_classes(self, method: str, images: Encoded, anchors: Encoded | None) -> Tensor:
        each = [
            getattr(member, method)(_member(images, number), None if anchors is None else _member(anchors, number))
            for number, member in enumerate(self._each())
        ]
        return torch.stack(each).mean(dim=0)

    @property
    def scale(self) -> Tensor:
        return torch.stack([member.scale for member in self._each()]).mean()

    def after_step(self) -> None:
        for member in self._each():
            member.after_step()


def as_one(targets: Sequence[Target]) -> Target:
    """The target itself where there is one, else their ensemble."""
    return targets[0] if len(targets) == 1 else Ensemble(targets)


def _joined(each: Sequence[Encoded]) -> Encoded:
    vectors = torch.cat([encoded["vectors"] for encoded in each], dim=1) / len(each) ** 0.5
    parts = {f"{number}.{name}": tensor for number, encoded in enumerate(each) for name, tensor in encoded.items()}
    return {"vectors": vectors, **parts}


def _member(encoded: Encoded, number: int) -> Encoded:
    start = f"{number}."
    return {name.removeprefix(start): tensor for name, tensor in encoded.items() if name.startswith(start)}
