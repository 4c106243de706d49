"""The neighbour graph of a run, kept in its folder and reused while nothing changed."""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open

from noisegate.pipeline.runs.mapped_rows import MappedRows
from noisegate.pipeline.runs.table import RunFolder, read_metadata, search_folder

from .disk_search import NeighbourSearch, find_neighbours_on_disk
from .graph import Neighbours

ROWS_AT_ONCE = 16_384  # rows that are hashed at a time


def find_or_build_graph(
    run: RunFolder,
    stems: Sequence[str],
    rows: MappedRows,
    k: int,
    device: str,
    search: NeighbourSearch | None,
    note: Callable[[str], None],
) -> Neighbours:
    """Load the k-nearest-neighbour graph of the run's rows, or search it; a search that was stopped goes on.

    A kept graph of an exact search with a larger k serves too: its lists begin with those of the smaller k.
    """
    search = search or NeighbourSearch()
    k = min(k, max(1, len(rows) - 1))
    path = run.path / ("neighbours.safetensors" if rows.tensor == "image" else "text_neighbours.safetensors")
    shards = {stem: read_metadata(run.table(stem))["shard"] for stem in stems}
    kept = _read_facts(path)
    lengths = [k, kept.k] if kept and kept.kind == "flat" and kept.k > k else [k]
    digests = [hashlib.sha256(json.dumps([shards, length], sort_keys=True).encode()) for length in lengths]
    for _, block in rows.chunks(ROWS_AT_ONCE):
        for digest in digests:
            digest.update(block.data)
    if search.index != "auto":
        for digest in digests:
            digest.update(search.index.encode())
    name = "neighbours" if rows.tensor == "image" else "neighbours of texts"
    if kept and kept.made_from == digests[-1].hexdigest():
        note(f"{name}: the graph is there already")
        shutil.rmtree(search_folder(path), ignore_errors=True)  # left if the search was killed after its last step
        return nearest(Neighbours.load(path), k)
    note(f"{name}: searching {len(rows):,} rows, k = {k}")
    made_from = digests[0].hexdigest()
    return find_neighbours_on_disk(rows, k, path, made_from=made_from, search=search, device=device, note=note)


def nearest(graph: Neighbours, k: int) -> Neighbours:
    """The same graph with lists cut to the k nearest."""
    return replace(graph, indices=graph.indices[:, :k], similarities=graph.similarities[:, :k])


class _Facts(NamedTuple):
    """What a graph's file was made from, by which kind of index, and the length of its lists."""

    made_from: str | None
    kind: str | None
    k: int


def _read_facts(path: Path) -> _Facts | None:
    """None if there is no complete graph."""
    try:
        with safe_open(path, framework="numpy") as file:
            facts = file.metadata() or {}
            return _Facts(facts.get("made_from"), facts.get("kind"), file.get_slice("indices").get_shape()[1])
    except (OSError, SafetensorError):
        return None
