"""The README's code and commands run, and its table of columns is the schema's."""

import re
import runpy
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from pipeline.cli import app
from pipeline.table import COLUMNS
from tests.commands import called

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


COMMANDS = [
    shlex.split(line, comments=True)[1:]
    for block in re.findall(r"^```\w*\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
    if line.startswith("noisegate ")
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_are_ones_that_the_program_takes(words: list[str]) -> None:
    known = get_command(app).commands  # type: ignore[attr-defined]
    known[words[0]].make_context(words[0], words[1:])  # raises where an option or a value does not exist


def test_known_mistakes_are_found_with_the_commands_shown(tmp_path: Path) -> None:
    start = next(i for i, words in enumerate(COMMANDS) if words[0] == "scenes")
    flow = COMMANDS[start : start + 4]
    assert [words[0] for words in flow] == ["scenes", "noise", "annotate", "evaluate"]
    for words in flow:
        done = called(*("80" if word == "2000" else word for word in words), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert "80 pairs" in done.stdout
    assert "Mean Noise Rank" in done.stdout
