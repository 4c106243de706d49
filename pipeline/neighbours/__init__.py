"""Neighbours of rows that need not fit into memory: parts of the base, spans of queries, tasks anywhere, exact merges."""

from noisegate.pipeline.runs.mapped_rows import MappedRows
from noisegate.pipeline.system.memory import read_size

from .executors import on_processes, on_ray
from .search import NeighbourSearch, RunTasks, neighbour_graph, one_by_one, search_folder

__all__ = [
    "MappedRows",
    "NeighbourSearch",
    "RunTasks",
    "neighbour_graph",
    "on_processes",
    "on_ray",
    "one_by_one",
    "read_size",
    "search_folder",
]
