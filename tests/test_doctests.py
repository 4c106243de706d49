"""Run the examples in every docstring of the package."""

import doctest
import importlib
from pathlib import Path

import pytest

from tests.commands import ROOT

FOLDERS = ("noisegate", "pipeline", "service", "trainers")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts if parts[0] == "noisegate" else ("noisegate", *parts))


MODULES = sorted(
    module_name(path)
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if path.name != "__main__.py" and ">>>" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    assert Path(module.__file__ or "").is_relative_to(ROOT)
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0
