"""What holds for every command: exit codes, answers to typos, colours, completion."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from noisegate.pipeline.cli.commands import app
from noisegate.pipeline.cli.help_layout import GROUPS
from noisegate.pipeline.system import install_line
from tests.commands import FAKE, called, command
from tests.fakes import pairs, picture, write_tar

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = sorted(command.name or "" for command in app.registered_commands)
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3|4|9|10)\d[;m]")

# --- exit codes ------------------------------------------------------------------------------------------------------


def test_the_documented_codes() -> None:
    text = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (\d+) \|", text, re.MULTILINE) == ["0", "1", "2", "130", "141"]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_wrong_option_is_2_for_every_command(name: str, tmp_path: Path) -> None:
    done = called(name, "--no-such-option", cwd=tmp_path)
    assert done.returncode == 2
    assert "--no-such-option" in done.stderr
    assert done.stdout == ""
    assert not list(tmp_path.iterdir())


def test_0_1_and_2(tmp_path: Path) -> None:
    write_tar(tmp_path / "x.tar", pairs(4))
    quick = (*FAKE, "--beta", "fixed:0.4", "--workers", "0", "--quiet")
    assert called("annotate", "x.tar", "--out", "good", *quick, cwd=tmp_path).returncode == 0
    assert called("annotate", "x.tar", "absent.tar", "--out", "part", *quick, cwd=tmp_path).returncode == 1
    assert called("annotate", "x.tar", "--out", "bad", *quick, "--beta", "high", cwd=tmp_path).returncode == 2
    assert called("verify", "good", "--no-rescore", cwd=tmp_path).returncode == 0
    table = tmp_path / "good" / "x.parquet"
    table.write_bytes(table.read_bytes()[:-1])
    assert called("verify", "good", "--no-rescore", cwd=tmp_path).returncode == 1


def test_141_when_nobody_reads_on(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(**command("--help"), stdout=writing, stderr=subprocess.PIPE, check=False, timeout=60)
    finally:
        os.close(writing)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr


# --- typos -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("anotate",), "did you mean 'annotate'?"),
        (("doctr",), "did you mean 'doctor'?"),
        (("annotate", "x.tar", "--out", "o", "--modle", "y"), "--model"),
        (("train", "--method", "ossa", "--table", "t"), "did you mean osa?"),
        (("train", "--target", "dual", "--set", "target.name=sgraff", "--method", "osa", "--table", "t"), "sgraf?"),
        (("train", "--set", "optimzer.lr=1", "--table", "t"), "did you mean optimizer?"),
        (("bench", "--preset", "scene-retrieval"), "did you mean scenes-retrieval?"),
        (("bench", "--preset", "scene"), "did you mean scenes?"),
        (("bench", "--preset", "flicker30k"), "did you mean flickr30k?"),
        (("noise", "x.tar", "--protocol", "shufle-captions", "--out", "o"), "did you mean shuffle-captions?"),
        (("convert", "cifr100", "x", "--out", "o"), "did you mean cifar100?"),
        (("export", "x", "--as", "shard", "--out", "o"), "did you mean shards?"),
    ],
)
def test_a_typo_is_answered_with_what_was_meant(words: tuple[str, ...], answer: str, tmp_path: Path) -> None:
    done = called(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert answer in " ".join(done.stderr.lower().split())


# --- an extra that is not installed ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("absent", "words", "extra"),
    [
        ("lightning_fabric", ("train", "--method", "osa", "--table", "t"), "trainers"),
        ("lightning_fabric", ("evaluate-model", "runs/001-osa"), "trainers"),
        ("timm", ("bench", "--preset", "scenes-retrieval"), "trainers"),
        ("uvicorn", ("serve",), "service"),
        ("httpx", ("score", "x.png", "red", "--url", "http://127.0.0.1:9"), "service"),
    ],
)
def test_a_missing_extra_is_one_line(
    absent: str, words: tuple[str, ...], extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.png").write_bytes(picture())
    monkeypatch.setitem(sys.modules, absent, None)  # as Python itself marks what cannot be imported
    done = called(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert absent in line
    assert line.endswith(install_line(extra))


# --- colours ---------------------------------------------------------------------------------------------------------


def on_terminal(*words: str, **environment: str) -> str:
    """What a person sees: the command on a terminal of its own."""
    ours, theirs = pty.openpty()
    how: dict[str, Any] = command(*words)
    env = {name: value for name, value in how["env"].items() if name not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
    with subprocess.Popen(
        how["args"], stdin=theirs, stdout=theirs, stderr=theirs, env={**env, **environment}
    ) as process:
        os.close(theirs)
        said = b""
        try:
            while part := os.read(ours, 1 << 16):
                said += part
        except OSError:  # Linux's way to say that the other side is closed
            pass
        process.wait(60)
    os.close(ours)
    return said.decode()


@pytest.mark.parametrize("words", [("--help",), ("show", "nowhere")])
def test_colours_respect_no_color(words: tuple[str, ...]) -> None:
    assert COLOUR.search(on_terminal(*words, TERM="xterm-256color"))
    assert not COLOUR.search(on_terminal(*words, TERM="xterm-256color", NO_COLOR="1"))


# --- help ------------------------------------------------------------------------------------------------------------


def test_every_command_has_its_group() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == COMMANDS
    assert [one.name for one in app.registered_commands] == grouped


def test_flags_do_not_look_as_if_they_took_a_value(tmp_path: Path) -> None:
    shown = called("annotate", "--help", cwd=tmp_path, columns=120).stdout
    assert "SHARDS" in shown and "--draft" in shown
    assert "<bool>" not in shown + called("--help", cwd=tmp_path, columns=120).stdout


# --- completion ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("typed", "answer"), [("noisegate ann", "annotate"), ("noisegate annotate --bet", "--beta")])
def test_the_shell_completes_commands_and_options(typed: str, answer: str) -> None:
    how = command()
    how["env"] |= {"_NOISEGATE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    done = subprocess.run(**how, capture_output=True, check=False, timeout=60)
    assert done.stdout.split() == [answer]


def test_completion_can_be_shown() -> None:
    how = command("--show-completion", "bash")
    how["env"] |= {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(**how, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0
    assert "_NOISEGATE_COMPLETE=complete_bash" in done.stdout
