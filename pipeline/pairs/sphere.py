"""How alike unrelated directions are by chance, which is what a cone shows up against."""

import math

from scipy.special import betainc

__all__ = ["chance_within", "chance_within_normal"]


def chance_within(limit: float, dimensions: int) -> float:
    """P(|cos| <= limit) of two random directions in `dimensions` >= 2 dimensions: I(limit²; 1/2, (d - 1)/2), exact.

    >>> round(chance_within(0.1, 1024), 7)
    0.9986526
    """
    return float(betainc(0.5, (dimensions - 1) / 2, limit * limit))


def chance_within_normal(limit: float, dimensions: int) -> float:
    """The same by the normal approximation cos ~ N(0, 1/d), which OSA's appendix uses.

    >>> round(chance_within_normal(0.1, 1024), 4)
    0.9986
    """
    return math.erf(limit * math.sqrt(dimensions / 2))
