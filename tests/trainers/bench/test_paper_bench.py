"""Benches on small files of the papers' data sets: convert, noise, tables, training, and the papers' figures beside ours."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from noisegate.pipeline.cli.commands import app
from noisegate.pipeline.datasets.convert.job import convert
from noisegate.pipeline.datasets.scenes import write_scenes
from noisegate.pipeline.inspect.evaluation import evaluate
from noisegate.pipeline.methods.gsl import RECONSTRUCTION
from noisegate.pipeline.shards.locate import find_shards
from noisegate.pipeline.shards.read import ShardReader
from noisegate.trainers.bench.cells import CellResult
from noisegate.trainers.bench.paper_bench import (
    Condition,
    PaperBench,
    list_conditions,
    load_paper_preset,
    paper_figures,
    run_paper_bench,
)
from noisegate.trainers.bench.paper_tables import paper_markdown
from noisegate.trainers.bench.tables import method_notes
from tests.commands import FAKE
from tests.errors import refused
from tests.pipeline.datasets.converting import features, write_files
from tests.trainers.runs import TARGET


@pytest.fixture(scope="module")
def cc120k(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of 40 + 12 drawn scenes that came as the download does: pictures and a table of captions."""
    folder = tmp_path_factory.mktemp("cc120k")
    for split, count in (("train", 40), ("test", 12)):
        write_scenes(folder / f"scenes-{split}", count, 1, 5, 32)
        (shard,) = find_shards(str(folder / f"scenes-{split}/*.tar"))
        found = [(raw.parts["png"], raw.parts["txt"].decode()) for raw in ShardReader(shard)]
        rows = "".join(f"{split}-{i}.png\t{text}\n" for i, (_, text) in enumerate(found))
        files = {f"{split}-{i}.png": data for i, (data, _) in enumerate(found)}
        write_files(folder / "source", {f"{split}.tsv": rows, **files})
    for split in ("train", "test"):
        convert("cc120k", folder / "source", folder / split, split=split)
    return folder


def test_real_noise_is_scored_and_trained_on_with_the_paper_s_figures_beside(cc120k: Path, tmp_path: Path) -> None:
    words = ["bench", "--preset", "cc120k", "--data", str(cc120k), "--out", str(tmp_path), "--methods", "baseline,osa"]
    words += [
        "--estimator",
        FAKE[1],
        "--json",
        "--set",
        "loop.epochs=1",
        "--set",
        "data.batch_size=16",
    ]
    words += [
        "--set",
        f"target={json.dumps({**TARGET, 'model': None, 'pretrained': None})}",
        "--set",
        "schedule.warmup=0",
        "--set",
        "loop.device=cpu",
    ]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)["cc120k"]
    assert [(cell["method"], cell["noise"], cell["error"]) for cell in found["cells"]] == [
        ("baseline", "real", None),
        ("osa", "real", None),
    ]
    assert all(cell["figures"]["images"] == 12 for cell in found["cells"])
    assert (tmp_path / "cc120k/clip/tables-real/_run.json").exists()
    text = (tmp_path / "cc120k/clip/results.md").read_text()
    ours = found["cells"][1]["figures"]["i2t_r1"]
    assert f"| osa | {ours:.1f} (73.1) |" in text


def test_what_the_table_finds_of_noise_that_was_put_in(cc120k: Path, tmp_path: Path) -> None:
    small = {
        "target": {**TARGET, "model": None, "pretrained": None},
        "data": {"batch_size": 8},
        "loop": {"max_steps": 1, "device": "cpu"},
        "schedule": {"warmup": 0},
    }
    preset = load_paper_preset("flickr30k")
    found = run_paper_bench(
        preset,
        "clip",
        cc120k,
        tmp_path,
        methods=["osa"],
        rates=[0.4],
        settings=small,
        estimator=FAKE[1],
    )
    assert found.cells["osa", "shuffle-captions-40"][0].error is None
    judged = evaluate(tmp_path / "flickr30k/clip/tables-shuffle-captions-40").selection
    assert found.tables["shuffle-captions-40"]["noise_recall"] == 100 * judged.noise_recall
    assert f"| the weight table | {100 * judged.noise_precision:.1f} / {100 * judged.noise_recall:.1f} / " in (
        paper_markdown(found)
    )


