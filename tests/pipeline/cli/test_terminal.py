"""What comes from data cannot act on the terminal."""

from pathlib import Path

from tests.commands import called
from tests.fakes import picture, write_tar
from tests.jobs import score


def test_control_characters_in_keys_are_shown_escaped(tmp_path: Path) -> None:
    write_tar(tmp_path / "s" / "x.tar", [("a\x1b]0;owned\x07.png", picture()), ("a\x1b]0;owned\x07.txt", b"blue")])
    score(tmp_path / "s", tmp_path / "run")
    done = called("show", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\x1b]" not in done.stdout + done.stderr
    assert r"a\x1b]0;owned\x07" in done.stdout
    missing = called("show", "no\x1b[2Jrun", cwd=tmp_path)
    assert missing.returncode == 2
    assert "\x1b[2J" not in missing.stderr
