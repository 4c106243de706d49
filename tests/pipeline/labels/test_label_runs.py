"""Runs that judge labels: stopped or killed between encoding and scoring, they come out the same to the byte."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from noisegate import read_table
from noisegate.pipeline.errors import MismatchError, TableError
from noisegate.pipeline.labels.classes import ClassSet
from noisegate.pipeline.runs.table import RunFolder
from noisegate.pipeline.settings import DecodeOptions, Limits
from tests.commands import ROOT
from tests.embeddings import tables_of
from tests.errors import refused
from tests.fakes import picture, write_tar
from tests.jobs import Notes, said, score, stamps

CLASSES = ClassSet(("red", "green", "blue"), (("it is red.",), ("it is green.",), ("it is blue.",)))
TASK = {"options": DecodeOptions(tasks=("labels",)), "classes": CLASSES}


class StopsAt(Notes):
    """Stops the job, as Ctrl-C would, when it says something that begins so."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words

    def note(self, text: str) -> None:
        super().note(text)
        if text.startswith(self.words):
            raise KeyboardInterrupt


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for part in range(3):
        members = []
        for i in range(15 * part, 15 * part + 15):
            members.append((f"{i:05d}.png", picture(CLASSES.names[i % 3], (16 + i, 16))))
            members.append((f"{i:05d}.cls", str((i + (i % 4 == 0)) % 3).encode()))
        write_tar(tmp_path / "shards" / f"x-{part}.tar", members)
    return tmp_path / "shards"


@pytest.mark.parametrize("words", ["neighbours:", "labels:"])
def test_stopped_between_encoding_and_scoring(words: str, shards: Path, tmp_path: Path) -> None:
    score(shards, tmp_path / "whole", **TASK)
    with pytest.raises(KeyboardInterrupt):
        score(shards, tmp_path / "out", progress=StopsAt(words), **TASK)
    with refused("run", tmp_path / "out", TableError):
        read_table(tmp_path / "out")
    encoded = {name: stamp for name, stamp in stamps(tmp_path / "out").items() if name.endswith(".safetensors")}
    notes = Notes()
    summary = score(shards, tmp_path / "out", progress=notes, **TASK)
    assert tables_of(tmp_path / "out") == tables_of(tmp_path / "whole")
    assert notes.started == (0, 0, 3)  # nothing is encoded twice
    assert summary.encoded == 0
    assert encoded.items() <= stamps(tmp_path / "out").items()
    assert ("the graph is there already" in said(notes)) == (words == "labels:")


KILLED = """
import os, signal, sys
from tests.jobs import Notes, score
from tests.pipeline.labels.test_label_runs import TASK
from pathlib import Path

class Killed(Notes):
    def note(self, text):
        if text.startswith("labels:"):
            os.kill(os.getpid(), signal.SIGKILL)

score(Path(sys.argv[1]), Path(sys.argv[2]), progress=Killed(), **TASK)
"""


