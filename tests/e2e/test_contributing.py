"""CONTRIBUTING and its pages: every command and code block in them is carried out."""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import yaml

from noisegate import read_table
from tests.commands import called
from tests.jobs import score

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "contributing"


def blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (PAGES / name).read_text(encoding="utf-8"), re.DOTALL)


def command(name: str) -> list[str]:
    """The one command line of a page, as words."""
    [line] = re.findall(r"^```\nnoisegate (.*)\n```", (PAGES / name).read_text(encoding="utf-8"), re.MULTILINE)
    return shlex.split(line)


def test_an_estimator(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [module] = blocks("estimator.md")
    (tmp_path / "thumbnails.py").write_text(module, encoding="utf-8")
    shards.rename(tmp_path / "data")
    monkeypatch.syspath_prepend(str(tmp_path))
    done = called(*command("estimator.md"), "--workers", "0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = read_table(tmp_path / "tables").to_pylist()
    assert len(rows) == 18
    made = runpy.run_path(str(tmp_path / "thumbnails.py"))["make"]()
    names = ("red", "orange", "yellow", "green", "blue", "purple", "white", "gray", "black", "brown")
    texts = [f"number {int(row['key'])} is {names[int(row['key']) % 10]}" for row in rows]
    embedded = made.encode_texts(texts)
    reds = [row["similarity"] for row, text in zip(rows, texts, strict=True) if "is red" in text]
    assert min(reds) > 0.95, "a red picture and the word red"
    assert embedded.shape == (18, 4)


def test_a_score(shards: Path, tmp_path: Path) -> None:
    """The page's three changes made to a copy of the package, which is then used."""
    function, columns, register, test = blocks("score.md")
    shutil.copytree(ROOT / "noisegate", tmp_path / "noisegate", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("pipeline", "service", "trainers"):
        unwanted = shutil.ignore_patterns("__pycache__", "*.safetensors")
        shutil.copytree(ROOT / folder, tmp_path / "noisegate" / folder, ignore=unwanted)
    package = tmp_path / "noisegate" / "pipeline"
    (package / "methods" / "rank.py").write_text(function, encoding="utf-8")
    (tmp_path / "test_rank.py").write_text(
        f"from noisegate.pipeline.methods.rank import np, rank_columns\n\n\n{test}", "utf-8"
    )
    put_after(package / "runs" / "table.py", r"METHOD_COLUMNS: .* = {\n", columns)
    put_after(package / "methods" / "columns.py", r"METHODS = .*\n", register)
    score(shards, tmp_path / "tables")

    program = f"""
import doctest
from noisegate import read_table
from noisegate.pipeline.cli.commands import app
from noisegate.pipeline.methods import rank
import test_rank
assert doctest.testmod(rank) == (0, 1)
test_rank.test_rank_share_is_that_of_a_plain_loop()
app({command("score.md")!r}, standalone_mode=False)
app(["export", "tables", "--as", "keys", "--where", "rank_share > 0.9", "--out", "keys.txt"], standalone_mode=False)
print("SHARES", *read_table("tables", columns=["rank_share"])["rank_share"].to_pylist())
"""
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shares = np.array(done.stdout.splitlines()[-1].split()[1:], float)
    assert shares.shape == (18,)
    assert shares.min() >= 0 and shares.max() == 1 and shares.mean() > 0.5
    assert (tmp_path / "keys.txt").read_text(encoding="utf-8").count("\n") == (shares > 0.9).sum()


def put_after(path: Path, line: str, text: str) -> None:
    """Insert `text` into a file behind the one line that matches."""
    before = path.read_text(encoding="utf-8")
    after, count = re.subn(line, lambda found: found[0] + text, before)
    assert count == 1, f"{path.name} has changed: {line}"
    path.write_text(after, encoding="utf-8")


def test_commands_that_contributing_names_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    targets = re.findall(r"^make ([\w-]+)", text, re.MULTILINE)
    rules = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert targets == ["setup", "test", "check", "docs", "docker-check", "wheel-check", "lock", "audit"]
    assert set(targets) <= set(rules)
    for path in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / path).is_file(), path
    for name in re.findall(r"`((?:pipeline|trainers|tests|service|docker|benchmarks)/[\w./]*)`", text):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("page", ["estimator.md", "score.md", "method.md"])
def test_files_that_the_pages_name_are_there(page: str) -> None:
    named = re.findall(r"`((?:pipeline|trainers|tests)/[\w./]*)`", (PAGES / page).read_text(encoding="utf-8"))
    assert named
    assert all((ROOT / name).exists() for name in named)


def test_the_workflow_runs_what_must_pass() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    steps = workflow["jobs"]["run"]["steps"]
    assert steps[-1] == {"run": "bash .ci/run"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f">={steps[1]['with']['python-version']}" == project["requires-python"]


def test_the_change_log_begins_with_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    first = re.search(r"^## (\S+?)(?:,| |$)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert first is not None
    assert first[1] == project["version"]
