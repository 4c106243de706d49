"""Find a separate group of likely right pairs, such as pairs with nearly right captions.

The calibration knows only one kind of wrong pair, the mismatched pair. A caption with one wrong attribute is much more similar
than a mismatched one, and so counts as right. If many captions are like this, the cosines of the likely right pairs have two
peaks.
"""

from typing import NamedTuple

import numpy as np

from noisegate.pipeline.system.array_types import Floats

from .density_ratio import choose_normals

BINS = 500  # of the histogram of cosines
VALLEY = 0.5  # chosen; two peaks are two groups if the density between them is below this part of the lower peak
FEWEST = 20  # fewest pairs of a group


class GroupApart(NamedTuple):
    """A group of likely right pairs below a cosine, and its share of all likely right pairs."""

    below: float
    share: float


def find_group_apart(cosines: Floats, clean: Floats) -> GroupApart | None:
    """Find the lower of two groups of pairs by cosines (N,), weighted by P(clean) (N,); None if there is only one group.

    The density is a mixture of normals, so that a few pairs are no group.

    >>> rng = np.random.default_rng(0)
    >>> nearly_right, right = rng.normal(0.6, 0.03, 300), rng.normal(0.9, 0.03, 700)
    >>> group = find_group_apart(np.concatenate([nearly_right, right]), np.ones(1000))
    >>> 0.65 < group.below < 0.85, round(group.share, 2)
    (True, 0.3)
    >>> find_group_apart(right, np.ones(700))
    """
    known = np.isfinite(cosines) & np.isfinite(clean)
    if not known.any():
        return None
    counts, edges = np.histogram(cosines[known].astype(np.float64), BINS, weights=clean[known].astype(np.float64))
    if counts.sum() < 2 * FEWEST:
        return None
    centres = (edges[1:] + edges[:-1]) / 2
    density = choose_normals(centres, counts + 1e-9).density(centres)
    peaks = np.minimum(np.maximum.accumulate(density), np.maximum.accumulate(density[::-1])[::-1])
    place = int(np.argmin(density / peaks))
    lower, upper = counts[:place].sum(), counts[place:].sum()
    if density[place] > VALLEY * peaks[place] or min(lower, upper) < FEWEST:
        return None
    return GroupApart(round(float(centres[place]), 6), round(float(lower / (lower + upper)), 6))
