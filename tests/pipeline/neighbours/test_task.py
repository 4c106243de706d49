"""A task in a process of its own: what it takes of the memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import ROOT

ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}
BUILD = """
import re, sys, threading
from pathlib import Path
import faiss
import numpy as np
from noisegate.pipeline.neighbours.distinct import find_distinct
from noisegate.pipeline.neighbours.plan import Plan
from noisegate.pipeline.neighbours import Task
from noisegate.pipeline.neighbours.task import run_task
from tests.pipeline.neighbours.embedding_files import stored

def anonymous():
    return 1024 * int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

folder, count, width, cells = Path(sys.argv[1]), 35_000, 256, 500
rng = np.random.default_rng(0)
rows = stored(folder / "rows", rng.standard_normal((count, width), np.float32))
find_distinct(rows, folder, 10**9)
shapes = tuple(rows.shapes)
Plan("rows", "image", tuple(rows.files), shapes, width, count, 6, "ivf", 35_840, 4096, 0, "cpu", 0).save(folder)
quantiser = faiss.IndexFlatIP(width)
quantiser.add(rng.standard_normal((cells, width), np.float32))
index = faiss.IndexIVFFlat(quantiser, width, cells, faiss.METRIC_INNER_PRODUCT)
index.is_trained = True
faiss.write_index(index, str(folder / "trained.faiss"))
peak, done = 0, threading.Event()

def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, anonymous())

watching = threading.Thread(target=watch)
before = anonymous()
watching.start()
run_task(Task(str(folder), "build", 0))
done.set()
watching.join()
built = faiss.read_index(str(folder / "part-00000.faiss"))
assert built.ntotal == count
print(peak - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_inverted_file_takes_the_memory_of_its_rows_while_it_is_built(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUILD, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=ONE_THREAD)
    rows, a_thread = 35_000 * (4 * 256 + 8), 4 * 4096 * 1024 + 4096 * (8 * 256 + 36 * 6 + 96)  # as `cut` counts them
    assert 0.8 * rows < int(done.stdout) < rows + a_thread
