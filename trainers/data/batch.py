"""A training batch: pictures, texts, labels and table columns of the same samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

_TENSORS = ("rows", "images", "texts", "labels", "columns", "caption_of")


@dataclass(frozen=True)
class Dropped:
    """A sample that was left out of its batch, and the reason."""

    row: int
    shard: str
    key: str
    why: str
    status: str = "mismatch"
    """as in a table; `mismatch` if the sample is not the one that was scored"""

    def __str__(self) -> str:
        return f"{self.shard}: sample {self.key}: {self.why}"


@dataclass
class Batch:
    """A batch of B samples; every per-sample field has the same order.

    `rows`: (B,) int64 global row numbers, which count all rows of all tables in order, failed ones included.
    `images`: (B, …) output of the transform `image`, None if none are read. `texts`: output of `text` for `captions`.
    `captions`: one for each sample; with `captions="json:FIELD:all"` C ≥ B of them, and `caption_of` (C,) is the position in
    the batch of each caption's picture. Empty if no captions are read.
    `labels`: (B,) int64, None if not read. `columns`: (B,) each; null is nan in float32, -1 in int64, false in bool.
    `fields`: lists of B values of json fields, None where a sample lacks one.
    `dropped`: samples that were left out; B is smaller by their number, and may be zero.
    """

    rows: Tensor
    keys: list[str]
    images: Tensor | None = None
    texts: Any = None
    captions: list[str] = field(default_factory=list)
    labels: Tensor | None = None
    columns: dict[str, Tensor] = field(default_factory=dict)
    caption_of: Tensor | None = None
    fields: dict[str, list[Any]] = field(default_factory=dict)
    epoch: int = 0
    number: int = 0  # number of the batch in its epoch
    dropped: Sequence[Dropped] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """Copy the batch with all tensors on `device`."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """Copy the batch into page-locked memory; DataLoader calls this."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        return replace(self, **{name: map_tensors(getattr(self, name), change) for name in _TENSORS})

    def without_samples(self) -> Batch:
        """Return a batch of the same types and shapes without samples."""
        empty = self._map(lambda tensor: tensor[:0])
        return replace(empty, keys=[], captions=[], fields={name: [] for name in self.fields}, dropped=())


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply `change` to every tensor in dicts, lists, tuples, named tuples and dataclasses.

    >>> map_tensors({"ids": (torch.ones(2), "x")}, lambda t: t[:1])
    {'ids': (tensor([1.]), 'x')}
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: map_tensors(part, change) for name, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(part, change) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(part, change) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return replace(value, **map_tensors(parts, change))
    return value