def test_noise_is_put_into_features_once(tmp_path: Path) -> None:
    captions = [f"a {colour} thing number {i}" for i, colour in enumerate(["red", "green", "blue"] * 8)]
    for split in ("train", "test"):
        features(tmp_path / "source", 24, captions, split)
    for split in ("train", "test"):
        convert("flickr30k", tmp_path / "source", tmp_path / f"data/regions-{split}", layout="features", split=split)
    preset = load_paper_preset("flickr30k")
    small = {
        "target": {"features": 4, "width": 8, "word_width": 8, "steps": 1},
        "data": {"batch_size": 8},
        "loop": {"epochs": 1, "max_steps": 2, "device": "cpu"},
    }
    notes: list[str] = []
    for _ in range(2):
        found = run_paper_bench(
            preset, "regions", tmp_path / "data", tmp_path / "out", methods=["baseline"], rates=[0.0, 0.4], settings=small,
            note=notes.append,
        )  # fmt: skip
    (clean,), (noisy,) = found.cells.values()
    assert (clean.error, noisy.error, clean.updates, noisy.rate) == (None, None, 2, 0.4)
    assert notes == ["noise: shuffle-captions 40 %"]
    assert "shuffle-captions 0 % | shuffle-captions 40 %" in paper_markdown(found)


def test_missing_shards_are_answered_with_the_commands_that_make_them(tmp_path: Path) -> None:
    with refused("data", str(tmp_path)) as caught:
        run_paper_bench(load_paper_preset("webvision"), "clip", tmp_path, tmp_path / "out")
    assert f"noisegate convert webvision SOURCE --out {tmp_path}/train" in str(caught.value)
    with refused("setup", "regions"):
        run_paper_bench(load_paper_preset("webvision"), "regions", tmp_path, tmp_path / "out")


@pytest.mark.parametrize(
    ("words", "setting", "value"),
    [
        (["--preset", "flickr30k"], "data", None),
        (["--preset", "flickr30k", "--data", "x", "--quick"], "quick", True),
        (["--preset", "scenes-retrieval", "--data", "x"], "data", Path("x")),
        (["--preset", "cc120k", "--data", "x", "--rates", "0.4"], "rates", [0.4]),
        (["--preset", "scenes-retrieval", "--rates", "much"], "rates", "much"),
        (["--preset", "scene"], "preset", "scene"),
    ],
)
def test_a_flag_that_cannot_work_is_named(words: list[str], setting: str, value: object) -> None:
    with refused(setting, value):
        CliRunner().invoke(app, ["bench", *words], catch_exceptions=False)


def test_conditions_are_those_of_the_papers() -> None:
    found = list_conditions(load_paper_preset("cifar100"))
    assert [one.name for one in found] == [
        "symmetric-0", "symmetric-40", "symmetric-60", "asymmetric-30", "instance-dependent-40",
    ]  # fmt: skip
    assert found[3].options == {"class_map": "cifar100"}
    assert [one.rate for one in list_conditions(load_paper_preset("flickr30k"), [0.4])] == [0.4]
    with refused("rates", 40):
        list_conditions(load_paper_preset("flickr30k"), [40])


def test_only_figures_of_the_same_method_and_noise_stand_beside_ours() -> None:
    preset = load_paper_preset("flickr30k")
    asked = (Condition("shuffle-captions", 0.4, {}), Condition("shuffle-captions", 0.5, {}))

    def cell(seed: int, value: float) -> CellResult:
        return CellResult("osa", 0.4, seed, "", {"i2t_r1": value, "t2i_r1": 70.0, "rsum": 500.0})

    cells = {
        ("osa", "shuffle-captions-40"): [cell(0, 80.0), cell(1, 82.0)],
        ("osa", "shuffle-captions-50"): [CellResult("osa", 0.5, 0, "", {}, error="boom"), cell(1, 60.0)],
    }
    text = paper_markdown(PaperBench(preset, "clip", ("osa",), asked, cells, paper_figures("flickr30k", setup="clip")))
    assert f"| osa | 81.0 ± {np.std([80, 82], ddof=1):.1f} (87.3) | 60.0 (1 failed) |" in text
    assert "- failed: osa at 50 %, seed 0: boom" in text
    assert method_notes(["osa", "gsl", "gsl@other", "oracle"]) == [f"- {RECONSTRUCTION}"]
