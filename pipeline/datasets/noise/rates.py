"""What a noise rate comes to."""

import math

from noisegate.pipeline.errors import ConfigError

__all__ = ["check_rate", "chosen_count"]


def check_rate(rate: float) -> float:
    """The rate itself, once it is known to lie in [0, 1]."""
    if not (math.isfinite(rate) and 0.0 <= rate <= 1.0):
        raise ConfigError(f"rate={rate!r}: a noise rate lies between 0 and 1, for example rate=0.4")
    return float(rate)


def chosen_count(rate: float, count: int) -> int:
    """int(rate * count), of the decimal rate that was written: 0.29 of 100 is 29, where floats alone give 28.

    >>> chosen_count(0.29, 100), int(0.29 * 100)
    (29, 28)
    """
    return min(count, int(check_rate(rate) * count * (1 + 1e-12) + 1e-9))
