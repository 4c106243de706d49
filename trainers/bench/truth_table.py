"""Make weight tables with the truth as `clean`, for variants such as lnc@true-w on the papers' data sets."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from noisegate.pipeline.datasets.noise import TRUTH_FILE
from noisegate.pipeline.runs import RunFolder
from noisegate.trainers.config import TrainConfig, merge_trees
from noisegate.trainers.write_table import open_training_data, write_columns


def make_truth_table(config: Mapping[str, Any], shards: Sequence[str], rate: float | None, table: Path) -> Path:
    """Make, once, the table of shards that `config` trains on, with noise of `noise.parquet` beside them, at rate 0 none."""
    if (RunFolder(table).read_run() or {}).get("finished"):
        return table
    plain = {name: value for name, value in config.items() if name != "method"}
    parsed = TrainConfig.parse(merge_trees(plain, {"data": {"shards": list(shards), "table": None}}))
    if rate == 0:
        with contextlib.closing(open_training_data(parsed)) as rows:
            clean = np.ones(rows.total_rows, bool)
    else:
        clean = ~pq.read_table(Path(shards[0]).parent / TRUTH_FILE)["noisy"].to_numpy()
    return write_columns(parsed, {"clean": clean}, {"name": "truth"}, table)
