"""Make noisy correspondence on purpose: move some captions to other images.

Published generators move either the image index of the chosen captions (NCR, BiCro, CRCL) or their strings (NPC, OSA).
Both give the same distribution of pairs, a uniform permutation among the chosen captions, so one function serves both.
Moving all captions of an image together (DECL) gives another distribution: `shuffle_images`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from noisegate.pipeline.errors import ConfigError

from .protocols import count_chosen


@dataclass(frozen=True, eq=False)
class PairNoise:
    """A permutation of captions, and which pairs are wrong because of it.

    source: (N,) int64, a permutation: sample i gets the caption of sample source[i].
    noisy: (N,) bool, true where that caption belongs to another image; not the same as "was chosen".
    """

    source: NDArray[np.int64]
    noisy: NDArray[np.bool_]

    @property
    def rate(self) -> float:
        """Realised noise rate; without `derange` it is a few samples below the nominal rate."""
        return float(self.noisy.mean()) if len(self.noisy) else 0.0


def shuffle_captions(
    images: int | ArrayLike, rate: float, rng: np.random.Generator, derange: bool = False
) -> PairNoise:
    """Choose int(rate N) captions and permute them among themselves (NCR, Huang et al. 2021, experimental set-up).

    images: N if every sample has its own image, else (N,) ids that are equal for samples of the same image.
    About 1 + (m - 1) rate of the chosen captions stay on their image (m captions per image); they are not `noisy`.
    With `derange` none of them stays, so that exactly int(rate N) pairs are wrong.

    >>> noise = shuffle_captions([0, 0, 1, 1, 2, 2], 1.0, np.random.default_rng(0), derange=True)
    >>> int(noise.noisy.sum()), sorted(noise.source.tolist())
    (6, [0, 1, 2, 3, 4, 5])
    """
    groups = _groups(images)
    chosen = rng.choice(len(groups), size=count_chosen(rate, len(groups)), replace=False)
    return _make_noise(groups, chosen, _permute(chosen, groups, rng, derange))


def shuffle_images(images: int | ArrayLike, rate: float, rng: np.random.Generator, derange: bool = False) -> PairNoise:
    """Choose int(rate images) images and permute them, each with all its captions (DECL, Qin et al. 2022).

    images: as for `shuffle_captions`; every image needs the same number of captions, because they are exchanged as a group.

    >>> shuffle_images([0, 0, 1, 1], 1.0, np.random.default_rng(0), derange=True).source.tolist()
    [2, 3, 0, 1]
    """
    groups = _groups(images)
    sizes = np.bincount(groups)
    if len(groups) and sizes.min() != sizes.max():
        problem = f"images have {sizes.min()} to {sizes.max()} captions, which cannot change places together"
        raise ConfigError(f"{problem}; use shuffle-captions, or the same number for each", "images")
    captions = len(groups) // max(len(sizes), 1)
    rows = np.argsort(groups, kind="stable").reshape(len(sizes), captions)
    chosen = rng.choice(len(rows), size=count_chosen(rate, len(rows)), replace=False)
    permuted = _permute(chosen, np.arange(len(rows), dtype=np.int64), rng, derange)
    return _make_noise(groups, rows[chosen].ravel(), rows[permuted].ravel())


def _groups(images: int | ArrayLike) -> NDArray[np.int64]:
    """Return (N,) int64 image ids 0..M-1 of the samples."""
    if isinstance(images, int | np.integer):
        if images < 0:
            raise ConfigError.of("images", images, "is no number of samples; use 1000")
        return np.arange(images, dtype=np.int64)
    ids = np.asarray(images)
    if ids.ndim != 1:
        raise ConfigError.of("images", ids.shape, "is the shape; give one id for each sample, such as [0, 0, 1]")
    return np.unique(ids, return_inverse=True)[1].astype(np.int64)


def _make_noise(groups: NDArray[np.int64], chosen: NDArray[np.int64], permuted: NDArray[np.int64]) -> PairNoise:
    source = np.arange(len(groups), dtype=np.int64)
    source[chosen] = permuted
    return PairNoise(source=source, noisy=groups[source] != groups)


def _permute(
    chosen: NDArray[np.int64], groups: NDArray[np.int64], rng: np.random.Generator, derange: bool
) -> NDArray[np.int64]:
    """Permute `chosen`; with `derange` every element is replaced by an element of another group."""
    permuted = rng.permutation(chosen)
    if not derange or not len(chosen):
        return permuted
    counts = np.bincount(groups[chosen])
    if 2 * counts.max() > len(chosen):
        problem = f"is not possible: {counts.max()} of the {len(chosen)} chosen are of one image; use a higher rate"
        raise ConfigError.of("derange", True, problem)
    own, theirs = groups[chosen], groups[permuted]
    for i in np.flatnonzero(own == theirs):
        if own[i] != theirs[i]:
            continue  # corrected already, as the exchange partner of an earlier element
        # An exchange with j corrects i and keeps j right unless j, or what j has, is of i's own group. Each of the two
        # sets has as many elements as the group, at most half of all, and both hold i: a free j always remains.
        free = np.flatnonzero((own != own[i]) & (theirs != own[i]))
        j = rng.choice(free)
        permuted[[i, j]] = permuted[[j, i]]
        theirs[[i, j]] = theirs[[j, i]]
    return permuted
