"""Nearest neighbours by cosine, with ties in the order of the rows.

`memory_search` builds the graph (`graph`) of rows in memory; `disk_search` that of rows on disk, cut by a `plan` into tasks
(`task`) that `executors` carry out; `query` finds the rows of a run nearest to new ones. All three search `distinct` rows, or
unit rows, by the `exact` or the `inverted` index, on `gpu`s where there are some, and write neighbour `lists`.
"""

from .disk_search import NeighbourSearch, RunTasks, find_neighbours_on_disk, run_in_turn
from .executors import process_executor, ray_executor
from .graph import Neighbours, default_k, near_duplicates
from .memory_search import find_neighbours
from .plan import Task
from .query import HELD_BYTES, RowQuery

__all__ = [
    "HELD_BYTES",
    "NeighbourSearch",
    "Neighbours",
    "RowQuery",
    "RunTasks",
    "Task",
    "default_k",
    "find_neighbours",
    "find_neighbours_on_disk",
    "near_duplicates",
    "process_executor",
    "ray_executor",
    "run_in_turn",
]
