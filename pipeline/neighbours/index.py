"""A faiss index of unit rows: exact, or an inverted file with its recall measured; on CPU or GPU."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.runs.rows import RowBlocks, unit_rows
from noisegate.pipeline.system.array_types import Float32, Index

from .lists import Found

__all__ = ["NearestIndex", "gpu_numbers", "share_found", "to_gpus"]

RECALL = 0.95
RECALL_SAMPLE = 1000
GPU_LIMIT = 2048  # the longest list, and the most probes, that faiss can handle on a GPU


class NearestIndex:
    """Rows are added in order and found by their number."""

    kind: Literal["flat", "ivf"]

    def __init__(self, rows: RowBlocks, exact: bool, device: str, seed: int) -> None:
        import faiss

        self.gpus = gpu_numbers(device)
        self.seed = seed
        self.index: Any = faiss.IndexFlatIP(rows.width)
        self.kind = "flat"
        self.searcher: Any = None
        if not exact:
            self._train(faiss, rows)

    def _train(self, faiss: Any, rows: RowBlocks) -> None:
        """4 sqrt(N) cells, learnt from 40 rows each (faiss asks for 39); stays exact where no sampled row is valid."""
        total = len(rows)
        cells = max(1, min(int(4 * total**0.5), total // 40))
        picked = np.random.default_rng(self.seed).choice(total, size=min(total, 40 * cells), replace=False)
        unit, valid = unit_rows(rows.take(np.sort(picked)))
        if not valid.any():
            return
        cells = max(1, min(cells, int(valid.sum()) // 40))
        self.kind = "ivf"
        self.quantiser = self.index  # faiss keeps a bare pointer to it
        self.index = faiss.IndexIVFFlat(self.quantiser, rows.width, cells, faiss.METRIC_INNER_PRODUCT)
        self.index.cp.seed = self.seed
        self.index.train(unit[valid])

    def add(self, unit: Float32) -> None:
        self.index.add(unit)

    def tune(self, k: int, rows: RowBlocks, stored: Index) -> float | None:
        """Set the search up for lists of k; the recall of an inverted file, None for an exact index.

        Recall: the share of a sample's k nearest, itself left out, that is found, against probing every cell; a found row
        counts when it is as near as the k-th nearest, so ties do not matter.  Probes double until it reaches 0.95.
        """
        if self.gpus and k + 1 > GPU_LIMIT:
            raise ConfigError(f"k={k} is more than faiss finds on a GPU; give k <= {GPU_LIMIT - 2} or device='cpu'")
        import faiss

        self.searcher = to_gpus(faiss, self.index, self.gpus) if self.gpus else self.index
        if self.kind == "flat" or not len(stored) or not k:
            return None if self.kind == "flat" else 1.0
        size = min(RECALL_SAMPLE, len(stored))
        sample = np.sort(np.random.default_rng(self.seed + 1).choice(stored, size=size, replace=False))
        number = np.searchsorted(stored, sample)
        queries, _ = unit_rows(rows.take(sample))
        cells = int(self.index.nlist)
        self.index.nprobe = cells
        least = self.index.search(queries, k)[0][:, -1] - 1e-6
        probes, recall = min(8, cells), 0.0
        while True:
            self._probe(probes)
            cosine, listed = self.searcher.search(queries, k)
            recall = share_found(number, listed, cosine, least)
            most = min(cells, GPU_LIMIT) if self.gpus else cells
            if recall >= RECALL or probes == most:
                return recall
            probes = min(2 * probes, most)

    def _probe(self, probes: int) -> None:
        if self.gpus:
            import faiss

            faiss.GpuParameterSpace().set_index_parameter(self.searcher, "nprobe", probes)
        else:
            self.searcher.nprobe = probes

    def search(self, queries: Float32, k: int) -> Found:
        """The k nearest, or as many as a GPU lists."""
        cosine, number = self.searcher.search(queries, min(k, GPU_LIMIT) if self.gpus else k)
        np.clip(cosine, -1, 1, out=cosine)
        if self.kind == "ivf":
            cosine[number < 0] = -np.inf
        return number, cosine

    def stored(self) -> Float32:
        """(U, d) the rows of an exact index, as they lie in its memory."""
        import faiss

        count, width = self.index.ntotal, self.index.d
        rows: Float32 = faiss.rev_swig_ptr(self.index.get_xb(), count * width).reshape(count, width)
        return rows


def share_found(own: Index, listed: Index, cosine: Float32, least: Float32) -> float:
    """Recall of lists (Q, k) that may hold the query itself (Q,), which does not count: the share of the k - 1 others.

    least: (Q,) the cosine of the last true one.

    >>> lists, cosines = np.array([[7, 3, 4, 5]]), np.array([[1.0, 0.9, 0.8, 0.2]], np.float32)
    >>> round(share_found(np.array([7]), lists, cosines, np.array([0.5], np.float32)), 3)
    0.667
    """
    others = listed.shape[1] - 1
    if not others:
        return 1.0
    right = ((cosine >= least[:, None]) & (listed != own[:, None])).sum(axis=1)
    return float(np.minimum(right, others).mean() / others)


def gpu_numbers(device: str) -> list[int]:
    """GPU numbers to search on; none for the CPU."""
    import faiss

    kind, _, number = device.partition(":")
    if kind not in {"cpu", "cuda", "auto"} or (number and not (kind == "cuda" and number.isdigit())):
        raise ConfigError(f"device={device!r} is unknown; give 'cpu', 'auto', 'cuda' or 'cuda:0'")
    if kind == "cpu":
        return []
    present = int(faiss.get_num_gpus()) if hasattr(faiss, "get_num_gpus") else 0
    wanted = [int(number)] if number else list(range(present))
    if kind == "cuda" and (not wanted or max(wanted) >= present):
        raise ConfigError(f"device={device!r}, but faiss sees {present} GPUs; install faiss-gpu or give device='auto'")
    return wanted


def to_gpus(faiss: Any, index: Any, gpus: list[int]) -> Any:
    """A copy of the index on a GPU, or with its rows spread over several, searched in full precision."""
    if len(gpus) == 1:
        resources, alone = faiss.StandardGpuResources(), faiss.GpuClonerOptions()
        alone.useFloat16 = False
        copy = faiss.index_cpu_to_gpu(resources, gpus[0], index, alone)
        copy.resources = resources  # faiss keeps a bare pointer to it
        return copy
    options = faiss.GpuMultipleClonerOptions()
    options.shard = True
    options.useFloat16 = False
    return faiss.index_cpu_to_gpus_list(index, co=options, gpus=gpus)
