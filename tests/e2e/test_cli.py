"""The command as a user meets it: help that teaches, one JSON object when asked for, one message when it goes wrong."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import noisegate
from noisegate.pipeline.cli.commands import app
from noisegate.pipeline.cli.output import why
from tests.commands import FAKE, called, run_noisegate
from tests.fakes import pairs, picture, write_tar

COMMANDS = sorted(command.name or "" for command in app.registered_commands)
QUICK = (*FAKE, "--beta", "fixed:0.4", "--workers", "0")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which shards with noise have been made and scored."""
    folder = tmp_path_factory.mktemp("cli")
    write_tar(folder / "clean" / "x-0.tar", pairs(20))
    write_tar(folder / "clean" / "x-1.tar", pairs(20, 20))
    for arguments in (
        ("noise", "clean/*.tar", "--rate", "0.4", "--seed", "7", "--out", "noisy"),
        ("annotate", "noisy/*.tar", "--out", "tables", *QUICK),
    ):
        done = called(*arguments, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


# --- help ------------------------------------------------------------------------------------------------------------


def test_the_commands_of_the_main_job_are_there() -> None:
    assert {"annotate", "calibrate", "demo", "evaluate", "noise", "scenes"} <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_an_example_that_the_command_would_take(name: str) -> None:
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "300", "TERM": "dumb"})
    assert shown.exit_code == 0
    examples = re.findall(rf"noisegate {name}\b(.*)", shown.stdout.split("Arguments")[0].split("Options")[0])
    assert [line for line in examples if "Usage" not in line and "[OPTIONS]" not in line]
    used = set(re.findall(r"--[a-z-]+", " ".join(examples)))
    assert used <= set(re.findall(r"--[a-z-]+", shown.stdout.split("Options", 1)[1]))


def test_help_flows_to_the_terminals_width() -> None:
    shown = CliRunner().invoke(app, ["noise", "--help"], env={"COLUMNS": "80", "TERM": "dumb"}).stdout
    text = [line.strip() for line in shown.split("Arguments")[0].splitlines()]
    start = next(i for i, line in enumerate(text) if line.startswith("The mask is in"))
    sentences = text[start : text.index("", start)]
    assert all(len(line) > 60 for line in sentences[:-1]), sentences
    examples = [line for line in text[:start] if line.startswith("$ noisegate noise ")]
    assert len(examples) == 5


@pytest.mark.parametrize("flag", ["--help", "-h", "--version"])
def test_help_does_not_import_what_is_heavy(flag: str) -> None:
    program = (
        f"import sys; sys.argv = ['noisegate', {flag!r}]\n"
        "from noisegate.pipeline.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'torch', 'pyarrow', 'sklearn', 'open_clip', 'transformers', 'numpy', 'PIL', 'faiss', 'pydantic'}\n"
        "heavy &= set(sys.modules)\n"
        "print('HEAVY', sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "HEAVY []"


def test_no_command_is_help_too() -> None:
    shown = CliRunner().invoke(app, [])
    assert "noisegate annotate" in shown.stdout


# --- output ----------------------------------------------------------------------------------------------------------


def test_json_is_one_object_and_nothing_else(work: Path) -> None:
    for arguments, keys in (
        (("annotate", "noisy/*.tar", "--out", "tables", *QUICK), {"samples", "statuses", "beta", "zero_share"}),
        (("evaluate", "tables"), {"samples", "noisy", "osa_acc", "osa_recall", "clean_auroc", "best"}),
        (("noise", "clean/*.tar", "--rate", "0.4", "--out", "noisy2"), {"samples", "noisy", "rate", "protocol"}),
        (("scenes", "scenes", "--count", "4", "--shards", "2", "--size", "32"), {"count", "shards"}),
        (("calibrate", *FAKE), {"scorer", "auto", "modes", "thresholds"}),
        (("calibrate", "noisy/*.tar", *FAKE, "--workers", "0"), {"scorer", "auto", "modes", "thresholds"}),
    ):
        done = called(*arguments, "--json", cwd=work)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("\n") == 1
        found = json.loads(done.stdout)
        assert keys <= set(found), arguments
        assert done.stderr.strip(), "people still see the table"


def test_the_real_command_prints_one_object_too(work: Path) -> None:
    done = run_noisegate("evaluate", "tables", "--json", cwd=work)
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert json.loads(done.stdout)["samples"] == 40


def test_json_has_no_nan(work: Path) -> None:
    """A truth with one kind only leaves figures undefined; they must be null, which every JSON reader takes."""
    for arguments in (
        ("noise", "clean/*.tar", "--rate", "0", "--out", "untouched"),
        ("annotate", "untouched/*.tar", "--out", "tables0", *QUICK),
    ):
        assert called(*arguments, cwd=work).returncode == 0
    done = called("evaluate", "tables0", "--json", cwd=work)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout, parse_constant=pytest.fail)
    assert (found["noisy"], found["clean_auroc"], found["osa_recall"]) == (0, None, None)
    assert "nan" not in called("evaluate", "tables0", cwd=work).stdout


