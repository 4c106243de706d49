"""A newcomer's first ten minutes: each slip is answered early, with what to do instead."""

from pathlib import Path

import pytest

from tests.commands import called
from tests.fakes import pairs, picture, write_tar

QUICK = ("--model", "python:tests.fakes:ColourModel", "--beta", "0.4", "--workers", "0")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("walk")
    for number in range(2):
        write_tar(folder / "data" / f"x-{number}.tar", pairs(20))
    (folder / "broken.tar").write_bytes(b"<html>not found</html>" * 40)
    write_tar(folder / "silent.tar", [(f"{i}.png", picture("red", (8, 8))) for i in range(230)])
    assert called("annotate", "data/*.tar", "--out", "tables", *QUICK, cwd=folder).returncode == 0
    return folder


def test_a_bare_number_is_a_beta(work: Path) -> None:
    assert "fixed:0.4" in (work / "tables" / "_run.json").read_text()


def test_a_wrong_field_stops_the_job_and_leaves_the_folder_free(work: Path) -> None:
    done = called("annotate", "silent.tar", "--out", "silent", *QUICK, cwd=work)
    assert done.returncode == 2
    assert "all have the status no_text" in done.stderr
    assert "--text-field" in done.stderr
    assert not (work / "silent" / "_run.json").exists()


def test_a_shard_that_is_no_tar_is_named_once(work: Path) -> None:
    done = called("annotate", "data/*.tar", "broken.tar", "--out", "partly", *QUICK, cwd=work)
    assert done.returncode == 1
    assert (done.stdout + done.stderr).count("is not a tar or tar.gz") == 1
    assert "not read: 1 shard, named above" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("train", "--table", "tables", "--shards", "data/x-0.tar", "data/x-1.tar"),
        ("report", "tables", "data/x-1.tar"),
    ],
)
def test_a_pattern_that_the_shell_expanded_is_to_be_quoted(work: Path, words: tuple[str, ...]) -> None:
    done = called(*words, cwd=work)
    assert done.returncode == 2
    assert "quote it" in done.stderr


def test_captions_are_not_in_the_table(work: Path) -> None:
    done = called("export", "tables", "--as", "csv", "--where", "caption like '%red%'", "--out", "out", cwd=work)
    assert done.returncode == 2
    assert "captions stay in the shards" in done.stderr


@pytest.mark.parametrize(
    ("model", "advice"),
    [
        (("openai/clip-vit-base-patch32",), "hf:openai/clip-vit-base-patch32"),
        (("ViT-B-32", "--pretrained", "openia"), "did you mean openai?"),
    ],
)
def test_a_model_by_a_wrong_name(work: Path, model: tuple[str, ...], advice: str) -> None:
    done = called("annotate", "data/*.tar", "--out", "other", "--model", *model, cwd=work)
    assert done.returncode == 2
    assert advice in done.stderr
