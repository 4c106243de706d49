"""The README's code runs, and its table of columns is the schema's."""

import re
import runpy
from pathlib import Path

import pytest

from pipeline.cli import app
from pipeline.table import COLUMNS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_columns_are_those_of_the_schema() -> None:
    expected = runpy.run_path(str(ROOT / "benchmarks" / "readme.py"))["columns"]()
    assert expected in README, "run: python benchmarks/readme.py"
    assert all(f"| {name} |" in README for name in COLUMNS)


@pytest.mark.parametrize(
    "block", [b for b in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "tables" not in b]
)
def test_python_blocks_run(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out


def test_commands_exist() -> None:
    known = {command.name for command in app.registered_commands}
    used = set(re.findall(r"^noisegate (\S+)", README, re.MULTILINE))
    assert used and used <= known
