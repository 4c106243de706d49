"""Rows on disk: read as one matrix, with few files open at a time."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.commands import ROOT
from tests.pipeline.neighbours.embedding_files import clustered, stored


def test_more_files_than_a_process_may_open(tmp_path: Path) -> None:
    one = stored(tmp_path, clustered(3, 4))
    for i in range(300):
        os.link(one.files[0], tmp_path / f"link-{i}")
    code = (
        "import resource, sys; from pathlib import Path; import numpy as np\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))\n"
        "from noisegate.pipeline.runs.rows import MappedRows\n"
        "rows = MappedRows(sorted(map(str, Path(sys.argv[1]).glob('link-*'))), 'image')\n"
        "np.save(sys.argv[1] + '/found', rows.take(np.arange(1, 900, 3)))\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True)
    assert np.array_equal(np.load(tmp_path / "found.npy"), np.tile(one.take(np.arange(3))[1], (300, 1)))
