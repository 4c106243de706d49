"""Load the inputs of label noise: class maps for asymmetric noise, features for instance-dependent noise."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError, MismatchError, ShardError
from noisegate.pipeline.estimators.base import array_digest
from noisegate.pipeline.runs.arrays import open_array
from noisegate.pipeline.runs.embeddings import read_embeddings
from noisegate.pipeline.runs.table import RunFolder, read_metadata
from noisegate.pipeline.settings import DecodeOptions
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.preprocess import Preprocess
from noisegate.pipeline.shards.stream import Chunk, ShardFailed, stream
from noisegate.pipeline.shards.workers import DecodePool

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
    """Return (C,) int64: each class maps to the next member of its group, the last to the first."""
    following = {member: group[(i + 1) % len(group)] for group in groups for i, member in enumerate(group)}
    return _freeze([following[member] for member in range(len(following))])


# (10,) int64: bird to airplane, cat to dog and dog to cat, deer to horse, truck to automobile; the others stay.
CIFAR10_MAP: NDArray[np.int64] = _freeze([0, 1, 0, 5, 7, 3, 6, 7, 8, 1])
# (100,) int64: the next class inside the super-class, circular (TANGO supplement, asymmetric noise).
CIFAR100_MAP: NDArray[np.int64] = _map_to_next(CIFAR100_SUPERCLASSES)
CLASS_MAPS: Mapping[str, NDArray[np.int64]] = {"cifar10": CIFAR10_MAP, "cifar100": CIFAR100_MAP}


@dataclass(frozen=True, eq=False)
class ClassMap:
    """Class map of asymmetric noise.

    target: (C,) int64, the class that each class is mistaken for. name: part of the protocol's id, the same for equal maps."""

    name: str
    target: NDArray[np.int64]


def load_class_map(source: str | Path, classes: int, names: Sequence[str] = ()) -> ClassMap:
    """Load a built-in map (`cifar10`, `cifar100`), `next` (each class to the following one, the last to the first), or a file.

    The file is a JSON object from each class to the class it becomes, by id or, if `names` are given, by name; a class that is
    not in it does not change. classes: C; a built-in map brings its own.

    >>> load_class_map("next", 3).target.tolist()
    [1, 2, 0]
    """
    if isinstance(source, str) and source in CLASS_MAPS:
        return ClassMap(source, CLASS_MAPS[source])
    if source == "next":
        if classes < 2:
            raise ConfigError.of("class_map", source, f"needs two classes, and there are {classes}")
        return ClassMap(f"next:{classes}", _map_to_next([range(classes)]))
    target = np.arange(classes, dtype=np.int64)
    mapped: set[int] = set()
    for given, mistaken in _read_map(Path(source)).items():
        start, end = (_class_id(str(source), value, classes, names) for value in (given, mistaken))
        if start in mapped:
            raise ConfigError.of("class_map", str(source), f"names class {start} again as {given!r}; map it once")
        mapped.add(start)
        target[start] = end
    same = next((name for name, known in CLASS_MAPS.items() if np.array_equal(known, target)), None)
    return ClassMap(same or f"map:{array_digest({'class_map': target})[:8]}", _freeze(target.tolist()))


def _read_map(path: Path) -> dict[str, Any]:
    example = 'write for example {"cat": "dog", "dog": "cat"}'

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        repeated = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
        if repeated:
            raise ConfigError.of("class_map", str(path), f"holds {repeated[0]!r} twice; map each class once")
        return dict(pairs)

    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=unique)
    except (FileNotFoundError, IsADirectoryError) as error:
        known = ", ".join(CLASS_MAPS)
        raise ConfigError.of("class_map", str(path), f"is no file; use a JSON file, next, {known}") from error
    except ValueError as error:  # bad JSON, or not UTF-8
        raise ConfigError.of("class_map", str(path), f"is not JSON ({error}); {example}") from error
    if not isinstance(value, dict) or not value:
        raise ConfigError.of("class_map", str(path), f"is no object of classes; {example}")
    return value


def _class_id(source: str, value: object, classes: int, names: Sequence[str]) -> int:
    """Return the id of a class that is given by name, or by id as a number or a string."""
    if isinstance(value, str):
        wanted = _normalise(value)
        number = next((i for i, name in enumerate(names) if _normalise(name) == wanted), None)
        if number is not None:
            return number
    if isinstance(value, int | str) and not isinstance(value, bool) and str(value).strip().isdecimal():
        number = int(value)
        if number < classes:
            return number
        raise ConfigError.of("class_map", source, f"has the id {value!r}; use 0 to {classes - 1}, or more --classes")
    known = f"the classes are {', '.join(names[:5])}, …" if names else "give ids, or --classes with their names"
    raise ConfigError.of("class_map", source, f"has {value!r}, which is no class; {known}")


