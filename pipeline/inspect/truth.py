"""Read which samples are noisy in truth: from the json of the shards, or from a Parquet or CSV file."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from noisegate.pipeline.datasets.noise.protocols import PROTOCOLS
from noisegate.pipeline.errors import ConfigError, MismatchError, ShardError
from noisegate.pipeline.runs.keyed_file import KeyedFile
from noisegate.pipeline.runs.table import RunFolder, read_shard_facts
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.read import RawSample, ShardReader

from .show import read_class_names

GIVE_TRUTH = "give --truth FILE (Parquet or CSV) with key and noisy"


@dataclass(frozen=True, eq=False)
class Truth:
    """The truth of N samples: (N,) bool which are wrong, and if recorded the true labels (N,), -1 for unknown."""

    noisy: NDArray[np.bool_]
    clean_label: NDArray[np.int64] | None = None


def read_truth(run: RunFolder, table: pa.Table, path: Path | None, field: str | None = None) -> Truth:
    """Read the truth about the rows of `table`, which has shard, key and index, from `path`, else from the shards' json.

    `field` is the column or the json field to read. Its values are true for a wrong sample and false for a right one, or the
    true class by number or by the run's name for it, which is compared with the column `label` of `table`. 1 and 0 are classes
    if the labels are 1 and 0 too, else true and false. The default is `noisy`, and `clean_label` if present.
    """
    numbers = {name: number for number, name in enumerate(read_class_names(run))}
    columns = _columns_of_file(table, path, field, numbers) if path else _fields_of_shards(run, field, numbers)
    source = path or "the json of the shards"
    given = table["label"].cast(pa.int64()).fill_null(-1).to_numpy() if "label" in table.column_names else None
    names: tuple[str | None, str | None] = ("noisy", "clean_label")
    if field not in (None, "noisy"):
        names = (None, field) if _are_classes(columns[field], given) else (field, None)
    noisy, right = columns.get(names[0] or ""), columns.get(names[1] or "")
    labels = None if right is None else _class_numbers(right, source, names[1], numbers)
    if noisy is not None:
        return Truth(_booleans(noisy, source, names[0]), labels)
    if labels is None or given is None:
        raise _error(
            source,
            "says which class is right, and pairs have none; use --what labels, or a field that is true or false",
        )
    if (unknown := (given >= 0) & (labels < 0)).any():
        raise _error(source, f"has no right class for {int(unknown.sum()):,} labelled samples")
    return Truth(given != labels, labels)


def noised_part(run: RunFolder, path: Path | None) -> str | None:
    """Return which part `noisegate noise` changed, "captions" or "labels"; None if not recorded.

    It is recorded in the metadata of the truth file, or in the json of the first sample; None if these cannot be read.
    """
    try:
        if path is not None:
            identity = (pq.read_schema(path).metadata or {}).get(b"noisegate.noise_protocol", b"").decode()
        else:
            shards = (run.read_run() or {}).get("shards") or []
            first = next((raw for entry in shards[:1] for raw in ShardReader(Shard(entry["url"]))), None)
            identity = str(_read_json(first).get("noise_protocol", "")) if first else ""
    except (OSError, pa.ArrowInvalid, ShardError):
        return None
    protocol = PROTOCOLS.get(identity.partition("(")[0])
    return protocol.noises if protocol else None


def _columns_of_file(
    table: pa.Table, path: Path, field: str | None, numbers: Mapping[str, int]
) -> dict[str, list[Any]]:
    """Read the columns of a Parquet or CSV file in the row order of `table`, by name; class names become numbers.

    Joined by shard and index, by shard and key, or by key, depending on the columns of the file.
    """
    file = KeyedFile(path, "truth", f"key and {field or 'noisy'} (`noisegate noise` leaves a noise.parquet)")
    truth, names = file.table, set(file.table.column_names)
    wanted_names = {field} if field else {"noisy", "clean_label"} & names
    if not wanted_names or not names.issuperset(wanted_names):
        needed = f"key and {field or 'noisy'}" + ("" if field else ", or name a column with --truth-field")
        raise _error(path, f"has the columns {', '.join(sorted(names))}; it needs {needed}")
    rows = file.rows_of(table)
    lost = np.flatnonzero(rows < 0)
    if len(lost):
        example = "/".join(str(table[name][int(lost[0])]) for name in ("shard", "key"))
        named = "/".join(str(truth[name][0]) for name in ("shard", "key") if name in names) if len(truth) else "none"
        raise _error(path, f"lacks {len(lost):,} of {len(rows):,} samples, such as {example}; its first is {named}")
    values = {name: _whole_numbers(truth[name]).take(rows).to_pylist() for name in wanted_names}
    return {name: [_number(value, numbers) for value in column] for name, column in values.items()}


def _number(value: Any, numbers: Mapping[str, int]) -> Any:
    """Replace a class name by its number; return any other value unchanged."""
    return numbers.get(value, value) if isinstance(value, str) else value


def _whole_numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert floats that are all whole numbers to integers: pandas writes classes as floats if some are missing."""
    if not pa.types.is_floating(column.type):
        return column
    try:
        return pc.if_else(pc.is_nan(column), None, column).cast(pa.int64())
    except pa.ArrowInvalid:
        return column


