"""Neighbours of rows that need not fit into memory: parts of the base, spans of queries, tasks anywhere, exact merges."""

from .executors import on_processes, on_ray
from .search import NeighbourSearch, RunTasks, neighbour_graph, one_by_one

__all__ = [
    "NeighbourSearch",
    "RunTasks",
    "neighbour_graph",
    "on_processes",
    "on_ray",
    "one_by_one",
]
