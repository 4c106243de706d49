"""The neighbour graph: the k nearest rows of every row by cosine, itself excluded; its file, and its near duplicates."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError, TableError
from noisegate.pipeline.runs.embeddings import create_tensors, map_tensors
from noisegate.pipeline.system.array_types import Float32, Index, Integers
from noisegate.pipeline.system.output_files import whole_path

from .plan import Kind

LINKED = 65_536  # rows whose lists are searched for near duplicates at a time
LINKS = 1 << 24  # links between near duplicates that are held at a time
FORMAT = "noisegate-neighbours-1"


@dataclass(frozen=True)
class Neighbours:
    """The neighbour graph of N rows, nearest first.

    indices: (N, k) int32 (int64 from 2^31 rows on), -1 where there is no neighbour; similarities: (N, k) float32
    cosines, NaN there; recall: None for an exact search, else measured on a sample; kind: how it was searched.
    """

    indices: Integers
    similarities: Float32
    recall: float | None
    kind: Kind

    def save(self, path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
        """Write one safetensors file, whole or not at all; the same graph and `metadata` give the same bytes."""
        with whole_path(Path(path)) as temporary:
            shape, dtype = self.indices.shape, self.indices.dtype
            tensors = create_graph(temporary, shape, dtype, self.kind, self.recall, metadata or {})
            tensors["indices"][...], tensors["similarities"][...] = self.indices, self.similarities

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Neighbours:
        """Map a saved graph read-only: it may be larger than the memory."""
        try:
            tensors, header = map_tensors(path)
        except TableError as error:
            raise TableError(f"{path} is not a readable neighbour graph: {error}", "graph", path) from error
        if header.get("format") != FORMAT:
            raise TableError(f"{path} has format {header.get('format')!r}; a graph has {FORMAT!r}", "graph", path)
        return cls(tensors["indices"], tensors["similarities"], json.loads(header["recall"]), header["kind"])  # type: ignore[arg-type]

    def nearest(self, k: int) -> Neighbours:
        """Return the graph with lists cut to the k nearest."""
        return replace(self, indices=self.indices[:, :k], similarities=self.similarities[:, :k])


def create_graph(
    path: Path, shape: tuple[int, ...], dtype: Any, kind: str, recall: float | None, metadata: Mapping[str, str]
) -> dict[str, NDArray[Any]]:
    """Create the file of a graph of this shape, to be filled through the maps `indices` and `similarities`."""
    header = {**metadata, "format": FORMAT, "kind": kind, "recall": json.dumps(recall)}
    return create_tensors(path, {"indices": (shape, dtype), "similarities": (shape, np.float32)}, header)


def default_k(n: int, classes: int) -> int:
    """Choose k = min(200, max(5, n // (2 C)), n - 1): 200 as in SSR, but half the mean class size for small classes.

    >>> default_k(50_000, 100), default_k(2_000, 10), default_k(3, 10)
    (200, 100, 2)
    """
    if n < 0:
        raise ConfigError.of("n", n, "is no number of samples; use 0 or more")
    if classes < 1:
        raise ConfigError.of("classes", classes, "is too few; use 1 or more")
    return max(0, min(200, max(5, n // (2 * classes)), n - 1))


def near_duplicates(neighbours: Neighbours, threshold: float = 0.98, links: int = LINKS) -> Index:
    """Find the lowest row of which each row is a near duplicate, (N,); -1 if there is no lower row.

    Two rows are linked when one lists the other with a cosine of at least `threshold`; duplicates are the connected
    components, so a chain of small changes is one. More than k copies are still linked, because lists prefer low indices. About
    `links` links are in memory at a time.

    >>> from noisegate.pipeline.neighbours import find_neighbours
    >>> rows = np.array([[1., 0.], [0., 1.], [1., .01], [1., .02]])
    >>> near_duplicates(find_neighbours(rows, k=1)).tolist()
    [-1, -1, 0, 0]
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    total = len(neighbours.indices)
    part = np.arange(total)
    rows, columns, found = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
    for start in range(0, total, LINKED):  # a graph may be larger than the memory, and so may its links
        listed, cosine = neighbours.indices[start : start + LINKED], neighbours.similarities[start : start + LINKED]
        close = (listed >= 0) & (cosine >= threshold)
        rows.append(part[np.nonzero(close)[0] + start])
        columns.append(part[listed[close]])
        found += len(rows[-1])
        if found > links or start + LINKED >= total:
            row, column = np.concatenate(rows), np.concatenate(columns)
            joined = coo_matrix((np.ones(len(row), dtype=np.int8), (row, column)), shape=(total, total))
            part = connected_components(joined, directed=False)[1][part]
            rows, columns, found = [], [], 0
    _, lowest, part = np.unique(part, return_index=True, return_inverse=True)
    representative: Index = lowest[part].astype(np.int64)
    representative[representative == np.arange(total)] = -1
    return representative
