"""Shards and their weight tables as training batches.

`weighted_shards` is what users iterate over. `catalogue` lists the shards and the rows to train on, `epoch_order` puts rows
into batches, `batch_loader` loads them in workers with `sample_reader`, `join` matches and proves samples and table rows,
`table_stage` does the same for webdataset's pipelines, `shard_cache` opens any shard for random access and makes temporary
folders.
"""

from .batch import Batch, Dropped
from .sample_reader import ArrayTensor
from .table_stage import TableStage, with_table
from .weighted_shards import WeightedShards

__all__ = ["ArrayTensor", "Batch", "Dropped", "TableStage", "WeightedShards", "with_table"]
