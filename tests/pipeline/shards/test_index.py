"""Reading at a place in a file: the way without pread gives the same bytes as pread."""

import os
from pathlib import Path

import pytest

from noisegate.pipeline.shards import index as tar_index


@pytest.mark.parametrize(("size", "offset"), [(10, 0), (1, 99), (50, 80), (5, 100), (0, 3)])
def test_seeking_reads_what_pread_reads(size: int, offset: int, tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(100)))
    file = os.open(path, os.O_RDONLY)
    try:
        assert tar_index._seek_and_read(file, size, offset) == bytes(range(100))[offset : offset + size]
        assert tar_index._read_at(file, size, offset) == bytes(range(100))[offset : offset + size]
    finally:
        os.close(file)
