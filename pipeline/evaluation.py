"""A run against the truth, where it is known: how well do its scores find the noise?"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from .errors import ConfigError, TableError
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
from .read import ShardReader
from .shards import Shard
from .table import RunFolder, read_table

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
    """Judge the tables of a run by `truth`, a Parquet file with `key`, `noisy` and, where keys repeat, `shard`.

    Without it the truth is the field `noisy` in the samples' json, which `noisegate noise` leaves there.
    """
    table = read_table(folder, ["key", "index", "status", "similarity", "osa_weight", "clean"])
    noisy = truth_from_file(table, Path(truth)) if truth else truth_from_shards(RunFolder(Path(folder)))
    if len(noisy) != len(table):
        raise TableError(f"the shards hold {len(noisy):,} samples, the tables {len(table):,}: score the shards again")
    weight = table["osa_weight"].to_numpy(zero_copy_only=False)
    scored = ~np.isnan(weight)
    if not scored.any():
        raise TableError(f"{folder}: no sample has a score; finish the run with the same annotate command")
    weight, mask = weight[scored].astype(np.float64), noisy[scored]
    similarity = table["similarity"].to_numpy(zero_copy_only=False)[scored]
    run = RunFolder(Path(folder)).read_run() or {}
    return Evaluation(
        samples=int(scored.sum()),
        noisy=int(mask.sum()),
        unscored=int((~scored).sum()),
        beta=run["beta"]["value"],
        osa_acc=osa_acc(weight, mask),
        osa_recall=osa_recall(weight, mask),
        selection=selection_metrics(similarity, weight > 0, mask),
        noise_rank=mean_noise_rank(weight, mask),
        best=best_cut(similarity, mask),
    )


def truth_from_file(table: pa.Table, path: Path) -> NDArray[np.bool_]:
    """The mask (N,) for the rows of `table`, joined by key, or by shard and key where the file has `shard`."""
    try:
        truth = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(f"truth {path} is not a readable Parquet file: {error}") from error
    missing = {"key", "noisy"} - set(truth.column_names)
    if missing:
        raise ConfigError(f"truth {path} has no column {', '.join(sorted(missing))}; it needs key and noisy")
    by = ["shard", "key"] if "shard" in truth.column_names else ["key"]
    names = list(zip(*(truth[name].to_pylist() for name in by), strict=True))
    found = dict(zip(names, truth["noisy"].to_pylist(), strict=True))
    if len(found) < len(names):
        raise ConfigError(f"truth {path} names {len(names) - len(found):,} keys twice; add a column shard")
    wanted = list(zip(*(table[name].to_pylist() for name in by), strict=True))
    lost = [name for name in wanted if name not in found]
    if lost:
        raise ConfigError(f"truth {path} lacks {len(lost):,} of {len(wanted):,} samples, such as {'/'.join(lost[0])}")
    return np.array([bool(found[name]) for name in wanted])


def truth_from_shards(run: RunFolder) -> NDArray[np.bool_]:
    """The mask (N,) from the field `noisy` of every sample's json, shard by shard."""
    mask: list[bool] = []
    tables = set(run.stems())
    for entry in (run.read_run() or {})["shards"]:
        if entry["table"] not in tables:
            continue
        for raw in ShardReader(Shard(entry["url"])):
            try:
                mask.append(bool(json.loads(raw.parts["json"])["noisy"]))
            except (KeyError, ValueError, TypeError) as error:
                raise ConfigError(
                    f"sample {raw.key} of {entry['url']} has no json field noisy: the truth is not known here. Make noise "
                    "with `noisegate noise`, or give --truth FILE.parquet with key and noisy"
                ) from error
    return np.array(mask, dtype=bool)
