"""A task in a process of its own: what it takes of the memory."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from noisegate.pipeline.cli.options import neighbour_search
from noisegate.pipeline.errors import LockedError
from noisegate.pipeline.neighbours import NeighbourSearch, Task, find_neighbours_on_disk, process_executor, ray_executor
from noisegate.pipeline.neighbours.task import run_alone
from noisegate.pipeline.runs.lock import folder_lock
from tests.commands import ROOT
from tests.errors import refused

from .embedding_files import clustered, cut_at, stored


def graph_of(folder: Path, name: str, search: NeighbourSearch) -> bytes:
    files = stored(folder / "rows", clustered(3000, 64), [1000])
    find_neighbours_on_disk(files, 6, folder / name, made_from="rows", search=search)
    return (folder / name).read_bytes()


def test_processes_find_what_one_finds(tmp_path: Path) -> None:
    alone = graph_of(tmp_path, "alone", NeighbourSearch())
    with process_executor(2) as run:
        assert graph_of(tmp_path, "pool", NeighbourSearch(run=run, cut=cut_at(1024, 4096), at_once=2)) == alone
        with refused("engine", "ray"):
            list(run([Task(str(tmp_path), "exact", 0)]))


def test_processes_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import signal\n"
        "from pathlib import Path\n"
        "from noisegate.pipeline.neighbours import process_executor\n"
        "from noisegate.pipeline.neighbours import Task\n"
        "if __name__ == '__main__':\n"
        "    task = Task(str(Path(__file__).parent), 'exact', 0)\n"
        "    (Path(__file__).parent / task.name).touch()\n"
        "    with process_executor(1) as run:\n"
        "        print(*run([task]), flush=True)\n"
        "        signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Task(")
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)  # its worker holds the other end of this pipe: it ends when that has gone


def test_two_workers_on_ray_find_what_one_process_finds(tmp_path: Path) -> None:
    with ray_executor("local", cpus=1) as run:
        found = graph_of(tmp_path, "ray", NeighbourSearch(run=run, cut=cut_at(1024, 4096)))
        with refused("engine", "ray") as raised:
            list(run([Task(str(tmp_path), "exact", 0)]))
    assert len(str(raised.value).splitlines()) == 1
    assert found == graph_of(tmp_path, "alone", NeighbourSearch())


def test_tasks_on_ray_are_alone_on_their_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen: list[Task] = []

    def run(task: Task) -> Task:
        (place,) = tmp_path.iterdir()
        with pytest.raises(LockedError), folder_lock(place):
            pass
        seen.append(task)
        return task

    task = Task(str(tmp_path), "exact", 0)
    assert run_alone(task, run) == task == seen[0]
    with folder_lock(next(tmp_path.iterdir())):  # and the next may follow
        pass


def test_options_that_do_not_fit_are_named() -> None:
    for setting, value, options in (
        ("engine", "slurm", ("slurm", None, None, "auto", 1)),
        ("address", "auto", ("local", "auto", None, "auto", 1)),
        ("neighbour-workers", 3, ("ray", None, None, "auto", 3)),
        ("neighbour-workers", 0, ("local", None, None, "auto", 0)),
        ("neighbour-memory", "much", ("local", None, "much", "auto", 1)),
        ("neighbour-index", "tree", ("local", None, None, "tree", 1)),
    ):
        with refused(setting, value), neighbour_search(*options):  # type: ignore[arg-type]
            pass
    with neighbour_search("local", None, "2GB", "ivf", 1) as search:
        assert (search.memory, search.index, search.at_once) == (2_000_000_000, "ivf", 1)


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
