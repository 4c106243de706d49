"""Shards that stand out: each one's score distribution against that of all others."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .collect import ShardFacts

__all__ = ["Drift", "find_drift"]

LEAST_DISTANCE = 0.1  # in large shards the smallest difference is significant, but no reason to look
LEVEL = 0.01  # chance that any of the shards is named although all are alike
LEAST_FAILED = 5


@dataclass(frozen=True)
class Drift:
    """A shard beside the others: `distance` is Kolmogorov and Smirnov's, `z` the median's shift in robust deviations."""

    shard: ShardFacts
    distance: float
    chance: float
    shift: float
    z: float
    failed_share: float
    reasons: tuple[str, ...]


def find_drift(shards: Sequence[ShardFacts]) -> list[Drift]:
    """All shards with scores, the ones that differ most first; those with `reasons` stand out.

    The distance is D = max |F(s) - F_rest(s)| over bins of a four-hundredth of the scale; its chance is Kolmogorov's bound
    2 exp(-2 D² n m / (n + m)), times the number of shards. A shard stands out when that is below 1 % and D at least 0.1,
    or when at least five of its samples failed, three times the share of the others plus two points.
    """
    total = np.sum([shard.histogram for shard in shards], axis=0) if shards else np.zeros(1, np.int64)
    rows, failed = sum(shard.rows for shard in shards), sum(shard.failed for shard in shards)
    medians = np.array([shard.quantiles[2] for shard in shards if shard.quantiles])
    centre = float(np.median(medians)) if len(medians) else 0.0
    spread = 1.4826 * float(np.median(np.abs(medians - centre))) if len(medians) else 0.0
    found = []
    for shard in shards:
        distance = ks_distance(shard.histogram, total - shard.histogram)
        chance = _chance(distance, int(shard.histogram.sum()), int((total - shard.histogram).sum())) * len(shards)
        shift = shard.quantiles[2] - centre if shard.quantiles else 0.0
        share = shard.failed / max(shard.rows, 1)
        others = (failed - shard.failed) / max(rows - shard.rows, 1)
        reasons = []
        if chance < LEVEL and distance >= LEAST_DISTANCE:
            reasons.append(
                "its scores are " + ("lower" if shift < 0 else "higher" if shift > 0 else "spread differently")
            )
        if len(shards) > 1 and shard.failed >= LEAST_FAILED and share > 3 * others + 0.02:
            reasons.append("more of its samples failed")
        found.append(
            Drift(
                shard, distance, min(chance, 1.0), shift, shift / spread if spread > 0 else 0.0, share, tuple(reasons)
            )
        )
    return sorted(found, key=lambda drift: (not drift.reasons, -drift.distance, drift.shard.stem))


def ks_distance(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """Largest difference of the two cumulative shares, 0 where either side is empty.

    >>> ks_distance(np.array([4, 0]), np.array([1, 3]))
    0.75
    """
    if not one.sum() or not other.sum():
        return 0.0
    return float(np.abs(np.cumsum(one) / one.sum() - np.cumsum(other) / other.sum()).max())


def _chance(distance: float, one: int, other: int) -> float:
    return float(min(1.0, 2 * np.exp(-2 * distance**2 * one * other / (one + other)))) if one and other else 1.0
