"""Which class is mistaken for which: the maps that asymmetric label noise uses."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

__all__ = ["CIFAR10_MAP", "CIFAR100_MAP", "CIFAR100_SUPERCLASSES", "CLASS_MAPS"]

# Fine ids by coarse id 0..19. Fine ids are alphabetical, so blocks of five consecutive ids, which some published
# generators use, are not super-classes (0..4 would be apple, aquarium fish, baby, bear, beaver).
CIFAR100_SUPERCLASSES: tuple[tuple[int, ...], ...] = (
    (4, 30, 55, 72, 95),  # aquatic mammals
    (1, 32, 67, 73, 91),  # fish
    (54, 62, 70, 82, 92),  # flowers
    (9, 10, 16, 28, 61),  # food containers
    (0, 51, 53, 57, 83),  # fruit and vegetables
    (22, 39, 40, 86, 87),  # household electrical devices
    (5, 20, 25, 84, 94),  # household furniture
    (6, 7, 14, 18, 24),  # insects
    (3, 42, 43, 88, 97),  # large carnivores
    (12, 17, 37, 68, 76),  # large man-made outdoor things
    (23, 33, 49, 60, 71),  # large natural outdoor scenes
    (15, 19, 21, 31, 38),  # large omnivores and herbivores
    (34, 63, 64, 66, 75),  # medium-sized mammals
    (26, 45, 77, 79, 99),  # non-insect invertebrates
    (2, 11, 35, 46, 98),  # people
    (27, 29, 44, 78, 93),  # reptiles
    (36, 50, 65, 74, 80),  # small mammals
    (47, 52, 56, 59, 96),  # trees
    (8, 13, 48, 58, 90),  # vehicles 1
    (41, 69, 81, 85, 89),  # vehicles 2
)


def _frozen(values: Sequence[int]) -> NDArray[np.int64]:
    array = np.asarray(values, dtype=np.int64)
    array.setflags(write=False)
    return array


def _circular(groups: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """(C,) int64: each class goes to the next member of its group, the last to the first."""
    following = {member: group[(i + 1) % len(group)] for group in groups for i, member in enumerate(group)}
    return _frozen([following[member] for member in range(len(following))])


# (10,) int64: bird to airplane, cat to dog and back, deer to horse, truck to automobile, the others to themselves.
CIFAR10_MAP: NDArray[np.int64] = _frozen([0, 1, 0, 5, 7, 3, 6, 7, 8, 1])
# (100,) int64: the next class inside the super-class, circular (TANGO supplement, asymmetric noise).
CIFAR100_MAP: NDArray[np.int64] = _circular(CIFAR100_SUPERCLASSES)
CLASS_MAPS: Mapping[str, NDArray[np.int64]] = MappingProxyType({"cifar10": CIFAR10_MAP, "cifar100": CIFAR100_MAP})
