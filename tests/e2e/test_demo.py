"""The demo: figures as good as they are promised, and commands to go on with that work."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from noisegate.pipeline.cli.demo import SEED, wrong_captions
from noisegate.pipeline.cli.output import program
from noisegate.pipeline.datasets.noise.shards import noise_captions
from noisegate.pipeline.datasets.scenes import write_scenes
from tests.commands import called


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    """What a demo of 240 scenes says."""
    done = called("demo", "--count", "240", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_figures(found: dict[str, Any]) -> None:
    figures, best = found["evaluation"], found["evaluation"]["best"]
    assert figures["samples"] == 240
    assert 90 <= figures["noisy"] <= 96, "a shuffled caption may come back to its own picture"
    assert figures["clean_auroc"] >= 0.98
    assert figures["osa_acc"] >= max(0.93, best["clean_recall"] - 0.02)
    assert figures["osa_recall"] >= max(0.95, best["noise_recall"] - 0.02)


def test_a_second_demo_has_nothing_left_to_encode(found: dict[str, Any], folder: Path) -> None:
    drawn = {path: path.stat().st_mtime_ns for path in folder.glob("demo/*/*.tar")}
    done = called("demo", "--count", "240", "--json", cwd=folder)
    again = json.loads(done.stdout)
    assert again["summary"]["encoded"] == 0
    assert {path: path.stat().st_mtime_ns for path in folder.glob("demo/*/*.tar")} == drawn, "nothing drawn anew"
    assert again["evaluation"] == found["evaluation"]


def test_the_next_commands_work(found: dict[str, Any], folder: Path) -> None:
    *here, own_data = (shlex.split(command) for command in found["next"])
    assert [command[:2] for command in here] == [["noisegate", "show"], ["noisegate", "calibrate"]]
    for command in here:
        done = called(*command[1:], cwd=folder)
        assert done.returncode == 0, done.stderr
        assert "β" in done.stdout
    assert own_data[:2] == ["noisegate", "annotate"]


@pytest.mark.parametrize(("option", "value"), [("--out", "taken"), ("--count", "0"), ("--rate", "2")])
def test_a_mistake_is_one_message(option: str, value: str, tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    done = called("demo", "--count", "8", option, value, cwd=tmp_path)
    assert done.returncode == 2
    assert value in done.stderr and "Traceback" not in done.stderr


def test_commands_are_shown_as_they_can_be_typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "bin" / "noisegate"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "argv", ["bin/noisegate", "demo"])
    assert program("calibrate", "a b/*.tar") == "bin/noisegate calibrate 'a b/*.tar'"
    monkeypatch.setenv("PATH", str(script.parent))
    assert program("show") == "noisegate show"
    monkeypatch.setattr(sys, "argv", ["noisegate/__main__.py", "demo"])
    assert program("show").endswith(" -m noisegate show")


def test_a_demo_that_was_cut_off_draws_again(tmp_path: Path) -> None:
    clean, noisy = tmp_path / "clean", tmp_path / "noisy"
    assert wrong_captions(clean, noisy, 12, 0.5) is None
    write_scenes(clean, 12, 2, seed=SEED, size=16)
    made = noise_captions(sorted(clean.glob("*.tar")), noisy, rate=0.5, seed=SEED)
    assert wrong_captions(clean, noisy, 12, 0.5) == made.noisy
    assert wrong_captions(clean, noisy, 12, 0.4) is None, "another rate"
    assert wrong_captions(clean, noisy, 13, 0.5) is None, "another number"
    (noisy / "scenes-000001.tar").unlink()
    assert wrong_captions(clean, noisy, 12, 0.5) is None
