"""The README's code and commands run, and its tables are those of the schema and of the benches."""

import re
import runpy
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from noisegate.pipeline.cli.commands import app
from noisegate.service.app import create_app
from noisegate.service.settings import load_settings
from tests.commands import FAKE, called
from tests.fakes import picture
from tests.service.fakes import FakeEngine
from tests.service.live import serving

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_columns_are_those_of_the_schema() -> None:
    expected = runpy.run_path(str(ROOT / "benchmarks" / "readme.py"))["columns"]()
    assert expected in README, "run: python benchmarks/readme.py"


def test_results_are_those_of_the_bench() -> None:
    """The figures, and that docs/results.md says the same of each."""
    expected = runpy.run_path(str(ROOT / "benchmarks" / "readme.py"))["results"]()
    assert expected in README, "run: python benchmarks/readme.py results"
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for line in expected.splitlines()[2:]:
        method, _, *figures = (cell.strip(" `") for cell in line.strip("|").split("|"))
        known = {
            cell.split(" ±")[0]
            for row in re.findall(rf"^\| {method} \| (.*)$", page, re.MULTILINE)
            for cell in row.split(" | ")
        }
        assert set(figures) - {"–"} <= {cell.strip(" |") for cell in known}, line


@pytest.mark.parametrize(
    "block",
    [b for b in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if not re.search("tables|weighted|http://", b)],
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


def test_the_client_shown_scores_a_picture_and_a_broken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    block = next(b for b in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "http://" in b)
    (tmp_path / "photo.jpg").write_bytes(picture("red", kind="JPEG"))
    (tmp_path / "broken.jpg").write_bytes(picture("red", kind="JPEG")[:100])
    monkeypatch.chdir(tmp_path)
    with serving(create_app(load_settings(model=FAKE[1], beta="fixed:0.4"), FakeEngine())) as url:
        exec(compile(block.replace("http://127.0.0.1:8765", url), "README.md", "exec"), {})
    first, second = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"ok 0\.\d+ 0\.\d+ None", first)
    assert second == "bad_image None None None"
