"""DataComp's subset file: the uids of the kept samples as a sorted array of two 64-bit halves."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.shards.read import RawSample
from noisegate.pipeline.system.output_files import whole_file

from .rows import Options, RunRows, ShardRows, Written

UID = np.dtype("u8,u8")
_HEX = re.compile(r"[0-9a-fA-F]{32}")
_SHOWN = 5


def uid_array(uids: list[str]) -> NDArray[np.void]:
    """Sort uids of 32 hex digits and drop repeats: DataComp's resharder copies a sample as often as its uid is listed.

    >>> uid_array(["00000000000000020000000000000001", "0000000000000001ffffffffffffffff"]).tolist()
    [(1, 18446744073709551615), (2, 1)]
    """
    halves = np.frombuffer(bytes.fromhex("".join(uids)), ">u8").reshape(-1, 2).astype(np.uint64)
    return _sorted(halves)


def _sorted(halves: NDArray[np.uint64]) -> NDArray[np.void]:
    halves = np.ascontiguousarray(halves[np.lexsort((halves[:, 1], halves[:, 0]))])
    again = np.zeros(len(halves), bool)
    again[1:] = (halves[1:] == halves[:-1]).all(axis=1)
    return np.ascontiguousarray(halves[~again]).view(UID).reshape(-1)


def write_uids(rows: RunRows, out: Path, options: Options) -> Written:
    """Write the `.npy`, each uid once; memory holds 16 bytes per row.

    A uid is the json field `uid`, or the key if it is 32 hex digits. Raises ConfigError that names the first samples with
    neither.
    """
    arrays: list[NDArray[np.void]] = []
    without: list[str] = []
    samples = 0
    with whole_file(out) as file:
        for part in rows.parts(["key"]):
            uids = []
            for name, uid in _uids(part, "limits" in rows.facts["reading"]):
                if uid is None:
                    without.append(f"{part.stem}/{name}")
                else:
                    uids.append(uid)
            samples += len(part.kept)
            arrays.append(uid_array(uids))
            if len(without) >= _SHOWN:
                break
        if without:
            some = ", ".join(without[:_SHOWN])
            problem = f"needs 32 hex digits in the json field uid, and {some} have none; use keys for other data"
            raise ConfigError.of("as", "datacomp", problem)
        whole = _sorted(np.concatenate([part.view(np.uint64).reshape(-1, 2) for part in arrays]))
        rows.refuse_nothing(len(whole))
        np.save(file, whole, allow_pickle=False)
    repeated = samples - len(whole)
    return Written(len(whole), {"uid listed already": repeated} if repeated else {})


def _uids(part: ShardRows, from_shard: bool) -> Iterator[tuple[str, str | None]]:
    if not len(part.kept):
        return
    if from_shard:
        for _, raw in part.samples():
            yield raw.key, _uid(raw)
    else:
        for key in part.kept["key"].to_pylist():
            yield key, key if _HEX.fullmatch(key) else None


def _uid(raw: RawSample) -> str | None:
    try:
        record = json.loads(raw.parts.get("json", b"{}"))
    except (ValueError, RecursionError):
        record = None
    given = record.get("uid") if isinstance(record, dict) else None
    for uid in (given, raw.key):
        if isinstance(uid, str) and _HEX.fullmatch(uid):
            return uid
    return None
