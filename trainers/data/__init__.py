"""Shards and their weight tables as training batches, in an order that workers, ranks and interruptions do not change."""

from .batch import Batch, Dropped
from .transforms import ArrayTensor
from .weighted_shards import WeightedShards

__all__ = ["ArrayTensor", "Batch", "Dropped", "WeightedShards"]
