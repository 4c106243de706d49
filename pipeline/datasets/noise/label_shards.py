"""Rewrite shards with wrong labels by one of the label protocols, and record what was changed."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.labels.classes import load_classes
from noisegate.pipeline.shards.decode import BadSample, decode_label
from noisegate.pipeline.shards.locate import Shard, find_shards
from noisegate.pipeline.shards.read import RawSample, ShardReader

from .label_inputs import ArraySource, load_class_map, load_features, load_rows, name_with_digest
from .labels import LabelNoise, asymmetric, instance_dependent, pmd, pmd_factor, symmetric
from .protocols import EXAMPLES, PROTOCOLS, check_options, find_protocol, protocol_id
from .shards import NoiseReport, json_record, refuse_noisy, refuse_own_field, rewrite_shards

MAX_CLASSES = 25_000  # transition counts are a matrix: 5 GB at this size


@dataclass(frozen=True)
class LabelNoiseReport(NoiseReport):
    """Summary of the written shards; `untouched` samples could not be changed (no label or no features).

    transitions: (true class, given class, number of samples) for each combination that occurs among the other samples.
    """

    classes: int
    transitions: list[tuple[int, int, int]]

    @property
    def rate(self) -> float:
        """Realised share of wrong labels among the samples that could be changed."""
        changeable = self.samples - self.untouched
        return self.noisy / changeable if changeable else 0.0


@dataclass(frozen=True, eq=False)
class _Data:
    """Data read from the shards: labels (N,) int64 with -1 for none, each shard's SHA-256, number and names of the classes."""

    shards: Sequence[Shard]
    labels: NDArray[np.int64]
    digests: list[str]
    classes: int
    names: tuple[str, ...]
    classes_given: bool

    @property
    def labelled(self) -> NDArray[np.bool_]:
        return self.labels >= 0


@dataclass(frozen=True, eq=False)
class _MadeNoise:
    """Label noise for the samples `rows`, and the id of its protocol."""

    identity: str
    rows: NDArray[np.int64]
    noise: LabelNoise


def noise_labels(
    shards: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    protocol: str = "symmetric",
    rate: float | None = None,
    seed: int,
    classes: int | str | Path | None = None,
    inclusive: bool = False,
    class_map: str | Path | None = None,
    features: ArraySource | None = None,
    temperature: float | None = None,
    posteriors: ArraySource | None = None,
    kind: str | None = None,
    factor: float | None = None,
    label_field: str | None = None,
    workers: int = 0,
) -> LabelNoiseReport:
    """Copy shards to `out` with wrong labels; captions stay, also those that were made from the class name.

    The label is part `cls`, else field `label` of the json (or `label_field`), and becomes the noisy one there. Each json
    also gets `noisy`, `noise_protocol` and `clean_label`; `noise.parquet` lists the same for all. Labels that are already known
    to be wrong (their `clean_label` differs) are refused.

    classes: their number, or a file or built-in list of names; by default the largest label plus one. class_map (asymmetric):
    see `load_class_map`. features (instance-dependent): see `load_features`. posteriors (pmd): (N, C) or its .npy file,
    with `factor`, or with `rate` to have the factor found. `workers` decode the pictures for thumbnails.
    """
    if find_protocol(protocol).noises != "labels":
        known = ", ".join(name for name, p in PROTOCOLS.items() if p.noises == "labels")
        raise ConfigError.of("protocol", protocol, f"does not change labels; use {known}")
    options: dict[str, object] = {"inclusive": inclusive, "class_map": class_map, "temperature": temperature}
    options |= {"kind": kind, "factor": factor, "features": _describe(features), "posteriors": _describe(posteriors)}
    check_options(protocol, options)
    if seed < 0:
        raise ConfigError.of("seed", seed, "is negative; use 7")
    refuse_own_field("label_field", label_field, "label", "true_label")
    make: Callable[[_Data], _MadeNoise]
    if protocol == "pmd":
        if posteriors is None or kind is None:
            raise _missing(protocol, "posteriors" if posteriors is None else "kind")
        if rate is not None and factor is not None:
            raise ConfigError.of("factor", factor, f"and rate {rate} follow from one another; give one of them")
        make = partial(_make_pmd, posteriors=posteriors, kind=kind, rate=rate, factor=factor, seed=seed)
    elif rate is None:
        raise _missing(protocol, "rate")
    elif protocol == "symmetric":
        make = partial(_make_symmetric, rate=rate, inclusive=inclusive, seed=seed)
    elif protocol == "asymmetric":
        if class_map is None:
            raise _missing(protocol, "class_map")
        make = partial(_make_asymmetric, class_map=class_map, rate=rate, seed=seed)
    else:
        make = partial(
            _make_instance_dependent, features=features, temperature=temperature, workers=workers, rate=rate, seed=seed
        )
    data = _read_labels(find_shards(shards), classes, label_field)
    return _write(data, make(data), Path(out), label_field)


