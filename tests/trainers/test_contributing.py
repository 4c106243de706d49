"""The page about adding a method: its code is carried out."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.runs import curve, settings
from trainers import train
from trainers.methods import METHODS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "contributing" / "method.md"


@pytest.mark.usefixtures("one_thread")
def test_a_method(scored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    definition, name, test = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    space: dict[str, Any] = {}
    exec(compile(definition + test, PAGE.name, "exec"), space)
    monkeypatch.setitem(METHODS, "small_loss", METHODS["baseline"])  # so that it is gone again afterwards
    exec(compile(name, PAGE.name, "exec"), space)

    def run(method: dict[str, Any]) -> Path:
        return Path(train({**settings(scored, tmp_path / "runs"), "method": method}, quiet=True).folder)

    def losses(folder: Path) -> list[tuple[Any, ...]]:
        return curve(folder, "step", "loss")

    space["test_keeping_all_is_the_baseline"](run, losses)
    assert {value for (value,) in curve(run({"name": "small_loss", "keep": 0.5}), "left_out")} == {0.5}