def _fields_of_shards(run: RunFolder, field: str | None, numbers: Mapping[str, int]) -> dict[str, list[Any]]:
    """Read the fields of every sample's json, shard by shard; class names become numbers."""
    recorded = run.read_run() or {}
    if "limits" not in recorded["reading"]:
        raise ConfigError(f"{run.name} was made from arrays, which hold no truth; {GIVE_TRUTH}", "truth")
    urls = {entry["table"]: entry["url"] for entry in recorded["shards"]}
    names = (field,) if field else ("noisy", "clean_label")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for stem in run.stems():
        reader = ShardReader(Shard(urls[stem]))
        for raw in _read_samples(reader):
            whole = _read_json(raw)
            read = {name: _number(whole.get(name), numbers) for name in names}
            record = {name: value for name, value in read.items() if isinstance(value, int)}
            if names[0] not in record:
                found = f"{json.dumps(whole[names[0]])[:80]} in its" if names[0] in whole else "no"
                problem = (
                    f"sample {raw.key} of {urls[stem]} has {found} json field {names[0]}, so the truth is not known"
                )
                hint = f"{_known_names(numbers)}; " if isinstance(whole.get(names[0]), str) else ""
                raise ConfigError(f"{problem}; {hint}name another with --truth-field, or {GIVE_TRUTH}", "truth")
            for name in names:
                columns[name].append(record.get(name))
        if reader.sha256 != read_shard_facts(run.table(stem))["sha256"]:
            raise MismatchError.of("shards", urls[stem], "has changed since it was scored; run annotate again")
    known = any(value is not None for value in columns[names[-1]])
    return columns if known else {names[0]: columns[names[0]]}


def _are_classes(values: list[Any], given: NDArray[np.int64] | None) -> bool:
    """Decide whether these are class numbers rather than true and false, by comparing with the given labels (N,).

    >>> labels = np.array([0, 1, 2])
    >>> _are_classes([0, 1, 2], labels), _are_classes([0, 1, 0], labels), _are_classes([0, 1, 0], labels % 2)
    (True, False, True)
    """
    numbers = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
    two_classes = given is not None and given.max(initial=0) <= 1
    return bool(numbers and (two_classes or not {0, 1}.issuperset(numbers)))


def _booleans(values: list[Any], source: object, column: str | None) -> NDArray[np.bool_]:
    if not all(isinstance(value, bool | int) and value in (0, 1) for value in values):
        raise _error(source, f"is no truth: {column} must be true or false (or 1 and 0) for every sample")
    return np.array(values, dtype=bool)


def _class_numbers(
    values: list[Any], source: object, column: str | None, numbers: Mapping[str, int]
) -> NDArray[np.int64]:
    """Return class numbers, -1 for missing values; raise ConfigError for other values and unknown classes."""
    strange = [value for value in values if isinstance(value, str | float)]
    if strange:
        known = _known_names(numbers)
        raise _error(
            source,
            f"is no truth: {column} must hold class numbers or names for all, and {len(strange):,} of {len(values):,} are "
            f"neither, such as {json.dumps(strange[0])[:80]}; {known}",
        )
    labels = np.array([-1 if value is None or isinstance(value, bool) else value for value in values], np.int64)
    if numbers and labels.max(initial=-1) >= len(numbers):
        raise _error(
            source,
            f"has class {labels.max()}, and the run has classes 0 to {len(numbers) - 1}; is {column} counted from 1?",
        )
    return labels


def _known_names(numbers: Mapping[str, int]) -> str:
    if not numbers:
        return "this run knows no names: annotate with --classes, or score-embeddings with --class-names"
    return f"the run knows the names {', '.join(list(numbers)[:3])}{', …' if len(numbers) > 3 else ''}"


def _error(source: object, problem: str) -> ConfigError:
    return ConfigError(f"truth: {source} {problem}", "truth", source)


def _read_samples(reader: ShardReader) -> Iterator[RawSample]:
    try:
        yield from reader
    except ShardError as error:
        problem = f"{error}. The truth is in the shards: run evaluate where annotate ran, or {GIVE_TRUTH}"
        raise ShardError(problem, error.setting or "truth", error.value) from error


def _read_json(raw: RawSample) -> dict[str, Any]:
    try:
        record = json.loads(raw.parts["json"])
    except (KeyError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
