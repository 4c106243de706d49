"""The page about adding a method: its code is carried out."""

import re
from pathlib import Path
from typing import Any

import pytest

from noisegate import train
from noisegate.trainers.methods import METHODS
from tests.trainers.runs import curve, settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "contributing" / "method.md"


@pytest.mark.usefixtures("one_thread")
def test_a_method(scored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    definition, name, test = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    space: dict[str, Any] = {}
    exec(compile(definition + test, PAGE.name, "exec"), space)
    monkeypatch.setitem(METHODS, "small_loss", METHODS["baseline"])  # so that it is gone again afterwards
    exec(compile(name, PAGE.name, "exec"), space)

    folders = []

    def run(method: dict[str, Any]) -> Path:
        folders.append(Path(train({**settings(scored, tmp_path / "runs"), "method": method}, quiet=True).folder))
        return folders[-1]

    space["test_keeping_all_is_the_baseline"](run, lambda folder: curve(folder, "step", "loss"))
    assert {value for (value,) in curve(folders[-1], "left_out")} == {0.5}
