"""Exact lists of a part on CPU and, with a GPU that is played, on GPUs; ties as wide as they come."""

import errno
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from noisegate.pipeline.neighbours.part import STREAMED, ExactPart, InvertedPart, StreamedPart, write_index
from noisegate.pipeline.runs.rows import top_by_value
from tests.pipeline.neighbours.test_graph import signs

from .embedding_files import clustered


class OnGpu:
    """An index that answers as one on a GPU does: no list longer than 2048."""

    def __init__(self, index: Any) -> None:
        self.index, self.asked = index, 0

    def search(self, queries: Any, k: int) -> Any:
        assert k <= 2048
        self.asked += 1
        return self.index.search(queries, k)


class GpuFaiss:
    """faiss with as many GPUs as one likes."""

    def __init__(self) -> None:
        self.copied: list[tuple[str, Any]] = []
        self.set: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(faiss, name)

    class StandardGpuResources:
        pass

    class GpuClonerOptions:
        useFloat16 = True

    class GpuMultipleClonerOptions(GpuClonerOptions):
        shard = False

    def index_cpu_to_gpu(self, resources: Any, gpu: int, index: Any, options: Any) -> OnGpu:
        assert isinstance(resources, self.StandardGpuResources)
        assert not options.useFloat16
        self.copied.append(("one", gpu))
        return OnGpu(index)

    def index_cpu_to_gpus_list(self, index: Any, co: Any, gpus: list[int]) -> OnGpu:
        assert co.shard
        assert not co.useFloat16
        self.copied.append(("several", gpus))
        return OnGpu(index)

    def GpuParameterSpace(self) -> Any:
        played = self

        class Space:
            def set_index_parameter(self, index: OnGpu, name: str, value: int) -> None:
                played.set.append((name, value))
                setattr(index.index, name, value)

        return Space()


@pytest.mark.parametrize("gpus", [[], [1], [0, 1]])
def test_ties_wider_than_the_list_take_the_lower_number(gpus: list[int]) -> None:
    rows = signs(np.random.default_rng(0), 3000, width=4) / np.float32(2)  # 16 kinds of rows: ties of about 190
    played = GpuFaiss()
    number, cosine = ExactPart(played, rows, gpus).nearest(rows[:40], 7)
    every = rows[:40] @ rows.T
    assert number.tolist() == top_by_value(every, 7).tolist()
    assert cosine.tolist() == np.take_along_axis(every, number, axis=1).tolist()
    assert played.copied == ([] if not gpus else [("one", 1)] if len(gpus) == 1 else [("several", [0, 1])])


def test_a_tie_wider_than_a_gpu_lists_is_found_on_the_cpu() -> None:
    rows = np.tile(np.eye(2, dtype=np.float32), (2500, 1))
    number, _ = ExactPart(GpuFaiss(), rows, [0]).nearest(rows[:3], 4)
    assert number.tolist() == [[0, 2, 4, 6], [1, 3, 5, 7], [0, 2, 4, 6]]


def test_an_inverted_file_on_a_gpu_lists_what_the_cpu_lists() -> None:
    rows = clustered(2000, 8)
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(8), 8, 20, faiss.METRIC_INNER_PRODUCT)
    index.train(rows)
    index.add(rows)
    played = GpuFaiss()
    here = InvertedPart(faiss, index, 4).nearest(rows[:50], 6)
    there = InvertedPart(played, index, 4, gpus=[0]).nearest(rows[:50], 6)
    np.testing.assert_array_equal(here[0], there[0])
    assert (played.copied, played.set) == ([("one", 0)], [("nprobe", 4)])


def test_a_part_that_is_streamed_lists_what_all_of_it_lists() -> None:
    count = STREAMED + 3
    rows = signs(np.random.default_rng(0), count, width=4) / np.float32(2)
    streamed = StreamedPart(faiss, lambda start, stop: rows[start:stop], count)
    number, cosine = streamed.nearest(rows[-2:], 6)
    every = rows[-2:] @ rows.T
    assert number.tolist() == top_by_value(every, 6).tolist()
    assert cosine.tolist() == np.take_along_axis(every, number, axis=1).tolist()


class FullDisk:
    """faiss on a disk that has room for the first bytes of a file."""

    def __init__(self, words: str) -> None:
        self.words = words

    def write_index(self, index: object, name: str) -> None:
        Path(name).write_bytes(b"first")
        raise RuntimeError(f"Error in void faiss::write_index: write error in {name}: 5 != 768000 ({self.words})")


def test_a_full_disk_is_one_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="part") as raised:
        write_index(FullDisk("No space left on device"), None, tmp_path / "part")
    assert raised.value.errno == errno.ENOSPC
    with pytest.raises(RuntimeError, match="Input/output error"):
        write_index(FullDisk("Input/output error"), None, tmp_path / "part")
    assert list(tmp_path.iterdir()) == []
