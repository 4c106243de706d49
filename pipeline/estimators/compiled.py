"""A compiled vision tower, used only where it agrees with the eager one and is faster; a trial at loading decides.

The result is no part of the scorer's identity, as the device is none: a stopwatch decides, in every process for itself, so
an identity that named it would refuse to go on with a run, or to let two encoders share one, by chance.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np
import torch

from .base import normalise

__all__ = ["Compiler", "Trial", "probe_batches", "row_distance", "tolerance_for", "torch_compile"]

Encode = Callable[[torch.Tensor], torch.Tensor]

FLOAT32_TOLERANCE = 1e-4  # that of `verify`
COARSEST = 0.1  # no number type that is of use moves a row of length one further
LEAST_GAIN = 1.02  # less is the noise of a stopwatch
ROUNDS = 5

log = logging.getLogger(__name__)


class Trial(NamedTuple):
    """What to encode with, None for the eager way, and a line that says why."""

    encode: Encode | None
    line: str


@dataclass(frozen=True)
class Compiler:
    """How towers are compiled and timed."""

    compile: Callable[[Encode], Encode]
    clock: Callable[[], float] = time.perf_counter

    def tried(self, eager: Encode, batches: Sequence[torch.Tensor], tolerance: float) -> Trial:
        """Compile and compare on all `batches` (N, 3, H, W), then time both by turns on the first.

        Rows scaled to length one may move by `tolerance`, so that no cosine with any text moves further.
        Whatever compiling raises is a reason to leave it out.
        """
        try:
            compiled = self.compile(eager)
            distance = max(row_distance(eager(batch), compiled(batch)) for batch in batches)
            gain = self._gain(eager, compiled, batches[0])
        except Exception as error:  # a compiler, a tool chain and a driver: anything may be raised
            return Trial(None, f"torch.compile: not available ({_reason(error)}): left out")
        found = f"torch.compile: {gain:.2f} x, largest change of a cosine {distance:.0e}"
        if not distance <= tolerance:
            return Trial(None, f"{found}, {tolerance:.0e} is allowed: left out")
        if gain < LEAST_GAIN:
            return Trial(None, f"{found}: left out")
        return Trial(_Guarded(eager, compiled), f"{found}: used")

    def _gain(self, eager: Encode, compiled: Encode, batch: torch.Tensor) -> float:
        """How many times as fast: the least time of each counts."""
        least = [float("inf")] * 2
        for _ in range(ROUNDS):
            for way, encode in enumerate((eager, compiled)):
                began = self.clock()
                encode(batch).cpu()  # a GPU is done only then
                least[way] = min(least[way], self.clock() - began)
        return least[0] / max(least[1], 1e-9)


class _Guarded:
    """The compiled way where it was tried: inference, and more than one picture, for which torch would compile again.

    Should it fail on a later batch all the same, the eager way takes over, and the log says so.
    """

    def __init__(self, eager: Encode, compiled: Encode) -> None:
        self._eager, self._compiled = eager, compiled

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        if len(batch) < 2 or not torch.is_inference_mode_enabled():
            return self._eager(batch)
        try:
            return self._compiled(batch)
        except Exception as error:  # as in `tried`; what is wrong with the batch itself, the eager way raises again
            log.warning("torch.compile: failed (%s): left out from here on", _reason(error))
            self._compiled = self._eager
            return self._eager(batch)


def torch_compile(encode: Encode, **settings: Any) -> Encode:
    """torch.compile for batches of any number, so that a smaller last one compiles nothing again."""
    compiled = torch.compile(encode, **settings)

    def call(batch: torch.Tensor) -> torch.Tensor:
        torch._dynamo.maybe_mark_dynamic(batch, 0)
        return compiled(batch)

    return call


def probe_batches(size: int, count: int) -> list[torch.Tensor]:
    """A batch of `count` coarse random pictures, as if preprocessed, and a smaller one."""
    rng = torch.Generator().manual_seed(0)
    coarse = torch.randn((max(3, count), 3, 8, 8), generator=rng)
    pictures = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")
    return [pictures, pictures[: len(pictures) // 2 + 1]]


def row_distance(left: torch.Tensor, right: torch.Tensor) -> float:
    """The largest distance of rows scaled to length one: a cosine with any third row cannot differ by more.

    >>> round(row_distance(torch.tensor([[3.0, 4.0]]), torch.tensor([[4.0, 3.0]])), 4)
    0.2828
    """
    one, other = (normalise(rows.float().cpu().numpy()) for rows in (left, right))
    return float(np.linalg.norm(one - other, axis=1).max())


def tolerance_for(exact: torch.Tensor, eager: torch.Tensor) -> float:
    """How far compiled rows may lie from `eager` ones, whose number type moved them from the `exact` ones of float32.

    Where numbers have few bits, two ways that are each as near to float32 as the eager one lie at most twice that apart.

    >>> tolerance_for(torch.eye(2), torch.eye(2))
    0.0001
    """
    return min(max(FLOAT32_TOLERANCE, 2 * row_distance(exact, eager)), COARSEST)


def _reason(error: Exception) -> str:
    return shorten(f"{type(error).__name__}: {error}", 160, placeholder=" …").rstrip(".")
