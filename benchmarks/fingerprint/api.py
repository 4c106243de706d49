"""What Python programs import: the table's reader, weights, and the loader of training loops."""

from typing import Any

import numpy as np

from . import inputs
from .product import WeightedShards, osa_weight, read_table, weighted
from .recorder import Recorder

__all__ = ["record_api"]


def record_api(recorder: Recorder) -> None:
    """Values that follow from fixed inputs."""
    recorder.json("api/osa_weight", osa_weight(np.linspace(-1, 1, 21), 0.215).tolist())
    table = read_table(inputs.labels_run())
    recorder.json("api/read_table", {"rows": len(table), "schema": str(table.schema)})
    shards, run = f"{inputs.wrong_labels()}/*.tar", str(inputs.labels_run())
    loaders: dict[str, dict[str, Any]] = {
        "window": {"columns": ["osa_weight"], "where": "clean", "window_shards": 2},
        "classes": {"label": "refined_label", "sampler": "m_per_class:2"},
        "sequential": {"label": True, "sampler": "sequential", "captions": "read", "fields": ["image_sha256"]},
    }
    for name, how in loaders.items():
        data = WeightedShards(shards, run, batch_size=32, seed=9, **how)
        recorder.json(f"api/{name}/epochs", [[describe(batch) for batch in data] for _ in range(2)])
        recorder.json(f"api/{name}/facts", {"rows": data.selected_rows, "batches": len(data), "digest": data.digest()})
        data.close()
    modes = ("mean1", "raw", "batch_sum", "max1")
    batch = next(iter(WeightedShards(shards, run, batch_size=16, columns=["osa_weight"])))
    weights = batch.columns["osa_weight"]
    recorder.json(
        "api/weighted", {mode: float(weighted(weights + 1, weights, mode=mode, mean_weight=0.01)) for mode in modes}
    )


def describe(batch: Any) -> dict[str, Any]:
    """A batch as JSON values."""
    columns = {name: values.tolist() for name, values in batch.columns.items()}
    labels = None if batch.labels is None else batch.labels.tolist()
    return {
        "keys": batch.keys,
        "rows": batch.rows.tolist(),
        "labels": labels,
        "columns": columns,
        "fields": batch.fields,
    }
