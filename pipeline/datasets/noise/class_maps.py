"""Class maps for asymmetric label noise: which class is mistaken for which."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.estimators.base import array_digest

from .protocols import bad_setting

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


def _freeze(values: Sequence[int]) -> NDArray[np.int64]:
    array = np.asarray(values, dtype=np.int64)
    array.setflags(write=False)
    return array


def _map_to_next(groups: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """(C,) int64: each class goes to the next member of its group, the last to the first."""
    following = {member: group[(i + 1) % len(group)] for group in groups for i, member in enumerate(group)}
    return _freeze([following[member] for member in range(len(following))])


# (10,) int64: bird to airplane, cat to dog and back, deer to horse, truck to automobile, the others to themselves.
CIFAR10_MAP: NDArray[np.int64] = _freeze([0, 1, 0, 5, 7, 3, 6, 7, 8, 1])
# (100,) int64: the next class inside the super-class, circular (TANGO supplement, asymmetric noise).
CIFAR100_MAP: NDArray[np.int64] = _map_to_next(CIFAR100_SUPERCLASSES)
CLASS_MAPS: Mapping[str, NDArray[np.int64]] = MappingProxyType({"cifar10": CIFAR10_MAP, "cifar100": CIFAR100_MAP})


@dataclass(frozen=True, eq=False)
class ClassMap:
    """target: (C,) int64, the class that each class is mistaken for. name: for a protocol's id, the same for equal maps."""

    name: str
    target: NDArray[np.int64]


def load_class_map(source: str | Path, classes: int, names: Sequence[str] = ()) -> ClassMap:
    """Load a built-in map (`cifar10`, `cifar100`), `next` (each class to the following one, the last to the first), or a file.

    The file is JSON, an object of classes with the classes they become, each by id or, where `names` are given, by name;
    a class that it leaves out stays as it is. classes: C; a built-in map brings its own.

    >>> load_class_map("next", 3).target.tolist()
    [1, 2, 0]
    """
    if isinstance(source, str) and source in CLASS_MAPS:
        return ClassMap(source, CLASS_MAPS[source])
    if source == "next":
        if classes < 2:
            raise bad_setting(
                "class_map", source, f"with classes={classes} there is no next class; give classes=2 or more"
            )
        return ClassMap(f"next:{classes}", _map_to_next([range(classes)]))
    target = np.arange(classes, dtype=np.int64)
    mapped: set[int] = set()
    for given, mistaken in _read_map(Path(source)).items():
        start, end = (_class_id(str(source), value, classes, names) for value in (given, mistaken))
        if start in mapped:
            raise bad_setting("class_map", str(source), f"{given!r} names class {start} again; map each class once")
        mapped.add(start)
        target[start] = end
    same = next((name for name, known in CLASS_MAPS.items() if np.array_equal(known, target)), None)
    return ClassMap(same or f"map:{array_digest({'class_map': target})[:8]}", _freeze(target.tolist()))


def _read_map(path: Path) -> dict[str, Any]:
    example = 'write for example {"cat": "dog", "dog": "cat"}'

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        repeated = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
        if repeated:
            raise bad_setting("class_map", str(path), f"{repeated[0]!r} occurs twice; map each class once")
        return dict(pairs)

    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=unique)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise bad_setting(
            "class_map", str(path), f"no such file; give a JSON file, next, or one of {', '.join(CLASS_MAPS)}"
        ) from error
    except ValueError as error:  # bad JSON, or not UTF-8
        raise bad_setting("class_map", str(path), f"not JSON ({error}); {example}") from error
    if not isinstance(value, dict) or not value:
        raise bad_setting("class_map", str(path), f"this is no object of classes; {example}")
    return value


def _class_id(source: str, value: object, classes: int, names: Sequence[str]) -> int:
    """The id of a class given by name, or by id as a number or a string."""
    if isinstance(value, str):
        wanted = _normalise(value)
        found = next((i for i, name in enumerate(names) if _normalise(name) == wanted), None)
        if found is not None:
            return found
    if isinstance(value, int | str) and not isinstance(value, bool) and str(value).strip().isdecimal():
        number = int(value)
        if number < classes:
            return number
        raise bad_setting(
            "class_map",
            source,
            f"{value!r} is no class id; with {classes} classes give 0 to {classes - 1}, or say by "
            "classes how many there are",
        )
    known = f"the classes are {', '.join(names[:5])}, …" if names else "give ids, or classes with their names as well"
    raise bad_setting("class_map", source, f"{value!r} is no class; {known}")


def _normalise(name: str) -> str:
    return " ".join(name.replace("_", " ").split()).casefold()
