"""`noisegate train` and `noisegate evaluate-model` as people call them."""

import inspect
import json
import re
from pathlib import Path
from typing import get_type_hints

import pytest
import yaml

from noisegate import METHODS, evaluate_model, train
from noisegate.trainers.cli.train import train as train_command
from tests.commands import called
from tests.errors import refused
from tests.trainers.runs import settings, weights

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def run(scored: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run in runs/001-baseline and its config.yaml beside."""
    folder = tmp_path_factory.mktemp("cli")
    config = settings(scored, Path("runs"), "baseline", loop__epochs=1)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    done = called("train", "--config", "config.yaml", cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "said.txt").write_text(done.stdout)
    (folder / "progress.txt").write_text(done.stderr)
    return folder


def test_people_get_figures_and_what_to_do_next(run: Path) -> None:
    said, progress = (run / "said.txt").read_text(), (run / "progress.txt").read_text()
    assert "baseline, retrieval: 1 epoch, 5 updates, 0 batches skipped" in said
    assert "best (epoch 1)" in said
    assert "rsum" in said
    assert "evaluate-model runs/001-baseline --shards SHARDS" in said
    assert "run runs/001-baseline" in progress
    assert "epoch 1/1 batch 5/5: loss" in progress


def test_flags_alone_train_a_clip_of_open_clip(run: Path, scored: Path) -> None:
    done = called(
        "train", "--method", "osa", "--table", scored / "tables", "--shards", scored / "noisy", "--target",
        "local-dir:runs/001-baseline/open_clip", "--eval-shards", scored / "held", "--out", "flags", "--batch-size", 32,
        "--lr", "1e-4", "--epochs", 1, "--device", "cpu", "--seed", 3, "--set", "loop.max_steps=2", "--set",
        "logging.tensorboard=false", "--quiet", "--json", cwd=run,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    found = json.loads(done.stdout)
    assert (found["method"], found["steps"], found["folder"]) == ("osa", 2, "flags/001-osa")
    config = yaml.safe_load((run / "flags/001-osa/config.yaml").read_text())
    assert (config["optimizer"]["lr"], config["seed"], config["data"]["batch_size"]) == (1e-4, 3, 32)
    assert config["target"]["model"] == "local-dir:runs/001-baseline/open_clip"
    before, after = (weights(run / path / "best.safetensors") for path in ("runs/001-baseline", "flags/001-osa"))
    assert (before["model.visual.proj"] - after["model.visual.proj"]).abs().max() < 1e-3, "it began with those weights"


def test_evaluate_model_prints_a_table(run: Path, scored: Path) -> None:
    done = called("evaluate-model", "runs/001-baseline", cwd=run)
    assert done.returncode == 0, done.stderr
    rsum = evaluate_model(run / "runs/001-baseline").figures["rsum"]
    assert f"rsum      {rsum:.2f}" in done.stdout
    assert "images    40" in done.stdout
    words = (
        "evaluate-model",
        "runs/001-baseline/last.safetensors",
        "--shards",
        scored / "clean",
        "--folds",
        2,
        "--json",
    )
    found = json.loads(called(*words, cwd=run).stdout)
    assert found["images"] == 160
    assert found["fold_rsum"] >= found["rsum"], "half of the pictures are easier to tell apart"


def test_going_on_with_a_finished_run(run: Path) -> None:
    done = called("train", "--resume", "runs/001-baseline", "--epochs", 2, cwd=run)
    assert done.returncode == 0, done.stderr
    assert "going on in epoch 2" in done.stderr
    assert "2 epochs, 10 updates" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("train", "--method", "osa"), "on the command line --target ViT-B-32"),
        (("train", "--config", "none.yaml"), "config 'none.yaml' cannot be read"),
        (("train", "--config", "config.yaml", "--set", "optimizer.lrr=1"), "did you mean optimizer.lr?"),
        (("train", "--config", "config.yaml", "--table", "nowhere"), "data.table nowhere holds no run"),
        (("train", "--config", "config.yaml", "--method", "magic"), "method.name 'magic' is unknown"),
        (("train", "--config", "config.yaml", "--lr", "0"), "optimizer.lr=0.0"),
        (("train", "--config", "config.yaml", "--batch-size", "64000"), "data.batch_size 64000 is more than"),
        (("train", "--resume", "nowhere"), "nowhere is no training run"),
        (("train", "--resume", "runs/001-baseline", "--lr", "1"), "optimizer.lr 1.0 is fixed in a run that goes on"),
        (("train", "--resume", "runs/001-baseline", "--config", "config.yaml"), "brings its own configuration"),
        (("evaluate-model", "nowhere"), "nowhere' is not there; give a run's folder"),
        (("evaluate-model", "runs/001-baseline", "--which", "first"), "use best or last"),
        (("evaluate-model", "runs/001-baseline", "--shards", "none/*.tar"), "none/*.tar"),
        (("evaluate-model", "runs/001-baseline", "--task", "classification"), "none were given"),
        (("evaluate-model", "config.yaml"), "no trained weights"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(run: Path, arguments: tuple[str, ...], words: str) -> None:
    done = called(*arguments, cwd=run)
    assert done.returncode == 2, done.stderr
    assert words.lower() in " ".join(done.stderr.lower().split())
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_help_names_every_method() -> None:
    told = inspect.getdoc(train_command) or ""
    assert [name for name in METHODS if not re.search(rf"\b{name}\b", told)] == []
    option = next(iter(get_type_hints(train_command, include_extras=True)["method"].__metadata__)).help
    assert re.findall(r"\w+", option.replace(" or ", " ")) == list(METHODS)


def test_python_takes_the_same_words(run: Path, scored: Path, tmp_path: Path) -> None:
    with refused("loop.epoch", 2):
        train(settings(scored, tmp_path), settings=["loop.epoch=2"])
