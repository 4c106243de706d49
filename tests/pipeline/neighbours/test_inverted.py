"""The inverted index: on a GPU that is played, and on a disk that is full."""

import errno
from pathlib import Path

import faiss
import numpy as np
import pytest

from noisegate.pipeline.neighbours.inverted import InvertedIndex, write_index

from .embedding_files import clustered
from .gpu_faiss import GpuFaiss


def test_an_inverted_file_on_a_gpu_lists_what_the_cpu_lists() -> None:
    rows = clustered(2000, 8)
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(8), 8, 20, faiss.METRIC_INNER_PRODUCT)
    index.train(rows)
    index.add(rows)
    played = GpuFaiss()
    here = InvertedIndex(faiss, index, 4).nearest(rows[:50], 6)
    there = InvertedIndex(played, index, 4, gpus=[0]).nearest(rows[:50], 6)
    np.testing.assert_array_equal(here[0], there[0])
    assert (played.copied, played.set) == ([("one", 0)], [("nprobe", 4)])


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
