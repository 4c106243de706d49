"""What Ctrl-C says: each command what is true of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from noisegate.pipeline.cli.commands import STARTS_OVER, STOPPED
from noisegate.pipeline.cli.help_layout import GROUPS
from tests.commands import called
from tests.fakes import ColourModel, pairs, write_tar


class Interrupted(ColourModel):
    """Somebody presses Ctrl-C while it encodes."""

    def encode_images(self, images: Any) -> Any:
        raise KeyboardInterrupt


ARGUMENTS: dict[str, Callable[[Path], list[str]]] = {
    "annotate": lambda out: ["--out", str(out), "--workers", "0"],
    "calibrate": lambda out: [],
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_only_a_command_that_goes_on_says_so(name: str, tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", pairs(6))
    model = ["--model", "python:tests.pipeline.cli.test_stopped:Interrupted"]
    done = called(name, tmp_path / "a.tar", *model, *ARGUMENTS[name](tmp_path / "out"), cwd=tmp_path)
    assert done.returncode == 130
    wanted = {
        "annotate": "run the same command again, without --overwrite, and it goes on",
        "calibrate": "run the same command again, and it starts over",
    }
    assert f"stopped: {wanted[name]}\n" in done.stderr


def test_a_command_that_starts_over_never_says_that_it_goes_on() -> None:
    commands = {name for names in GROUPS.values() for name in names}
    assert STOPPED.keys() < commands
    assert "adapt" in commands - STOPPED.keys()
    assert "goes on" not in STARTS_OVER


@pytest.mark.parametrize("name", sorted(STOPPED))
def test_an_option_is_named_only_where_the_command_has_it(name: str, tmp_path: Path) -> None:
    shown = called(name, "--help", cwd=tmp_path).stdout
    assert ("--overwrite" in STOPPED[name]) == ("--overwrite" in shown)
