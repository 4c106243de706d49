"""`noisegate score`: here and by a service, one picture with ranked captions, and lists of pairs."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from noisegate import read_table
from noisegate.pipeline.pairs.osa import osa_weight
from noisegate.service.cli.score import scale, scale_ends
from tests.commands import FAKE, ROOT, called
from tests.fakes import pairs, picture, write_tar
from tests.service.contract import Contract
from tests.service.live import over_http, serving

BETA = ("--beta", "fixed:0.4")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run, the samples of its shard as files, and pictures."""
    folder = tmp_path_factory.mktemp("score")
    members = pairs(60)
    shuffled = [text for name, text in members if name.endswith("txt")]
    shuffled[:20] = shuffled[1:20] + shuffled[:1]  # some captions are another picture's
    pictures = [(name, data) for name, data in members if name.endswith("png")]
    rows = [
        pair
        for (name, data), text in zip(pictures, shuffled, strict=True)
        for pair in ((name, data), (name[:-3] + "txt", text))
    ]
    write_tar(folder / "x.tar", rows)
    for name, data in rows:
        (folder / name).write_bytes(data)
    done = called("annotate", "x.tar", "--out", "tables", *FAKE, *BETA, "--workers", "0", "--quiet", cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "red.png").write_bytes(picture((222, 36, 36)))
    (folder / "bad.png").write_bytes(b"no picture")
    return folder


def result(*arguments: object, cwd: Path, code: int = 0) -> Any:
    done = called("score", *arguments, "--json", cwd=cwd)
    assert done.returncode == code, done.stderr
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout, parse_constant=pytest.fail)


# --- here ------------------------------------------------------------------------------------------------------------


def test_captions_of_a_picture_are_ranked(work: Path) -> None:
    found = result("red.png", "all blue", "all red", "a green one", *FAKE, *BETA, cwd=work)
    assert found["results"][0]["text"] == "all red"
    cosines = [r["similarity"] for r in found["results"]]
    assert cosines == sorted(cosines, reverse=True)
    for r in found["results"]:
        assert r["osa_weight"] == pytest.approx(osa_weight(r["similarity"], 0.4), abs=1e-7)
        assert r["clean"] == (r["osa_weight"] > 0)
    assert (found["beta"]["value"], found["beta"]["mode"]) == (0.4, "fixed")


def test_a_run_lends_model_beta_and_calibration_so_that_scores_equal_its_rows(work: Path) -> None:
    table = read_table(work / "tables").to_pylist()
    with (work / "list.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["caption", "image", "else"])
        writer.writerows([(work / f"{r['key']}.txt").read_text(), f"{r['key']}.png", 1] for r in table)
    found = result("--pairs", "list.csv", "--run", "tables", "--trust-run", cwd=work)
    assert len(found["results"]) == len(table) == 60
    for mine, row in zip(found["results"], table, strict=True):
        assert mine["image"] == f"{row['key']}.png"
        assert mine["status"] == row["status"] == "ok"
        for name in ("similarity", "osa_weight", "clean_probability"):
            assert mine[name] == pytest.approx(row[name], abs=1e-6), name
        assert mine["clean"] == row["clean"]
    assert {r["clean"] for r in found["results"]} == {True, False}
    assert found["beta"]["value"] == 0.4
    assert (
        result("red.png", "all red", "--run", "tables", "--trust-run", "--beta", "fixed:0.1", cwd=work)["beta"]["value"]
        == 0.1
    )


def test_without_a_run_beta_is_measured_as_annotate_does(work: Path) -> None:
    found = result("red.png", "all red", *FAKE, cwd=work)
    measured = json.loads(called("calibrate", *FAKE, "--json", cwd=work).stdout)["modes"][0]
    assert found["beta"] == measured
    assert any("--run DIR" in note for note in found["notes"])


def test_json_lines_and_standard_input(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        {"image": "red.png", "text": "all red"},
        {"path": "bad.png", "caption": 'x, "y"'},
        {"file": "no.png", "text": "z"},
    ]
    text = "\n".join(map(json.dumps, lines)) + "\n\n"
    (work / "list.jsonl").write_text(text)
    found = result("--pairs", "list.jsonl", *FAKE, *BETA, cwd=work)
    assert [r["status"] for r in found["results"]] == ["ok", "bad_image", "no_image"]
    assert found["results"][2]["error"] == "no.png: No such file or directory"
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert result("--pairs", "-", *FAKE, *BETA, cwd=work) == found


def test_a_picture_from_standard_input(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((work / "red.png").read_bytes())))
    found = result("-", "all red", "all blue", *FAKE, *BETA, cwd=work)
    named = result("red.png", "all red", "all blue", *FAKE, *BETA, cwd=work)
    assert [r["similarity"] for r in found["results"]] == [r["similarity"] for r in named["results"]]


def test_nothing_scored_is_exit_code_1(work: Path) -> None:
    found = result("bad.png", "all red", *FAKE, *BETA, cwd=work, code=1)
    assert found["results"][0]["status"] == "bad_image"
    done = called("score", "bad.png", "all red", *FAKE, *BETA, cwd=work)
    assert (done.returncode, "bad_image: " in done.stdout) == (1, True)


