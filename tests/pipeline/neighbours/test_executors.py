"""The same tasks by processes of this machine and on a Ray of this machine."""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from noisegate.pipeline.cli.options import neighbour_search
from noisegate.pipeline.errors import LockedError
from noisegate.pipeline.neighbours import NeighbourSearch, Task, find_neighbours_on_disk, process_executor, ray_executor
from noisegate.pipeline.neighbours.executors import run_alone
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