def test_people_get_a_table(work: Path) -> None:
    done = called("annotate", "noisy/*.tar", "--out", "again", *QUICK, cwd=work)
    assert done.returncode == 0
    for words in (
        "samples",
        "40",
        "shards",
        "β",
        "0.4000",
        "weight 0",
        "similarity",
        "estimated noise",
        "again/*.parquet",
    ):
        assert words in done.stdout
    assert "[2/2] x-1: 20 samples, 0 failed" in done.stderr
    quiet = called("annotate", "noisy/*.tar", "--out", "quiet", *QUICK, "--quiet", cwd=work)
    assert quiet.stderr == ""


def test_figures_stand_in_columns_on_a_narrow_terminal(work: Path) -> None:
    shown = called("evaluate", "tables", cwd=work, columns=80).stdout.splitlines()
    figures = [
        line for line in shown if line.startswith(("OSA Acc: clean pairs with w > 0 ", "OSA Recall: noisy pairs "))
    ]
    assert len(figures) == 2
    assert len({len(line.rstrip()) for line in shown if line.startswith(("OSA", "cut", "balanced", "Mean Noise"))}) == 1
    assert max(map(len, shown)) <= 80
    quantiles = called("annotate", "noisy/*.tar", "--out", "tables", *QUICK, cwd=work, columns=80).stdout.splitlines()
    at = next(i for i, line in enumerate(quantiles) if line.startswith("similarity"))
    assert " ".join(quantiles[at].split()) == "similarity 1 % 5 % 25 % 50 % 75 % 95 % 99 %"
    assert len(quantiles[at + 1].split()) == 7


def test_a_reason_reads_as_words() -> None:
    assert why("no cone: random inputs 0.1; crossing") == "no cone: random inputs 0.1"
    assert why("crossing") == "where right and shuffled pairs are equally dense"
    assert why("given by the user") == "given by the user"
    assert why("") == "–"


def test_the_summary_says_why_samples_failed(work: Path) -> None:
    done = called("annotate", "clean/*.tar", "--out", "no_field", *QUICK, "--text-field", "title", cwd=work)
    assert done.returncode == 1
    assert "Next:" not in done.stdout
    assert "no_text  40  100.0 %  no json field 'title'" in done.stdout
    assert "no sample could be scored: no json field 'title'" in done.stdout
    assert "β" not in done.stdout, "nothing was weighed"


def test_a_long_narrow_picture_can_be_let_in(work: Path) -> None:
    write_tar(work / "line" / "line.tar", [("0.png", picture(size=(900, 3))), ("0.txt", b"a line")])
    refused = called("annotate", "line/*.tar", "--out", "line1", *QUICK, cwd=work)
    assert "too_large  1  100.0 %  image of 900 x 3 pixels; one side is over 200 times the other" in refused.stdout
    taken = called("annotate", "line/*.tar", "--out", "line2", *QUICK, "--max-aspect", "300", cwd=work)
    assert "  ok" in taken.stdout
    assert "too_large" not in taken.stdout


