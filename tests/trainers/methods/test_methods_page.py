"""docs/methods.md has a row for every method, whose switches exist."""

import re
from pathlib import Path

import pytest

from noisegate.trainers.methods import METHODS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "methods.md"
SECTION = PAGE.read_text(encoding="utf-8").partition("## Every method in a line")[2].partition("\n## ")[0]
ROWS = {
    row[0]: row[1:] for row in re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \| (.+) \| (.+) \|$", SECTION, re.MULTILINE)
}


@pytest.mark.parametrize("name", METHODS)
def test_a_row(name: str) -> None:
    _, switches, *_ = ROWS[name]
    named = set(re.findall(r"`(\w+)`", switches))
    assert named <= set(METHODS[name].Config.model_fields)
    assert named or switches == "none"
