"""`make check` fails when a layer is crossed, and service and trainers enter pipeline by its front doors."""

import ast
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import ROOT

LINTER = Path(sys.executable).with_name("lint-imports")
PACKAGES = ("pipeline", "service", "trainers")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package as it is installed, to add a forbidden import to."""
    folder = tmp_path / "noisegate"
    without_caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "noisegate", folder, ignore=without_caches)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=without_caches)
    return folder


def lint(package: Path) -> "subprocess.CompletedProcess[str]":
    command = [str(LINTER), "--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    return subprocess.run(
        command, cwd=package.parent, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize(
    ("module", "imported", "contract"),
    [
        ("pipeline/shards/read.py", "noisegate.pipeline.runs.table", "layers of pipeline"),
        ("pipeline/errors.py", "noisegate.service.errors", "pipeline stands alone"),
        ("service/errors.py", "noisegate.service.app", "layers of service"),
        ("trainers/losses.py", "noisegate.trainers.train", "layers of trainers"),
    ],
)
def test_a_forbidden_import_is_named(package: Path, module: str, imported: str, contract: str) -> None:
    path = package / module
    path.write_text(f"{path.read_text(encoding='utf-8')}\nimport {imported}  # noqa\n", encoding="utf-8")
    done = lint(package)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{contract} BROKEN" in done.stdout
    assert f"-> {imported}" in " ".join(done.stdout.split())


def test_as_it_is_no_layer_is_crossed(package: Path) -> None:
    done = lint(package)
    assert done.returncode == 0, done.stdout


def _imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module and not node.level
    }


@pytest.mark.parametrize("name", ["service", "trainers"])
def test_others_enter_pipeline_by_its_front_doors(name: str) -> None:
    """Imports of `noisegate.pipeline` name a package, or a module at its top; only commands share the modules of `cli`."""
    deep = {
        f"{path.relative_to(ROOT)}: {module}"
        for path in (ROOT / name).rglob("*.py")
        for module in _imports(path)
        if module.startswith("noisegate.pipeline.")
        and not module.startswith("noisegate.pipeline.cli.")
        and not (ROOT / module.removeprefix("noisegate.").replace(".", "/")).is_dir()
        and module.count(".") > 2
    }
    assert not deep


@pytest.mark.parametrize("stub", sorted(ROOT.glob("pipeline/**/__init__.pyi")), ids=lambda stub: stub.parent.name)
def test_every_name_at_a_front_door_is_there(stub: Path) -> None:
    package = importlib.import_module(".".join(("noisegate", *stub.parent.relative_to(ROOT).parts)))
    assert package.__all__
    for name in package.__all__:
        assert not (stub.parent / f"{name}.py").exists(), f"{name} is a module and a name of it"
        assert getattr(package, name) is not None
