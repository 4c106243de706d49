"""Read shards and their weight tables as training batches.

Users iterate over `weighted_shards`. `catalogue` lists the shards and the rows to train on, `epoch_order` groups rows into
batches, `batch_loader` loads batches in workers with `sample_reader`, `join` matches samples with table rows and verifies them,
`table_stage` does the same for webdataset's pipelines, `shard_cache` opens any shard for random access and makes temporary
folders.
"""

from .batch import Batch, Dropped
from .sample_reader import ArrayTensor
from .table_stage import TableStage, with_table
from .weighted_shards import WeightedShards

__all__ = ["ArrayTensor", "Batch", "Dropped", "TableStage", "WeightedShards", "with_table"]