def _make_symmetric(data: _Data, *, rate: float, inclusive: bool, seed: int) -> _MadeNoise:
    identity = protocol_id("symmetric", rate=rate, classes=data.classes, inclusive=inclusive, seed=seed)
    rows = np.flatnonzero(data.labelled)
    rng = np.random.default_rng(seed)
    return _MadeNoise(identity, rows, symmetric(data.labels[rows], data.classes, rate, rng, inclusive))


def _make_asymmetric(data: _Data, *, class_map: str | Path, rate: float, seed: int) -> _MadeNoise:
    known_map = load_class_map(class_map, data.classes, data.names)
    if data.classes_given and len(known_map.target) != data.classes:
        problem = (
            f"maps {len(known_map.target)} classes, and classes gives {data.classes}; leave out classes, or use next"
        )
        raise ConfigError.of("class_map", class_map, problem)
    rows = np.flatnonzero(data.labelled)
    identity = protocol_id("asymmetric", rate=rate, class_map=known_map.name, seed=seed)
    return _MadeNoise(
        identity, rows, asymmetric(data.labels[rows], known_map.target, rate, np.random.default_rng(seed))
    )


def _make_instance_dependent(
    data: _Data, *, features: ArraySource | None, temperature: float | None, workers: int, rate: float, seed: int
) -> _MadeNoise:
    loaded = load_features(features, data.shards, data.digests, workers)
    _check_rows("features", len(loaded.rows), len(data.labels))
    rows = np.flatnonzero(data.labelled & loaded.known)
    if not len(rows):
        problem = "no sample has both a label and features; give another --features"
        raise ConfigError(problem, "features", _describe(features))
    settings = {"temperature": "auto" if temperature is None else temperature}
    identity = protocol_id(
        "instance-dependent", rate=rate, classes=data.classes, features=loaded.name, seed=seed, **settings
    )
    noise = instance_dependent(
        data.labels[rows], loaded.rows[rows], data.classes, rate, np.random.default_rng(seed), temperature
    )
    return _MadeNoise(identity, rows, noise)


def _make_pmd(
    data: _Data, *, posteriors: ArraySource, kind: str, rate: float | None, factor: float | None, seed: int
) -> _MadeNoise:
    eta = load_rows(posteriors, "posteriors")
    _check_rows("posteriors", len(eta), len(data.labels))
    if data.classes_given and eta.shape[1] != data.classes:
        raise ConfigError.of("posteriors", eta.shape, f"is not (samples, {data.classes}), as classes gives it")
    rows = np.flatnonzero(data.labelled)
    used = eta[rows]
    if factor is None:
        factor = 1.0 if rate is None else pmd_factor(used, kind, rate)
    identity = protocol_id("pmd", kind=kind, posteriors=name_with_digest("array", eta), factor=factor, seed=seed)
    return _MadeNoise(identity, rows, pmd(data.labels[rows], used, kind, np.random.default_rng(seed), factor))


