"""What a training step gets: pictures, texts, labels and the table's columns of the same samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

__all__ = ["Batch", "Dropped"]

T = TypeVar("T")
_TENSORS = ("rows", "images", "texts", "labels", "columns", "caption_of")


@dataclass(frozen=True)
class Dropped:
    """A sample that was to be in a batch and is not, and why."""

    row: int
    shard: str
    key: str
    why: str
    status: str = "mismatch"
    """as a table's: `mismatch` where it is another than the one that was scored"""

    def __str__(self) -> str:
        return f"{self.shard}: sample {self.key}: {self.why}"


@dataclass
class Batch:
    """B samples; every per-sample field has them in the same order.

    `rows`: (B,) int64 global row numbers, which count all rows of all tables in order, failed ones included.
    `images`: (B, …) what `image` made of the pictures, None where none are read. `texts`: what `text` made of `captions`.
    `captions`: one for each sample, or, where all captions of a picture are asked for, C ≥ B of them, with `caption_of`
    (C,) the place in the batch of each one's picture; empty where no captions are read.
    `labels`: (B,) int64, None where not asked for. `columns`: (B,) each; null is nan in float32, -1 in int64, false in bool.
    `fields`: lists of B values of json fields, None where a sample lacks one.
    `dropped`: samples left out; B is smaller than the plan's batch by that many, and where nothing is left, zero: skip it.
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
    number: int = 0  # of the batch in its epoch
    dropped: Sequence[Dropped] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The same batch with all tensors on `device`."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory; DataLoader calls this."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        return replace(self, **{name: map_tensors(getattr(self, name), change) for name in _TENSORS})

    def emptied(self) -> Batch:
        """The same kind of batch with no samples in it: shapes but for the first axis, and types, are kept."""
        empty = self._map(lambda tensor: tensor[:0])
        return replace(empty, keys=[], captions=[], fields={name: [] for name in self.fields}, dropped=())


def map_tensors(value: T, change: Callable[[Tensor], Tensor]) -> T:
    """`value` with every tensor in it changed: through dicts, lists, tuples, named tuples and dataclasses.

    >>> map_tensors({"ids": (torch.ones(2), "x")}, lambda t: t[:1])
    {'ids': (tensor([1.]), 'x')}
    """
    return _mapped(value, change)  # type: ignore[no-any-return]


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: _mapped(part, change) for name, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(part, change) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(_mapped(part, change) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _mapped(getattr(value, f.name), change) for f in dataclasses.fields(value)})
    return value