def _normalise(name: str) -> str:
    return " ".join(name.replace("_", " ").split()).casefold()


SIDE = 8  # pixels; chosen: 384 MB for a million pictures, enough for colour and layout
ArraySource = str | Path | NDArray[Any]


@dataclass(frozen=True, eq=False)
class Features:
    """Features of all samples.

    rows: (N, S), one row per sample; known: (N,) bool, false for a sample without features. name: part of the protocol's id."""

    name: str
    rows: NDArray[Any]
    known: NDArray[np.bool_]


def load_features(
    source: ArraySource | None, shards: Sequence[Shard], digests: Sequence[str], workers: int = 0
) -> Features:
    """Load the features of all samples of `shards`, in order.

    `source` is an array, an .npy file of one, a folder that `noisegate annotate` wrote from the same shards (`digests`:
    their SHA-256), or None for thumbnails.
    """
    if source is None:
        return make_thumbnails(shards, workers)
    if isinstance(source, str | Path) and Path(source).is_dir():
        return _read_embeddings(Path(source), shards, digests)
    rows = load_rows(source, "features")
    known: NDArray[np.bool_] = np.isfinite(rows).all(axis=1)
    return Features(name_with_digest("array", rows), rows, known)


def load_rows(source: ArraySource, setting: str) -> NDArray[Any]:
    """Read (N, columns) numbers from an array or an .npy file; errors name `setting`."""
    if not isinstance(source, np.ndarray):
        return open_array(Path(source), setting, 2)
    if source.ndim != 2 or source.dtype.kind not in "fiu":
        raise ConfigError.of(setting, source.shape, f"is the shape of {source.dtype}; give numbers (samples, columns)")
    return source


def make_thumbnails(shards: Sequence[Shard], workers: int = 0) -> Features:
    """Make (N, 192) int16 thumbnails of 8 x 8 RGB pixels minus their mean; integers, so that every machine gets the same.

    Without subtracting the mean, all rows would point the same way, and each class would have one target.
    """
    pixels: list[NDArray[np.uint8] | None] = []
    small = Preprocess(size=SIDE, resize="squash", interpolation="bilinear")
    with (
        DecodePool(workers, small, DecodeOptions(tasks=("labels",))) as pool,
        closing(stream(shards, pool, 2 * max(1, workers) + 2)) as items,
    ):
        for item in items:
            if isinstance(item, Chunk):
                pixels += [sample.pixels for sample in item.samples]
            elif isinstance(item, ShardFailed):
                raise ShardError(item.error, "shards", item.shard.url)
    known = np.array([picture is not None for picture in pixels], dtype=bool)
    rows = np.zeros((len(pixels), SIDE * SIDE * 3), np.int16)
    if known.any():
        rows[known] = np.stack([picture.reshape(-1) for picture in pixels if picture is not None])
        rows[known] -= np.rint(rows[known].mean(axis=0)).astype(np.int16)
    return Features(name_with_digest(f"thumbnails-{SIDE}x{SIDE}", rows), rows, known)


def _read_embeddings(folder: Path, shards: Sequence[Shard], digests: Sequence[str]) -> Features:
    run = RunFolder(folder)
    record = run.read_run()
    if record is None:
        raise ConfigError.of("features", folder, f"holds no run; make one: noisegate annotate SHARDS --out {folder}")
    parts = []
    for shard, digest in zip(shards, digests, strict=True):
        table = run.table(shard.stem)
        if not table.exists():
            raise ConfigError.of("features", folder, f"has no {table.name}; annotate {shard.url} too")
        if read_metadata(table)["shard"]["sha256"] != digest:
            problem = f"{table} was made from another shard than {shard.url}; annotate the shards as they are"
            raise MismatchError(problem, "features", folder)
        if not run.embeddings(shard.stem).exists():
            raise ConfigError.of("features", folder, "has no embeddings; annotate without --drop-embeddings")
        parts.append(read_embeddings(run.embeddings(shard.stem), "image"))
    rows = np.concatenate(parts)
    known: NDArray[np.bool_] = (rows != 0).any(axis=1)  # a sample that could not be encoded is a row of zeros
    return Features(name_with_digest(str(record["scorer"]["model"]), rows), rows, known)


def name_with_digest(name: str, rows: NDArray[Any]) -> str:
    """Append 8 hexadecimal digits of the rows' digest to the name, because the rows decide the noise."""
    return f"{name}:{array_digest({'rows': rows})[:8]}"
