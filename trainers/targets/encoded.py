"""What a target makes of a batch: named tensors whose first axis is the sample, and how to cut, join and gather them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd.function import FunctionCtx

# `vectors` (N, d) float is always there: one unit row per sample, or zeros where a sample has no content.  Targets that
# compare parts add `parts` (N, L, d) and `mask` (N, L) bool, True where a part is real.
Encoded = dict[str, Tensor]


def count(encoded: Encoded) -> int:
    """Number of samples."""
    return len(encoded["vectors"]) if "vectors" in encoded else len(next(iter(encoded.values())))


def take(encoded: Encoded, rows: Tensor | slice | Sequence[int]) -> Encoded:
    """The samples at `rows`: indices, a bool mask or a slice.

    >>> take({"vectors": torch.eye(3)}, [2])["vectors"].tolist()
    [[0.0, 0.0, 1.0]]
    """
    index = rows if isinstance(rows, Tensor | slice) else torch.as_tensor(rows, dtype=torch.int64)
    return {name: tensor[index] for name, tensor in encoded.items()}


def concat(batches: Sequence[Encoded]) -> Encoded:
    """One after the other; parts of unequal number are filled up with zeros, which their mask says.

    >>> concat([{"vectors": torch.ones(1, 2)}, {"vectors": torch.zeros(2, 2)}])["vectors"].shape
    torch.Size([3, 2])
    """
    if len(batches) == 1:
        return dict(batches[0])
    joined = {}
    for name in batches[0]:
        tensors = [batch[name] for batch in batches]
        length = max(tensor.shape[1] for tensor in tensors) if tensors[0].ndim > 1 else 0
        joined[name] = torch.cat([_lengthened(tensor, length) for tensor in tensors])
    return joined


def gather(encoded: Encoded) -> Encoded:
    """The samples of all ranks in rank order, on every rank; gradients flow back to the rank they came from.

    Every rank must bring the same number of samples.  A loss that each rank computes over all gathered samples, with
    gradients averaged over ranks as DDP does, has the gradient of one process on the whole batch.  One process: as is.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return encoded
    gathered = {}
    for name, tensor in encoded.items():
        if tensor.ndim > 1:
            length = torch.tensor(tensor.shape[1], device=tensor.device)
            dist.all_reduce(length, op=dist.ReduceOp.MAX)
            tensor = _lengthened(tensor, int(length))
        if tensor.dtype == torch.bool:
            gathered[name] = gather_tensor(tensor.to(torch.uint8)).bool()
        else:
            gathered[name] = gather_tensor(tensor)
    return gathered


def gather_tensor(tensor: Tensor) -> Tensor:
    """A tensor of every rank, one after the other along the first axis, with gradients; all of one shape."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return tensor
    result: Tensor = _Gather.apply(tensor)  # type: ignore[no-untyped-call]
    return result


class _Gather(torch.autograd.Function):
    """All ranks' rows; the gradient of a rank's rows is summed over the ranks that used them."""

    @staticmethod
    def forward(ctx: FunctionCtx, tensor: Tensor) -> Tensor:
        rows = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, tensor.contiguous())
        return torch.cat(rows)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Any) -> Tensor:
        total: Tensor = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        size = len(total) // dist.get_world_size()
        return total[dist.get_rank() * size : (dist.get_rank() + 1) * size]


def _lengthened(tensor: Tensor, length: int) -> Tensor:
    missing = length - tensor.shape[1] if tensor.ndim > 1 else 0
    if missing <= 0:
        return tensor
    filling = tensor.new_zeros(tensor.shape[0], missing, *tensor.shape[2:])
    return torch.cat([tensor, filling], dim=1)
