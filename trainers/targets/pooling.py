"""Pool a set of parts to one vector: mean, max, last, and the generalised pooling operator of VSE∞ (Chen et al., 2021).

Parts are (N, L, d) with a mask (N, L), True where a part is real.  Values at padded places are ignored; a sample without parts
gives zeros.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

Pooling = Literal["mean", "max", "last", "gpo"]


def mean_pool(parts: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of the real parts, (N, d)."""
    kept = mask.unsqueeze(-1)
    return parts.masked_fill(~kept, 0).sum(dim=1) / kept.sum(dim=1).clamp(min=1)


def max_pool(parts: Tensor, mask: Tensor) -> Tensor:
    """Return the largest value of the real parts in each dimension, (N, d)."""
    largest = parts.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(dim=1)
    return largest.masked_fill(~mask.any(dim=1, keepdim=True), 0)


def last_pool(parts: Tensor, mask: Tensor) -> Tensor:
    """Return the last real part, (N, d): the final state of a recurrent encoder."""
    last = (lengths(mask) - 1).clamp(min=0)
    pooled = parts[torch.arange(len(parts), device=parts.device), last]
    return pooled.masked_fill(~mask.any(dim=1, keepdim=True), 0)


def lengths(mask: Tensor) -> Tensor:
    """Return the place of the last real part plus one, (N,); in texts real parts come first, in images anywhere."""
    places = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return (mask * places).amax(dim=1)


def positions(length: int, width: int) -> Tensor:
    """Return trigonometric encodings (length, width): sin and cos of k / 10000^(2i / width), side by side, k from 0.

    >>> [[round(x, 4) for x in row] for row in positions(2, 2).tolist()]
    [[0.0, 1.0], [0.8415, 0.5403]]
    """
    rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    angle = torch.arange(length).unsqueeze(1) * rate
    return torch.stack([angle.sin(), angle.cos()], dim=-1).reshape(length, width)


class GPO(nn.Module):
    """Generalised pooling: v_d = sum_k θ_k(n) · (k-th largest of the n real values in dimension d).

    θ(n) (n,) sums to one and depends on the number of parts alone: a bidirectional GRU reads the encodings of the positions
    1..n, its two directions are averaged, and a softmax at `temperature` over one linear output gives θ.  θ = 1/n is the mean,
    θ = (1, 0, …) the max.
    """

    def __init__(self, width: int = 32, hidden: int = 32, temperature: float = 0.1) -> None:
        super().__init__()
        self.width, self.temperature = width, temperature
        self.gru = nn.GRU(width, hidden, batch_first=True, bidirectional=True)
        self.score = nn.Linear(hidden, 1, bias=False)

    def coefficients(self, sizes: Tensor, longest: int) -> Tensor:
        """Compute θ(n) of each size, (N, longest) float32, zeros beyond n."""
        shown, place = torch.unique(sizes.clamp(min=1), return_inverse=True)  # θ is the same for equal sizes
        codes = positions(longest, self.width).to(self.score.weight).expand(len(shown), -1, -1)
        read = packed_gru(self.gru, codes, shown)
        beyond = torch.arange(longest, device=sizes.device) >= shown.unsqueeze(1)
        scores = (self.score(read).squeeze(-1).float() / self.temperature).masked_fill(beyond, -torch.inf)
        theta: Tensor = scores.softmax(dim=1)[place]
        return theta

    def forward(self, parts: Tensor, mask: Tensor) -> Tensor:
        sizes = mask.sum(dim=1)
        ranked = parts.masked_fill(~mask.unsqueeze(-1), -torch.inf).sort(dim=1, descending=True).values
        beyond = torch.arange(parts.shape[1], device=parts.device) >= sizes.unsqueeze(1)
        ranked = ranked.masked_fill(beyond.unsqueeze(-1), 0)
        theta = self.coefficients(sizes, parts.shape[1]).to(parts.dtype)
        return (theta.unsqueeze(-1) * ranked).sum(dim=1)


class _Plain(nn.Module):
    """A pooling without parameters as a module."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.pool = {"mean": mean_pool, "max": max_pool, "last": last_pool}[kind]

    def forward(self, parts: Tensor, mask: Tensor) -> Tensor:
        return self.pool(parts, mask)


def build_pooling(kind: Pooling) -> nn.Module:
    """Build a pooling module: (parts, mask) -> (N, d)."""
    return GPO() if kind == "gpo" else _Plain(kind)


def packed_gru(gru: nn.GRU, inputs: Tensor, sizes: Tensor) -> Tensor:
    """Run a GRU: outputs at each place (N, L, hidden), its directions averaged; padding is not read and gives zeros."""
    packed = pack_padded_sequence(inputs, sizes.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
    states, _ = pad_packed_sequence(gru(packed)[0], batch_first=True, total_length=inputs.shape[1])
    return (states[..., : gru.hidden_size] + states[..., gru.hidden_size :]) / 2 if gru.bidirectional else states
