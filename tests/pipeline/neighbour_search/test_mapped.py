"""Rows on disk: read as one matrix, with few files open at a time."""

import os
import resource
from pathlib import Path

import numpy as np

from pipeline.neighbour_search.mapped import MAPS, MappedRows

from .embedding_files import clustered, stored


def test_more_files_than_a_process_may_open(tmp_path: Path) -> None:
    one = stored(tmp_path, clustered(3, 4)).files[0]
    rows = MappedRows([one], "image").take(np.arange(3))
    names = [str(tmp_path / f"link-{i}") for i in range(2 * MAPS)]
    for name in names:
        os.link(one, name)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (MAPS + 100, before[1]))
    try:
        mapped = MappedRows(names, "image")
        assert np.array_equal(mapped.take(np.arange(6 * MAPS)), np.tile(rows, (2 * MAPS, 1)))
        assert np.array_equal(mapped.take(np.arange(1, 6 * MAPS, 3)), np.tile(rows[1], (2 * MAPS, 1)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
