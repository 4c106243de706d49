"""The part of docker/without_engine.py that reads: what it does with a root is shown by running it."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "docker" / "without_engine.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("without_engine", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def test_lines_are_joined_and_flags_taken_off(script: ModuleType) -> None:
    mounts = ["--mount=type=cache,target=/c", "--mount=type=bind,from=y,source=/s,target=/t"]
    run = " \\\n    ".join(["RUN", *mounts, "one", "# inside\n && two"])
    text = f"ARG A=1\nFROM x AS y\n# a note\n{run}\n"
    found = [(line.word, line.flags, line.rest.split()) for line in script.parse(text)]
    assert found == [
        ("ARG", [], ["A=1"]),
        ("FROM", [], ["x", "AS", "y"]),
        ("RUN", mounts, ["one", "&&", "two"]),
    ]


def test_an_instruction_it_cannot_carry_out_is_refused(script: ModuleType) -> None:
    with pytest.raises(SystemExit, match="ONBUILD is not known here"):
        script.parse("FROM x AS y\nONBUILD RUN z\n")


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_it_knows_every_instruction_of_the_images(script: ModuleType, kind: str) -> None:
    lines = script.parse((ROOT / "docker" / f"Dockerfile.{kind}").read_text(encoding="utf-8"))
    assert sum(line.word == "RUN" for line in lines) == 6
    assert sum(line.word == "FROM" for line in lines) == 4
    for line in lines:
        assert line.word == "FROM" or hasattr(script.Build, f"do_{line.word.lower()}")


def test_variables(script: ModuleType) -> None:
    assert script.filled("${A}-$B/${C}", {"A": "1", "B": "2"}) == "1-2/"
    assert script.words('["python", "-c", "a b"]') == ["python", "-c", "a b"]
    assert script.words("noisegate serve") == ["noisegate", "serve"]


def test_the_context_is_small_and_clean(script: ModuleType, tmp_path: Path) -> None:
    place = script.context(tmp_path)
    names = {path.name for path in place.iterdir()}
    assert names == {
        "pyproject.toml",
        "constraints.txt",
        "README.md",
        "LICENSE",
        "setup.py",
        "noisegate",
        "pipeline",
        "service",
        "trainers",
        "docker",
    }
    files = [path for path in place.rglob("*") if path.is_file()]
    assert not [path for path in files if path.suffix == ".pyc"]
    assert (place / "pipeline" / "estimators" / "embedded" / "open_clip_model.safetensors") in files
    assert sum(path.stat().st_size for path in files) < 20e6
