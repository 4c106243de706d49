"""What comes from data cannot act on the terminal."""

import json
from pathlib import Path

import pytest

from noisegate.pipeline.cli.output import Output
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


def test_names_of_shards_and_line_breaks_are_shown_escaped_while_scoring(tmp_path: Path) -> None:
    """Progress goes to standard error as lines; a key with a line feed stays in its row, and one with a flag is counted."""
    (tmp_path / "s").mkdir()
    same = picture()
    samples = [(f"k{i}\nfaked {i}.{part}", data) for i in range(4) for part, data in (("png", same), ("txt", b"blue"))]
    write_tar(tmp_path / "s" / "x\x1b[2J.tar", samples)
    (tmp_path / "s" / "cut\x9b2J.tar").write_bytes((tmp_path / "s" / "x\x1b[2J.tar").read_bytes()[:4000])
    (tmp_path / "s" / "no\x1b[2J.tar").write_bytes(b"no tar" * 200)
    done = called("annotate", "s/*.tar", "--out", "run", "--workers", "0", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    shown = called("show", "run", cwd=tmp_path)
    verified = called("verify", "run", "--no-rescore", cwd=tmp_path)
    printed = "".join(end.stdout + end.stderr for end in (done, shown, verified))
    assert r"x\x1b[2J: 4 samples" in done.stderr
    assert not {"\x1b", "\x9b"} & set(printed)
    assert not [line for line in printed.splitlines() if line.startswith("faked")]


def test_json_holds_no_raw_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """Not those from U+0080 on either, which JSON itself allows and some terminals obey."""
    Output(as_json=True).result({"key": "a\x1b[2J\x9b2J\x7f é"})
    printed = capsys.readouterr().out
    assert printed == '{"key": "a\\u001b[2J\\u009b2J\\u007f é"}\n'
    assert json.loads(printed) == {"key": "a\x1b[2J\x9b2J\x7f é"}