def _read_labels(shards: Sequence[Shard], classes: int | str | Path | None, field: str | None) -> _Data:
    labels: list[int] = []
    digests: list[str] = []
    problem = "the shards hold no samples"
    for shard in shards:
        reader = ShardReader(shard)
        for raw in reader:
            refuse_noisy(raw, shard)
            try:
                labels.append(decode_label(raw.parts, field))
            except BadSample as error:
                problem = f"sample {raw.key}: {error}"
                labels.append(-1)
            else:
                _refuse_known_wrong(raw, shard, labels[-1])
        digests.append(reader.sha256)
    array = np.array(labels, np.int64)
    if not (array >= 0).any():
        raise ConfigError(f"none of {len(array):,} samples has a label; {problem}", "label_field", field)
    count, names = _count_classes(classes, int(array.max()) + 1)
    return _Data(shards, array, digests, count, names, classes is not None)


def _refuse_known_wrong(raw: RawSample, shard: Shard, label: int) -> None:
    """Refuse a sample whose clean_label differs from its label: the label would be recorded as the truth."""
    if b'"clean_label"' not in raw.parts.get("json", b""):
        return
    true = json_record(raw).get("clean_label")
    try:
        same = true is None or decode_label(raw.parts, "clean_label") == label
    except BadSample:
        same = False
    if not same:
        problem = f"sample {raw.key} of {shard.url} has label {label} and clean_label {true!r}: it is wrong already"
        remedy = "the truth would be lost; have it in another json field too, and give that as label_field"
        raise ConfigError(f"{problem}, and {remedy}", "shards", shard.url)


def _count_classes(classes: int | str | Path | None, seen: int) -> tuple[int, tuple[str, ...]]:
    """Return the number of classes, and their names if they are known."""
    if isinstance(classes, str) and classes.isdecimal():
        classes = int(classes)
    names: tuple[str, ...] = ()
    if isinstance(classes, str | Path):
        names = load_classes(classes).names
        count = len(names)
    else:
        count = seen if classes is None else classes
    if not 1 <= count <= MAX_CLASSES:
        source = ", by the largest label," if classes is None else ""
        raise ConfigError(f"classes {count}{source} is not between 1 and {MAX_CLASSES:,}; use 100", "classes", count)
    return count, names


def _write(data: _Data, made: _MadeNoise, out: Path, field: str | None) -> LabelNoiseReport:
    labels = data.labels.copy()
    labels[made.rows] = made.noise.labels
    noisy = labels != data.labels

    def change(row: int, raw: RawSample) -> dict[str, bytes]:
        parts = dict(raw.parts)
        record = json_record(raw) | {"noisy": bool(noisy[row]), "noise_protocol": made.identity}
        if data.labels[row] >= 0:
            label = int(labels[row])
            record |= {"clean_label": int(data.labels[row]), field or "label": label}
            if field is None and "cls" in record:
                record["cls"] = label
            if field is None and "cls" in parts:
                parts["cls"] = str(label).encode()
        return parts | {"json": json.dumps(record).encode()}

    counts = made.noise.transitions
    transitions = [(int(i), int(j), int(counts[i, j])) for i, j in zip(*np.nonzero(counts), strict=True)]
    columns = {
        "clean_label": pa.array(data.labels, pa.int32(), mask=data.labels < 0),
        "label": pa.array(labels, pa.int32(), mask=labels < 0),
    }
    metadata = {"noisegate.classes": str(len(counts)), "noisegate.transitions": json.dumps(transitions)}
    written = rewrite_shards(data.shards, out, change, noisy, made.identity, columns, metadata)
    untouched = len(labels) - len(made.rows)
    return LabelNoiseReport(
        str(out), made.identity, written, len(labels), int(noisy.sum()), untouched, len(counts), transitions
    )


def _missing(protocol: str, name: str) -> ConfigError:
    example = "posteriors.npy" if name == "posteriors" else EXAMPLES[name]
    return ConfigError(f"{name} is needed by {protocol}; give for example {example!r}", name)


def _describe(source: ArraySource | None) -> str | None:
    """Name a source for messages."""
    return "an array" if isinstance(source, np.ndarray) else None if source is None else str(source)


def _check_rows(setting: str, rows: int, samples: int) -> None:
    if rows != samples:
        raise ConfigError.of(setting, rows, f"rows are not one for each of {samples:,} samples, in the shards' order")
