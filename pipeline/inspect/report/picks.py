"""The few rows a report shows: the lowest by some score, kept while tables pass by, in memory that does not grow."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from noisegate.pipeline.system.array_types import Float64, Index

__all__ = ["Lowest", "LowestPerClass", "Pick"]


@dataclass(frozen=True)
class Pick:
    """One row of a table: its shard's stem, and its columns by name."""

    stem: str
    values: dict[str, Any]

    @property
    def place(self) -> tuple[str, int]:
        """The shard's stem and the sample's position in it; keys may repeat, this does not."""
        return self.stem, int(self.values["index"])

    @property
    def key(self) -> str:
        return str(self.values["key"])


class Lowest:
    """The `count` rows with the lowest score over all tables added; ties go to the row that came first.

    >>> lowest = Lowest(2)
    >>> lowest.add("a", pa.table({"key": ["x", "y", "z"], "index": [0, 1, 2]}), np.array([0.3, np.nan, 0.1]))
    >>> lowest.add("b", pa.table({"key": ["v"], "index": [0]}), np.array([0.2]))
    >>> [pick.key for pick in lowest.picks]
    ['z', 'v']
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._kept: list[tuple[float, Pick]] = []

    def add(self, stem: str, table: pa.Table, score: Float64) -> None:
        """Look at all rows of a table; `score` (N,), NaN for rows that do not take part."""
        eligible = np.flatnonzero(~np.isnan(score))
        if len(self._kept) == self._count and self._kept:
            eligible = eligible[score[eligible] < self._kept[-1][0]]
        rows = eligible[np.argsort(score[eligible], kind="stable")[: self._count]]
        self._keep([(float(score[row]), pick) for row, pick in zip(rows, _picks(stem, table, rows), strict=True)])

    def _keep(self, more: list[tuple[float, Pick]]) -> None:
        if more:
            self._kept = sorted([*self._kept, *more], key=lambda entry: entry[0])[: self._count]

    @property
    def picks(self) -> list[Pick]:
        """Lowest first."""
        return [pick for _, pick in self._kept]


class LowestPerClass:
    """`Lowest` for every class; memory grows with the number of classes only."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.classes: dict[int, Lowest] = {}

    def add(self, stem: str, table: pa.Table, labels: Index, score: Float64) -> None:
        """`labels` (N,), negative for none; `score` (N,), NaN for rows that do not take part."""
        rows = np.flatnonzero((labels >= 0) & ~np.isnan(score))
        rows = rows[np.lexsort((score[rows], labels[rows]))]
        if not len(rows):
            return
        starts = np.flatnonzero(np.diff(labels[rows], prepend=-1))
        rank = np.arange(len(rows)) - np.repeat(starts, np.diff([*starts, len(rows)]))
        rows = rows[rank < self._count]
        chosen = np.full(len(score), np.nan)
        for label in np.unique(labels[rows]):
            mine = rows[labels[rows] == label]
            chosen[mine] = score[mine]
            self.classes.setdefault(int(label), Lowest(self._count)).add(stem, table, chosen)
            chosen[mine] = np.nan


def _picks(stem: str, table: pa.Table, rows: Index) -> list[Pick]:
    return [Pick(stem, values) for values in table.take(pa.array(rows)).to_pylist()] if len(rows) else []
