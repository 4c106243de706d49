"""The wheel holds all that a run needs and nothing else; `make wheel-check` installs and uses it."""

import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("noisegate", "pipeline", "service", "trainers")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy of the sources, so that nothing of an earlier build gets in."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, folder / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*command, "--wheel-dir", "dist", "."], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    [path] = (folder / "dist").glob("*.whl")
    return zipfile.ZipFile(path)


def test_it_is_small(wheel: zipfile.ZipFile) -> None:
    assert wheel.filename is not None
    assert Path(wheel.filename).stat().st_size < 12e6


def test_every_file_of_the_packages_is_in_it(wheel: zipfile.ZipFile) -> None:
    """Code, types, presets, the page, the report's template and the embedded model."""
    wanted = {
        str(Path("noisegate") / path.relative_to(ROOT / "noisegate" if name == "noisegate" else ROOT))
        for name in FOLDERS
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert inside == wanted
    assert {
        "noisegate/py.typed",
        "noisegate/pipeline/estimators/embedded/open_clip_model.safetensors",
        "noisegate/pipeline/inspect/report/template.html",
        "noisegate/pipeline/inspect/report/cards.html",
        "noisegate/pipeline/inspect/notebook.css",
        "noisegate/service/static/index.html",
        "noisegate/trainers/bench/presets/scenes-retrieval.yaml",
    } <= inside


def test_its_metadata(wheel: zipfile.ZipFile) -> None:
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = Parser().parsestr(wheel.read(name).decode())
    assert metadata["Name"] == "noisegate"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra") or ()) >= {"service", "trainers", "ray", "hf", "gpu", "s3", "gs"}
    assert "# noisegate" in metadata.get_payload()
    points = wheel.read(name.replace("METADATA", "entry_points.txt")).decode()
    assert "noisegate = noisegate.pipeline.cli:program" in points