def test_people_see_a_scale(work: Path) -> None:
    done = called("score", "red.png", "all red", "all [blue]", "--run", "tables", "--trust-run", cwd=work)
    assert done.returncode == 0, done.stderr
    for words in ("red.png", "all red", "all [blue]", "●", "β 0.4000 (fixed)", "weight", "clean"):
        assert words in done.stdout
    lines = [line for line in done.stdout.splitlines() if "●" in line]
    assert len(lines) == 2
    assert lines[0].index("●") > lines[0].index("β")
    assert lines[1].index("●") < lines[1].index("β")


def test_local_scoring_needs_neither_fastapi_nor_httpx(work: Path) -> None:
    program = (
        "import sys\n"
        "for name in ('fastapi', 'httpx', 'pydantic_settings', 'uvicorn', 'starlette'):\n"
        "    sys.modules[name] = None\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        f"sys.argv = ['noisegate', 'score', 'red.png', 'all red', *{[*FAKE, *BETA]!r}, '--json']\n"
        "from noisegate.pipeline.cli import main\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=work, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["results"][0]["status"] == "ok"


# --- by a service ----------------------------------------------------------------------------------------------------


def test_a_service_is_asked(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contract = Contract()
    monkeypatch.setenv("NOISEGATE_API_KEY", "secret")
    with serving(over_http(contract)) as url:
        found = result("--url", url, "red.png", "n 1", "n 3", "n 2", cwd=work)
        assert [r["similarity"] for r in found["results"]] == [0.003, 0.002, 0.001]
        assert [r["text"] for r in found["results"]] == ["n 3", "n 2", "n 1"]
        assert {r.headers["authorization"] for r in contract.requests} == {"Bearer secret"}
        far = result("--url", url, "https://pictures.example/a.png", "n 5", cwd=work)
        assert contract.bodies()[-1]["pairs"] == [{"image_url": "https://pictures.example/a.png", "text": "n 5"}]
        assert far["beta"]["value"] == 0.2
        shown = called("score", "--url", url, "red.png", "n 7", cwd=work)
        assert "β 0.2000 (random_inputs, 95 %: 0.1900 to 0.2100)" in shown.stdout
        contract.faults = [403]
        denied = called("score", "--url", url, "red.png", "n 7", cwd=work)
        contract.faults = [401]
        stranger = called("score", "--url", url, "red.png", "n 7", cwd=work)
    assert (denied.returncode, "error: code_403: code_403 it is (request r-7)" in denied.stderr) == (2, True)
    assert stranger.returncode == 2
    assert "is wrong; use --api-key KEY or NOISEGATE_API_KEY" in stranger.stderr


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("red.png",), "a caption is missing"),
        (("absent.png", "x"), "image 'absent.png' is not a file"),
        ((".", "x"), "is not a file"),
        (("https://a.example/x.png", "x", *FAKE, *BETA), "is a URL, which only a service fetches"),
        (("red.png", "x", "--pairs", "list.csv"), "exclude one another"),
        (("--pairs", "absent.csv"), "absent.csv cannot be read"),
        (("--pairs", "red.png"), "red.png cannot be read"),
        (("--pairs", "empty.csv"), "is empty"),
        (("--pairs", "names.csv"), "names.csv, line 2: no image"),
        (("--pairs", "broken.jsonl"), "broken.jsonl, line 2:"),
        (("red.png", "x", "--pretrained", "openai"), "belongs to a model"),
        (("red.png", "x", *FAKE, "--beta", "intersection"), "needs data; use --run DIR"),
        (("red.png", "x", *FAKE, "--beta", "high"), "beta 'high' is unknown"),
        (("red.png", "x", "--run", "nowhere"), "nowhere holds no run"),
        (
            ("red.png", "x", "--run", "tables", "--trust-run", "--model", "python:tests.fakes:OtherModel"),
            "another model",
        ),
        (("red.png", "x", "--url", "127.0.0.1:8765"), "use one such as http://127.0.0.1:8765"),
        (
            ("red.png", "x", "--url", "http://127.0.0.1:8765", "--run", "tables", "--trust-run"),
            "--run is for scoring here",
        ),
        (("red.png", "x", "--url", "http://127.0.0.1:8765", "--beta", "fixed:0.2"), "--beta is for scoring here"),
    ],
)
def test_a_mistake_is_one_message(work: Path, arguments: tuple[str, ...], words: str) -> None:
    (work / "empty.csv").write_text("image,text\n")
    (work / "names.csv").write_text("picture,text\na.png,b\n")
    (work / "broken.jsonl").write_text('{"image": "a", "text": "b"}\n{"image": \n')
    done = called("score", *arguments, cwd=work)
    assert done.returncode == 2, done.stderr
    assert words in " ".join(done.stderr.split())
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


# --- the scale -------------------------------------------------------------------------------------------------------


def test_the_scale() -> None:
    assert scale(0.0, None, 0.0, 1.0, 5) == "●────"
    assert scale(1.0, 0.5, 0.0, 1.0, 5) == "──β─●"
    assert scale(0.5, 0.5, 0.0, 1.0, 5) == "──●──"
    assert scale(-9.0, 9.0, 0.0, 1.0, 5) == "●───β"
    low, high = scale_ends([0.123])
    assert low < 0.123 < high
