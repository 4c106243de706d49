"""A run against the truth, where it is known: how well do its scores find the noise?"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from .errors import ConfigError, MismatchError, TableError
from .metrics import (
    BestCut,
    MeanNoiseRank,
    SelectionMetrics,
    best_cut,
    mean_noise_rank,
    osa_acc,
    osa_recall,
    selection_metrics,
)
from .read import RawSample, ShardReader
from .shards import Shard
from .table import RunFolder, read_metadata, read_table

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True)
class Evaluation:
    """Scores of a run against known noise. Failed samples are left out and counted in `unscored`."""

    samples: int
    noisy: int
    unscored: int
    beta: float
    osa_acc: float
    osa_recall: float
    selection: SelectionMetrics
    noise_rank: MeanNoiseRank
    best: BestCut

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, flat where a script would look."""
        plain = asdict(self)
        return {**plain, "clean_auroc": self.selection.clean_auroc, "beta": self.beta}


def evaluate(folder: str | Path, truth: str | Path | None = None) -> Evaluation:
    """Judge the tables of a run by `truth`, a Parquet file with `noisy` and `key`; `shard` too where keys repeat.

    Without it the truth is the field `noisy` in the samples' json, which `noisegate noise` leaves there. Raises
    MismatchError when the shards are no longer those that were scored.
    """
    run = RunFolder(Path(folder))
    table = read_table(folder, ["key", "index", "similarity", "osa_weight"])
    beta = (run.read_run() or {})["beta"]
    if beta is None:
        raise TableError(f"{folder} was scored without pairs, so it has no β to judge")
    noisy = truth_from_file(table, Path(truth)) if truth else truth_from_shards(run)
    weight = table["osa_weight"].to_numpy(zero_copy_only=False)
    scored = ~np.isnan(weight)
    if not scored.any():
        raise TableError(f"{folder}: no sample has a score; look at the column error of its tables")
    weight, mask = weight[scored].astype(np.float64), noisy[scored]
    similarity = table["similarity"].to_numpy(zero_copy_only=False)[scored]
    return Evaluation(
        samples=int(scored.sum()),
        noisy=int(mask.sum()),
        unscored=int((~scored).sum()),
        beta=beta["value"],
        osa_acc=osa_acc(weight, mask),
        osa_recall=osa_recall(weight, mask),
        selection=selection_metrics(similarity, weight > 0, mask),
        noise_rank=mean_noise_rank(weight, mask),
        best=best_cut(similarity, mask),
    )


def truth_from_file(table: pa.Table, path: Path) -> NDArray[np.bool_]:
    """The mask (N,) for the rows of `table`, joined by shard and index, shard and key, or key: whatever the file has."""
    try:
        truth = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(f"truth {path} is not a readable Parquet file: {error}") from error
    names = set(truth.column_names)
    by = next((list(by) for by in (("shard", "index"), ("shard", "key"), ("key",)) if names.issuperset(by)), None)
    if by is None or "noisy" not in names:
        raise ConfigError(f"truth {path} has the columns {', '.join(sorted(names))}; it needs key and noisy")
    if truth["noisy"].null_count or not (pa.types.is_boolean(truth["noisy"].type) or _zero_one(truth["noisy"])):
        raise ConfigError(f"truth {path}: the column noisy must be true or false (or 1 and 0) for every sample")
    keys = list(zip(*(truth[name].to_pylist() for name in by), strict=True))
    found = dict(zip(keys, truth["noisy"].to_pylist(), strict=True))
    if len(found) < len(keys):
        remedy = "a column shard" if by == ["key"] else "a column index, the sample's position in its shard"
        raise ConfigError(f"truth {path} names {len(keys) - len(found):,} samples twice; add {remedy}")
    wanted = list(zip(*(table[name].to_pylist() for name in by), strict=True))
    lost = [key for key in wanted if key not in found]
    if lost:
        such = "/".join(map(str, lost[0]))
        raise ConfigError(f"truth {path} lacks {len(lost):,} of {len(wanted):,} samples, such as {such}")
    return np.array([bool(found[key]) for key in wanted], dtype=bool)


def _zero_one(column: pa.ChunkedArray) -> bool:
    return pa.types.is_integer(column.type) and set(column.unique().to_pylist()) <= {0, 1}


def truth_from_shards(run: RunFolder) -> NDArray[np.bool_]:
    """The mask (N,) from the field `noisy` of every sample's json, shard by shard."""
    mask: list[bool] = []
    urls = {entry["table"]: entry["url"] for entry in (run.read_run() or {})["shards"]}
    for stem in run.stems():
        reader = ShardReader(Shard(urls[stem]))
        for raw in reader:
            noisy = _noisy(raw)
            if noisy is None:
                raise ConfigError(
                    f"sample {raw.key} of {urls[stem]} has no json field noisy: the truth is not known here. Make noise "
                    "with `noisegate noise`, or give --truth FILE.parquet with key and noisy"
                )
            mask.append(noisy)
        if reader.sha256 != read_metadata(run.table(stem))["shard"]["sha256"]:
            raise MismatchError(f"{urls[stem]} has changed since it was scored; run the same annotate command again")
    return np.array(mask, dtype=bool)


def _noisy(raw: RawSample) -> bool | None:
    try:
        value = json.loads(raw.parts["json"])["noisy"]
    except (KeyError, ValueError, TypeError):
        return None
    return value if isinstance(value, bool) else None
