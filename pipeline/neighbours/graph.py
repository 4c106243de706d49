"""Who is near whom: the k nearest rows of every row by cosine, each sample itself left out by its index."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from noisegate.pipeline.errors import ConfigError, TableError
from noisegate.pipeline.runs.rows import RowBlocks, identical_rows, unit_rows
from noisegate.pipeline.runs.tensor_files import create_tensors, map_tensors
from noisegate.pipeline.system.array_types import Float32, Floats, Index, Integers

from .index import NearestIndex
from .lists import Bank, Found, expand, expand_in_order, order_ties, without_self
from .near_ties import exact_top

__all__ = ["Neighbours", "create_graph", "default_k", "find_neighbours", "near_duplicates"]

QUERIES = 4096  # rows searched at a time; faiss works in the same blocks, so smaller would cost and larger not help
LINKED = 65_536  # rows whose lists are looked through at a time for near duplicates
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
    kind: Literal["flat", "ivf", "ivf-pq"]

    def save(self, path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
        """One safetensors file, complete or absent, the same bytes for the same graph.

        `metadata` (e.g. which model made the rows) is kept with it.
        """
        target = Path(path)
        part = target.with_name(target.name + f".{os.getpid()}.part")
        tensors = create_graph(part, self.indices.shape, self.indices.dtype, self.kind, self.recall, metadata or {})
        tensors["indices"][...], tensors["similarities"][...] = self.indices, self.similarities
        part.replace(target)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Neighbours:
        """What `save` wrote, as read-only memory maps: a graph may be larger than the memory."""
        try:
            tensors, header = map_tensors(path)
        except TableError as error:
            raise TableError(f"{path} is not a readable neighbour graph: {error}") from error
        if header.get("format") != FORMAT:
            raise TableError(f"{path} has format {header.get('format')!r}; a neighbour graph has {FORMAT!r}")
        return cls(tensors["indices"], tensors["similarities"], json.loads(header["recall"]), header["kind"])  # type: ignore[arg-type]


def create_graph(
    path: Path,
    shape: tuple[int, ...],
    dtype: Any,
    kind: str,
    recall: float | None,
    metadata: Mapping[str, str],
) -> dict[str, NDArray[Any]]:
    """The file of a graph of this shape, to be filled through the maps `indices` and `similarities`."""
    header = {**metadata, "format": FORMAT, "kind": kind, "recall": json.dumps(recall)}
    return create_tensors(path, {"indices": (shape, dtype), "similarities": (shape, np.float32)}, header)


def default_k(n: int, classes: int) -> int:
    """min(200, max(5, n // (2 C)), n - 1): 200 as in SSR, but half an average class where classes are small.

    >>> default_k(50_000, 100), default_k(2_000, 10), default_k(3, 10)
    (200, 100, 2)
    """
    if n < 0 or classes < 1:
        raise ConfigError(f"n={n}, classes={classes}; give n >= 0 samples and at least 1 class")
    return max(0, min(200, max(5, n // (2 * classes)), n - 1))


def find_neighbours(
    embeddings: Floats | Sequence[Floats],
    k: int,
    *,
    include_self: bool = False,
    exact_limit: int = 1_000_000,
    device: str = "cpu",
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Neighbours:
    """The k nearest rows of every row by cosine; equal similarities come in the order of their indices.

    embeddings: (N, d), any float type, or a sequence of row blocks.  A row without a direction (see `unit_rows`)
        neither searches nor is found: its list is -1.  Lists that run out of rows end in -1.
    k: at most N - 1 columns are returned (N with `include_self`).
    include_self: the first column is the row itself, so that k - 1 others follow.
    exact_limit: up to so many rows the search is exact; beyond, an inverted file is probed until its recall on a
        sample of rows reaches 0.95, and the recall reached is returned.
    device: "cpu"; "cuda" or "cuda:1" with a GPU build of faiss; "auto" takes the GPUs where faiss has some.
    progress: called with (rows done, rows in all).

    Identical rows are searched once and listed by index, and an exact search measures nearly equal cosines again (see
    `near_ties`), so no list depends on how faiss orders them or on k.  Memory: the distinct rows in float32 plus the
    result, 8 k bytes per row.

    >>> found = find_neighbours(np.array([[1., 0.], [1., .1], [0., 1.], [1., 0.]]), k=2)
    >>> found.indices.tolist()
    [[3, 1], [0, 3], [1, 0], [0, 1]]
    """
    if k < 1:
        raise ConfigError(f"k={k} asks for no neighbours; give k >= 1, such as default_k(n, classes)")
    rows = RowBlocks(embeddings)
    total = len(rows)
    index = NearestIndex(rows, exact=total <= exact_limit, device=device, seed=seed)
    bank = _fill(index, rows)
    others = min(k, total) - 1 if include_self else min(k, max(total - 1, 0))
    columns = others + include_self
    indices = np.full((total, columns), -1, dtype=np.int32 if total < 2**31 else np.int64)
    similarities = np.full((total, columns), np.nan, dtype=np.float32)
    recall = index.tune(min(others + 1, len(bank.first)), rows, bank.first)

    done = total - len(bank.members)
    for start in range(0, len(bank.first), QUERIES):
        if index.kind == "flat":
            queries = index.stored()[start : start + QUERIES]
        else:
            queries, _ = unit_rows(rows.take(bank.first[start : start + QUERIES]))
        listed, similarity = _candidates(index, bank, queries, others)
        # Every row that shares a searched row gets its list, less itself.
        mine = bank.members[bank.starts[start] : bank.starts[min(start + QUERIES, len(bank.first))]]
        for begin in range(0, len(mine), QUERIES):
            row = mine[begin : begin + QUERIES]
            which = bank.group[row] - start
            near, cosine = without_self(row, listed[which], similarity[which])
            width = min(others, near.shape[1])
            indices[row, columns - others : columns - others + width] = near[:, :width]
            similarities[row, columns - others : columns - others + width] = cosine[:, :width]
            if include_self:
                indices[row, 0], similarities[row, 0] = row, 1.0
            done += len(row)
            if progress is not None:
                progress(done, total)
    similarities[indices < 0] = np.nan
    return Neighbours(indices, similarities, recall, index.kind)


def _fill(index: NearestIndex, rows: RowBlocks) -> Bank:
    """Add every distinct valid row to the index, once."""
    group = np.full(len(rows), -1, dtype=np.int64)
    known: dict[bytes, int] = {}
    first: list[int] = []
    for start, block in rows.chunks(QUERIES):
        unit, valid = unit_rows(block)
        fresh = []
        for at, digest in enumerate(identical_rows(unit)):
            if not valid[at]:
                continue
            number = known.setdefault(digest, len(first))
            if number == len(first):
                first.append(start + at)
                fresh.append(at)
            group[start + at] = number
        if fresh:
            index.add(unit if len(fresh) == len(unit) else unit[fresh])
    members = np.argsort(group, kind="stable")[np.count_nonzero(group < 0) :]
    starts = np.searchsorted(group[members], np.arange(len(first) + 1))
    return Bank(group, np.array(first, dtype=np.int64), members, starts)


def _candidates(index: NearestIndex, bank: Bank, queries: Float32, others: int) -> Found:
    """(Q, w) rows nearest to each query and their cosines: itself and the others."""
    width, distinct = min(others + 1, len(bank.members)), min(others + 1, len(bank.first))
    if index.kind == "flat":
        return expand_in_order(bank, *exact_top(index.search, queries, distinct, index.stored()), width)
    listed, similarity = expand(bank, *index.search(queries, distinct), width)
    return order_ties(listed, similarity), similarity


def near_duplicates(neighbours: Neighbours, threshold: float = 0.98, links: int = LINKS) -> Index:
    """(N,) int64: the lowest row that each row is a near duplicate of, -1 for rows that are nobody's (or the lowest).

    Two rows are linked when one lists the other with a cosine of at least `threshold`; duplicates are the connected
    parts, so a chain of small changes is one part.  Copies beyond k are still linked, since lists prefer low indices.
    About `links` of them are held at a time.

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
