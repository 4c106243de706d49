"""Values with their uncertainty, as far as a few looks can tell it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

__all__ = ["Estimate", "ratio"]


@dataclass(frozen=True)
class Estimate:
    """A value and half of its 95 % interval; nan where one look cannot tell the spread."""

    value: float
    half: float = 0.0

    def times(self, other: "Estimate") -> "Estimate":
        """The product; relative errors add as squares."""
        value = self.value * other.value
        parts = [one.half / one.value if one.value else 0.0 for one in (self, other)]
        return Estimate(value, abs(value) * math.hypot(*parts))

    def plus(self, other: "Estimate") -> "Estimate":
        return Estimate(self.value + other.value, math.hypot(self.half, other.half))

    def scaled(self, factor: float) -> "Estimate":
        return Estimate(self.value * factor, self.half * factor)

    def to_dict(self) -> dict[str, float | None]:
        """With both ends of the interval, None where it is not known."""
        known = math.isfinite(self.half)
        ends = (max(0.0, self.value - self.half), self.value + self.half) if known else (None, None)
        return {"value": self.value, "low": ends[0], "high": ends[1]}


def ratio(amounts: Sequence[float], counts: Sequence[float]) -> Estimate:
    """Σ amounts / Σ counts with the interval of a ratio over pieces of unequal size (Student's t).

    >>> ratio([2.0, 4.0], [1, 2])
    Estimate(value=2.0, half=0.0)
    >>> ratio([3.0], [2])
    Estimate(value=1.5, half=nan)
    """
    pairs = [(amount, count) for amount, count in zip(amounts, counts, strict=True) if count > 0]
    if not pairs:
        return Estimate(0.0, math.nan)
    a, c = np.array(pairs, dtype=np.float64).T
    value, n = float(a.sum() / c.sum()), len(a)
    if n < 2:
        return Estimate(value, math.nan)
    error = math.sqrt(float(((a - value * c) ** 2).sum()) / (n * (n - 1))) / float(c.mean())
    return Estimate(value, float(stats.t.ppf(0.975, n - 1)) * error)
