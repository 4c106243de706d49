"""Count votes per row that arrive in any order, in a temporary file if they do not fit into memory."""

from __future__ import annotations

import weakref
from tempfile import SpooledTemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, vstack

HELD = 1 << 24  # votes in memory: 0.6 GB while they are counted
PACKED = np.dtype([("row", "<u4"), ("choice", "<u4")])


class RowVotes:
    """(N, C) sparse: `weight[c]` for each vote that a row gets for class c. `most` votes are expected.

    Votes take 8 bytes each in a temporary file (see TMPDIR), sorted by spans of rows; one span is counted at a time.
    """

    def __init__(self, rows: int, weight: NDArray[np.floating[Any]], most: int, held: int | None = None) -> None:
        held = held or HELD
        spans = max(1, -(-most // held))
        self._rows, self._weight = rows, weight
        self._span = max(1, -(-rows // spans))
        self._parts: list[list[tuple[int, int]]] = [[] for _ in range(-(-rows // self._span))]  # (offset, votes)
        self._file = SpooledTemporaryFile(held * PACKED.itemsize)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._last = -1, csr_matrix((0, 0))

    def add(self, row: NDArray[np.integer[Any]], choice: NDArray[np.integer[Any]]) -> None:
        """Add one vote for each of the rows (V,); all votes must be added before any is read."""
        span = row // self._span
        order = np.argsort(span, kind="stable")
        votes = np.empty(len(row), PACKED)
        votes["row"], votes["choice"] = (row % self._span)[order], choice[order]
        ends = np.searchsorted(span[order], np.arange(len(self._parts) + 1))
        offset = self._file.tell()
        self._file.write(votes.tobytes())
        for place in np.flatnonzero(np.diff(ends)).tolist():
            begin, end = int(ends[place]), int(ends[place + 1])
            self._parts[place].append((offset + begin * PACKED.itemsize, end - begin))

    def __getitem__(self, part: slice) -> csr_matrix:
        """(R, C) votes of a slice of rows; fast if slices are read in order."""
        first, last = part.start // self._span, max(part.start, part.stop - 1) // self._span
        pieces = []
        for place in range(first, last + 1):
            start = place * self._span
            if self._last[0] != place:
                self._last = place, self._count(place)
            pieces.append(self._last[1][max(0, part.start - start) : max(0, part.stop - start)])
        return pieces[0] if len(pieces) == 1 else vstack(pieces, format="csr")

    def _count(self, place: int) -> csr_matrix:
        parts = [np.empty(0, PACKED)]
        for offset, count in self._parts[place]:
            self._file.seek(offset)
            parts.append(np.frombuffer(self._file.read(count * PACKED.itemsize), PACKED))
        votes = np.concatenate(parts)
        choice = votes["choice"].astype(np.int64)
        shape = min(self._span, self._rows - place * self._span), len(self._weight)
        return csr_matrix((self._weight[choice], (votes["row"].astype(np.int64), choice)), shape=shape)
