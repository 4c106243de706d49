"""noisegate works in a repository that has packages called pipeline, service and trainers of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import ROOT, command


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A folder with packages of the same names; importing any of their modules ends the process."""
    for name in ("pipeline", "service", "trainers"):
        package = tmp_path / name
        package.mkdir()
        (package / "__init__.py").write_text(f"raise SystemExit('imported the wrong {name}')\n")
    return tmp_path


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": ".", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    "arguments", [("--help",), ("serve", "--help"), ("train", "--help"), ("demo", "--count", "40", "--out", "demo")]
)
def test_the_commands(repository: Path, arguments: tuple[str, ...]) -> None:
    started = command(*arguments)
    done = subprocess.run(
        started["args"], cwd=repository, env=environment(), capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_python_and_its_worker_processes(repository: Path) -> None:
    """Decode workers and loaders start from a fresh interpreter: they find noisegate's modules, and do not run the script."""
    script = repository / "script.py"
    script.write_text(
        "import noisegate as ng\n"
        "from noisegate import METHODS, WeightedShards, annotate, read_table, weighted\n"
        "from noisegate.pipeline.datasets.scenes import write_scenes\n"
        "from pathlib import Path\n"
        "write_scenes(Path('scenes'), 40, 2, seed=1, size=32)\n"
        "annotate('scenes/*.tar', 'tables', workers=1)\n"
        "batches = list(WeightedShards('scenes', 'tables', batch_size=20, workers=1))\n"
        "print(len(read_table('tables')), len(batches), sorted(METHODS)[0], ng.weighted is weighted)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], cwd=repository, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["40", "2", "aum", "True"]


def test_python_m(repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "noisegate", "--version"],
        cwd=repository,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("noisegate")


def test_the_repository_folder_itself() -> None:
    """After `pip install .` Python started in the repository finds its folder `noisegate/` first; it must be whole."""
    code = (
        "import sys; sys.meta_path[:] = [finder for finder in sys.meta_path if 'editable' not in repr(finder).lower()]\n"
        "import noisegate.pipeline.errors, noisegate.service.errors, noisegate; print(noisegate.osa_weight(0.5, 0.1) > 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr
