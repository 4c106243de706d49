"""Read which samples are noisy in truth: from the json of the shards, or from a Parquet file."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from noisegate.pipeline.datasets.noise.protocols import PROTOCOLS
from noisegate.pipeline.errors import ConfigError, MismatchError, ShardError
from noisegate.pipeline.runs.arrays import MODEL as ARRAYS
from noisegate.pipeline.runs.table import RunFolder, read_metadata
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.read import RawSample, ShardReader

GIVE_TRUTH = "give --truth FILE.parquet with key and noisy"


@dataclass(frozen=True, eq=False)
class Truth:
    """Which samples are wrong, (N,) bool, and the right labels, (N,) with -1 for unknown, where they were recorded."""

    noisy: NDArray[np.bool_]
    clean_label: NDArray[np.int64] | None = None


def read_truth(run: RunFolder, table: pa.Table, path: Path | None) -> Truth:
    """The truth about the rows of `table`, which has shard, key and index: from `path`, else from the shards' json."""
    return truth_from_file(table, path) if path else truth_from_shards(run)


def noised_part(run: RunFolder, path: Path | None) -> str | None:
    """The part that `noisegate noise` changed, "captions" or "labels"; None where it is not recorded.

    Recorded in the metadata of the truth file, or in the json of the first sample; None if they cannot be read.
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


def truth_from_file(table: pa.Table, path: Path) -> Truth:
    """`noisy` and, where there, `clean_label` for the rows of `table`.

    Joined by shard and index, by shard and key, or by key, depending on the columns of the file.
    """
    try:
        truth = pq.read_table(path)
    except FileNotFoundError as error:
        raise _file_error(path, " is not there; `noisegate noise` leaves a noise.parquet beside its shards") from error
    except (OSError, pa.ArrowInvalid) as error:
        raise _file_error(path, f" is not a readable Parquet file: {error}") from error
    names = set(truth.column_names)
    by = next((list(by) for by in (("shard", "index"), ("shard", "key"), ("key",)) if names.issuperset(by)), None)
    if by is None or "noisy" not in names:
        raise _file_error(path, f" has the columns {', '.join(sorted(names))}; it needs key and noisy")
    if truth["noisy"].null_count or not (pa.types.is_boolean(truth["noisy"].type) or _is_zero_one(truth["noisy"])):
        raise _file_error(path, ": the column noisy must be true or false (or 1 and 0) for every sample")
    keys = list(zip(*(truth[name].to_pylist() for name in by), strict=True))
    row_of = {key: row for row, key in enumerate(keys)}
    if len(row_of) < len(keys):
        remedy = "a column shard" if by == ["key"] else "a column index, the sample's position in its shard"
        raise _file_error(path, f" names {len(keys) - len(row_of):,} samples twice; add {remedy}")
    wanted = list(zip(*(table[name].to_pylist() for name in by), strict=True))
    lost = [key for key in wanted if key not in row_of]
    if lost:
        example = "/".join(map(str, lost[0]))
        raise _file_error(path, f" lacks {len(lost):,} of {len(wanted):,} samples, such as {example}")
    rows = np.array([row_of[key] for key in wanted], np.int64)
    noisy = truth["noisy"].cast(pa.bool_()).to_numpy()[rows]
    return Truth(noisy, _labels(truth, path)[rows] if "clean_label" in names else None)


def _file_error(path: Path, problem: str) -> ConfigError:
    return ConfigError(f"truth {path}{problem}", "truth", path)


def _labels(truth: pa.Table, path: Path) -> NDArray[np.int64]:
    if not pa.types.is_integer(truth["clean_label"].type):
        raise _file_error(path, ": the column clean_label must hold class numbers")
    labels: NDArray[np.int64] = truth["clean_label"].cast(pa.int64()).fill_null(-1).to_numpy()
    return labels


def _is_zero_one(column: pa.ChunkedArray) -> bool:
    return pa.types.is_integer(column.type) and set(column.unique().to_pylist()) <= {0, 1}


def truth_from_shards(run: RunFolder) -> Truth:
    """From the fields `noisy` and `clean_label` of every sample's json, shard by shard."""
    mask: list[bool] = []
    labels: list[int] = []
    recorded = run.read_run() or {}
    if recorded["scorer"]["model"] == ARRAYS:
        raise ConfigError(f"{run.path} was made from arrays, which hold no truth; {GIVE_TRUTH}", "truth")
    urls = {entry["table"]: entry["url"] for entry in recorded["shards"]}
    for stem in run.stems():
        reader = ShardReader(Shard(urls[stem]))
        for raw in _read_samples(reader):
            record = _read_json(raw)
            if not isinstance(record.get("noisy"), bool):
                problem = f"sample {raw.key} of {urls[stem]} has no json field noisy, so the truth is not known"
                raise ConfigError(f"{problem}; make noise with `noisegate noise`, or {GIVE_TRUTH}", "truth")
            mask.append(record["noisy"])
            label = record.get("clean_label")
            labels.append(label if isinstance(label, int) and not isinstance(label, bool) else -1)
        if reader.sha256 != read_metadata(run.table(stem))["shard"]["sha256"]:
            raise MismatchError.of("shards", urls[stem], "has changed since it was scored; run annotate again")
    known = any(label >= 0 for label in labels)
    return Truth(np.array(mask, dtype=bool), np.array(labels, np.int64) if known else None)


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