def test_nothing_read_is_said_in_few_words(work: Path) -> None:
    done = called("annotate", "absent.tar", "--out", "absent", *QUICK, cwd=work)
    assert done.returncode == 1
    assert "shard absent.tar" in done.stderr
    assert "not read: 1 shard, named above" in done.stdout
    assert "*.parquet" not in done.stdout


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("annotate", "none/*.tar", "--out", "o", *QUICK), "none/"),
        (("annotate", "clean/*.tar", "--out", "o", "--model", "python:tests.fakes:Missing"), "has no 'Missing'"),
        (("annotate", "clean/*.tar", "--out", "o", "--model", "python:nowhere:f"), "cannot be found"),
        (("annotate", "clean/*.tar", "--out", "o", *FAKE, "--beta", "high"), "beta 'high' is unknown; use auto"),
        (("annotate", "clean/*.tar", "--out", "o", *FAKE, "--task", "both"), "task 'both' is unknown; use pairs"),
        (("annotate", "clean/*.tar", "--out", "o", *FAKE, "--classes", "cifar10"), "classes 'cifar10' are for labels"),
        (
            ("annotate", "clean/*.tar", "--out", "o", *FAKE, "--task", "labels", "--beta", "fixed:0.2"),
            "beta 'fixed:0.2' is for pairs, and only labels are scored",
        ),
        (("annotate", "clean/*.tar", "--out", "o", *FAKE, "--max-pixels", "0"), "max_pixels 0"),
        (("annotate", "clean/*.tar", "--out", "o", *FAKE, "--workers", "-1"), "workers -1"),
        (("annotate", "clean/*.tar", "--out", "o", *FAKE, "--seed", "-1"), "seed"),
        (("annotate", "clean/*.tar", "--out", "o", *FAKE, "--batch-size", "0"), "batch-size 0"),
        (("annotate", "clean/*.tar", "--out", "s4://bucket/x", *QUICK), "has an unknown protocol"),
        (("annotate", "clean/*.tar", "--out", "clean/x-0.tar", *QUICK), "cannot be written"),
        (
            ("annotate", "noisy/*.tar", "--out", "tables", *FAKE, "--beta", "fixed:0.5"),
            "beta: fixed:0.4 there, fixed:0.5",
        ),
        (("evaluate", "nowhere"), "no run"),
        (("evaluate", "tables", "--truth", "nothing.parquet"), "truth: nothing.parquet is not there"),
        (("evaluate", "tables", "--truth", "clean/x-0.tar"), "not a readable Parquet, CSV or JSON-lines file"),
        (
            ("noise", "clean/*.tar", "--rate", "2", "--out", "o"),
            "rate 2.0 is no noise rate; use a number between 0 and 1",
        ),
        (("noise", "clean/*.tar", "--rate", "0.4", "--out", "clean"), "is where the shards are"),
        (("noise", "clean/*.tar", "--rate", "0.4", "--protocol", "magic", "--out", "o"), "magic"),
        (("noise", "clean/*.tar", "--rate", "0.4", "--seed", "-1", "--out", "o"), "seed"),
        (("noise", "clean/x-0.tar", "--rate", "0.4", "--out", "noisy"), "noisy holds other shards, such as x-1.tar"),
        (("noise", "clean/*.tar", "--rate", "0.4", "--text-field", "title", "--out", "o"), "no json field 'title'"),
        (
            ("noise", "clean/*.tar", "--protocol", "symmetric", "--text-field", "a", "--out", "o"),
            "is not read by symmetric",
        ),
        (("scenes", "clean", "--count", "4"), "clean holds other shards, such as x-0.tar"),
        (("scenes", "o", "--count", "0"), "count 0"),
        (("scenes", "clean/x-0.tar", "--count", "2", "--shards", "1"), "clean/x-0.tar"),
        (("calibrate", "--seed", "-1", *FAKE), "seed"),
        (("calibrate", "clean/*.tar", "--samples", "0", *FAKE), "--samples"),
        (("calibrate", "clean/*.tar", "--text-field", "title", *FAKE, "--workers", "0"), "no json field 'title'"),
        (("annotate", "clean/*.tar"), "--out"),
        (("annotate", "--out", "o"), "shards"),
        (("anotate",), "anotate"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(work: Path, arguments: tuple[str, ...], words: str) -> None:
    done = called(*arguments, cwd=work)
    assert done.returncode == 2, done.stderr
    assert words.lower() in " ".join(done.stderr.lower().split())
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_evaluate_far_from_the_shards_says_what_to_do(work: Path, tmp_path: Path) -> None:
    lost = called("evaluate", work / "tables", cwd=tmp_path)
    assert lost.returncode == 2
    assert "noisy/x-0.tar cannot be opened" in lost.stderr
    assert "--truth FILE" in lost.stderr
    assert (
        called("evaluate", work / "tables", "--truth", work / "noisy" / "noise.parquet", cwd=tmp_path).returncode == 0
    )


def test_scenes_do_not_go_over_shards_with_known_noise(work: Path) -> None:
    (work / "known").mkdir()
    (work / "known" / "noise.parquet").touch()
    done = called("scenes", "known", "--count", "4", cwd=work)
    assert done.returncode == 2
    assert "noise.parquet" in done.stderr


# --- Python ----------------------------------------------------------------------------------------------------------


def test_exported_names() -> None:
    """The public names; a script of a user's may rely on each."""
    expected = {"load_estimator", "estimate_beta", "osa_weight", "annotate", "read_table"}
    assert expected <= set(noisegate.__all__)
    assert len(set(noisegate.__all__)) == len(noisegate.__all__)
    for name in noisegate.__all__:
        assert getattr(noisegate, name).__doc__, name
    assert set(dir(noisegate)) == set(noisegate.__all__)
    with pytest.raises(AttributeError, match="anotate"):
        noisegate.anotate  # noqa: B018


def test_importing_the_package_is_light() -> None:
    names = ", ".join(("load_estimator", "osa_weight"))
    program = f"from noisegate import {names}; import sys; print({{'torch', 'pyarrow', 'sklearn'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"
