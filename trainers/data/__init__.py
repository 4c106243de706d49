"""Shards and their weight tables as training batches, in an order that workers, ranks and interruptions do not change."""

from .batch import Batch, Dropped
from .weighted_shards import WeightedShards

__all__ = ["Batch", "Dropped", "WeightedShards"]