def test_killed_between_encoding_and_scoring(shards: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-c", KILLED, str(shards), str(tmp_path / "out")]
    assert subprocess.run(words, cwd=ROOT, check=False).returncode == -9
    assert json.loads((tmp_path / "out" / "_run.json").read_text())["finished"] is False
    score(shards, tmp_path / "out", **TASK)
    score(shards, tmp_path / "whole", **TASK)
    assert tables_of(tmp_path / "out") == tables_of(tmp_path / "whole")


def test_stopped_when_some_tables_have_their_scores(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        score(shards, tmp_path / "out", progress=StopsAt("labels:"), **TASK)
    run = RunFolder(tmp_path / "out")
    unfinished = {name: run.path.joinpath(name).read_bytes() for name in ("x-1.parquet", "_run.json")}
    score(shards, tmp_path / "out", **TASK)
    whole = tables_of(tmp_path / "out")
    for name, data in unfinished.items():
        (tmp_path / "out" / name).write_bytes(data)
    before = stamps(tmp_path / "out")
    score(shards, tmp_path / "out", **TASK)
    assert tables_of(tmp_path / "out") == whole
    after = stamps(tmp_path / "out")
    assert {name for name in after if after[name] != before[name]} == {"x-1.parquet"}


def test_lost_files_of_scoring_are_made_again(shards: Path, tmp_path: Path) -> None:
    score(shards, tmp_path / "out", **TASK)
    whole = tables_of(tmp_path / "out")
    for damage in ("unlink", "cut"):
        for name in ("anchors.safetensors", "neighbours.safetensors"):
            path = tmp_path / "out" / name
            path.unlink() if damage == "unlink" else path.write_bytes(path.read_bytes()[:-3])
        score(shards, tmp_path / "out", **TASK)
        assert tables_of(tmp_path / "out") == whole


def test_more_shards_are_judged_with_the_others(shards: Path, tmp_path: Path) -> None:
    score(shards, tmp_path / "whole", **TASK)
    score(sorted(shards.glob("*.tar"))[:2], tmp_path / "out", **TASK)
    score(sorted(shards.glob("*.tar"))[2:], tmp_path / "out", **TASK)
    assert tables_of(tmp_path / "out") == tables_of(tmp_path / "whole")


def test_other_classes_are_another_run(shards: Path, tmp_path: Path) -> None:
    score(shards, tmp_path / "out", **TASK)
    other = ClassSet(("red", "green", "brown"), (("it is red.",), ("it is green.",), ("it is brown.",)))
    with pytest.raises(MismatchError, match="classes: "):
        score(shards, tmp_path / "out", **{**TASK, "classes": other})


def test_classes_that_lack_a_name_stop_the_run_at_once_and_do_not_cost_the_embeddings(
    shards: Path, tmp_path: Path
) -> None:
    for name, odd in (("w-0", None), ("w-1", 9)):
        pictures = [(f"{i}.png", picture(CLASSES.names[i % 2], (16 + i, 16))) for i in range(15)]
        labels = [(f"{i}.cls", b"2" if i == odd else str(i % 2).encode()) for i in range(15)]
        write_tar(shards / f"{name}.tar", [part for sample in zip(pictures, labels, strict=True) for part in sample])
    score(shards, tmp_path / "whole", **TASK)
    few = ClassSet(("red", "green"), (("it is red.",), ("it is green.",)))
    with refused("classes", 2) as caught:
        score(shards, tmp_path / "out", **{**TASK, "classes": few})
    assert f"9 of {shards / 'w-1.tar'} has label 2" in str(caught.value)
    encoded = stamps(tmp_path / "out")
    assert sorted(encoded) == ["w-0.parquet", "w-0.safetensors"]  # not one of those after it
    notes = Notes()
    score(shards, tmp_path / "out", progress=notes, **TASK)
    assert (notes.started[0], notes.started[2]) == (4, 1)
    assert stamps(tmp_path / "out")["w-0.safetensors"] == encoded["w-0.safetensors"]
    assert tables_of(tmp_path / "out") == tables_of(tmp_path / "whole")


def test_labels_that_nobody_scores_need_no_names(tmp_path: Path) -> None:
    samples = [[("png", picture("red", (16 + i, 16))), ("txt", b"it is red"), ("cls", b"%d" % i)] for i in range(3)]
    write_tar(tmp_path / "a.tar", [(f"{i}.{part}", data) for i, parts in enumerate(samples) for part, data in parts])
    few = ClassSet(("red",), (("it is red.",),))
    with refused("classes"):
        score(tmp_path, tmp_path / "out", classes=few)
    assert score(tmp_path, tmp_path / "out").scored == 3


def test_samples_that_are_read_on_a_second_try_are_judged_with_the_others(shards: Path, tmp_path: Path) -> None:
    """Flags and scores of the first time go, as if the sample had been there from the start."""
    small = DecodeOptions(tasks=("labels",), limits=Limits(max_pixels=16 * 40))
    summary = score(shards, tmp_path / "out", **{**TASK, "options": small})
    assert summary.statuses["too_large"] == 20
    large = DecodeOptions(tasks=("labels",), limits=Limits(max_pixels=16 * 100))
    score(shards, tmp_path / "out", retry_failed=True, **{**TASK, "options": large})
    score(shards, tmp_path / "whole", **{**TASK, "options": large})
    assert read_table(tmp_path / "out") == read_table(tmp_path / "whole")


def test_a_run_whose_embeddings_were_dropped_keeps_its_labels_scores(shards: Path, tmp_path: Path) -> None:
    first = score(shards, tmp_path / "out", keep_embeddings=False, **TASK)
    before = tables_of(tmp_path / "out")
    again = score(shards, tmp_path / "out", keep_embeddings=False, **TASK)
    assert tables_of(tmp_path / "out") == before
    assert again.labels == first.labels
    assert again.kept == first.kept
