"""Shards that stand out: each one's score distribution against the median shard's."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .collect import ShardFacts

__all__ = ["Drift", "find_drift"]

LEAST_DISTANCE = 0.1  # in large shards the smallest difference is significant, but no reason to look
LEVEL = 0.01  # chance that any of the shards is named although all are alike
LEAST_FAILED = 5
MOST = 2000  # shards that the median shard is made of


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
    """All shards, the ones that differ most first; those with `reasons` stand out.

    Each shard's cumulative shares F are held against the median shard's: at every score the median of all F, so that one
    odd shard does not make the others look odd. D = max |F - F_median| over bins of a four-hundredth of the scale; its
    chance is Kolmogorov's bound 2 exp(-2 D² n m / (n + m)), m = 2/π of all other scores (a median is that much less sure
    than a mean), times the number of shards. A shard stands out when that is below 1 % and D at least 0.1, or when at
    least five of its samples failed, three times the share of the others plus two points.
    """
    scored = [shard for shard in shards if shard.quantiles]
    typical = typical_shares([shard.histogram for shard in scored[:: -(-len(scored) // MOST)]]) if scored else None
    total = sum(int(shard.histogram.sum()) for shard in scored)
    rows, failed = sum(shard.rows for shard in shards), sum(shard.failed for shard in shards)
    medians = np.array([shard.quantiles[2] for shard in scored])
    centre = float(np.median(medians)) if scored else 0.0
    spread = 1.4826 * float(np.median(np.abs(medians - centre))) if scored else 0.0
    found = []
    for shard in shards:
        size = int(shard.histogram.sum())
        distance = ks_distance(shard.histogram, typical) if typical is not None and len(scored) > 1 else 0.0
        chance = min(1.0, _chance(distance, size, (total - size) * 2 / np.pi) * len(shards))
        shift = shard.quantiles[2] - centre if shard.quantiles else 0.0
        z = shift / spread if spread > 0 else 0.0
        share = shard.failed / max(shard.rows, 1)
        others = (failed - shard.failed) / max(rows - shard.rows, 1)
        reasons = []
        if chance < LEVEL and distance >= LEAST_DISTANCE:
            reasons.append(f"its scores are {'spread differently' if abs(z) < 3 else 'lower' if z < 0 else 'higher'}")
        if len(shards) > 1 and shard.failed >= LEAST_FAILED and share > 3 * others + 0.02:
            reasons.append("more of its samples failed")
        found.append(Drift(shard, distance, chance, shift, z, share, tuple(reasons)))
    return sorted(found, key=lambda drift: (not drift.reasons, -drift.distance, drift.shard.stem))


def typical_shares(histograms: Sequence[NDArray[np.int64]]) -> NDArray[np.float32]:
    """(B,) cumulative shares of the median shard.

    >>> typical_shares([np.array([1, 1, 2]), np.array([1, 1, 2]), np.array([4, 0, 0])]).tolist()
    [0.25, 0.5, 1.0]
    """
    shares = np.stack([np.cumsum(counts) / max(counts.sum(), 1) for counts in histograms]).astype(np.float32)
    return np.asarray(np.median(shares, axis=0), np.float32)


def ks_distance(counts: NDArray[np.int64], shares: NDArray[np.float32]) -> float:
    """Largest difference between the cumulative shares of `counts` (B,) and `shares` (B,), 0 where nothing was counted.

    >>> ks_distance(np.array([4, 0]), np.array([0.25, 1.0], np.float32))
    0.75
    """
    return float(np.abs(np.cumsum(counts) / counts.sum() - shares).max()) if counts.sum() else 0.0


def _chance(distance: float, one: float, other: float) -> float:
    return float(min(1.0, 2 * np.exp(-2 * distance**2 * one * other / (one + other)))) if one and other else 1.0
