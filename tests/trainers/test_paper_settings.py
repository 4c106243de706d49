"""The papers' settings are there, are valid, and lie beneath what is given."""

import json
from pathlib import Path

import pytest
import yaml

from noisegate.pipeline.errors import ConfigError
from noisegate.trainers.config import TrainConfig, build_method
from noisegate.trainers.paper_settings import PAPER_SETTINGS, with_paper_settings
from tests.commands import called
from tests.trainers.runs import TARGET


@pytest.mark.parametrize("name", PAPER_SETTINGS)
def test_they_make_a_valid_configuration(name: str) -> None:
    task = "classification" if name == "tango" else "retrieval"
    config = TrainConfig.parse(with_paper_settings({"method": {"name": name}, "task": {"name": task}}))
    method = build_method(config)
    lengths = {"crcl": (128, 5e-4, 45), "tango": (64, 5e-4, 20)}
    assert (config.data.batch_size, config.optimizer.lr, method.epochs(config.loop.epochs)) == lengths[name]


def test_what_is_given_goes_first_and_nothing_is_changed_for_the_next() -> None:
    given = {"method": {"name": "crcl", "pieces": [3]}, "loop": {"epochs": 4}, "seed": 7}
    found = with_paper_settings(given)
    assert found["method"] == {"name": "crcl", "pieces": [3]}
    assert found["loop"] == {"clip": 2.0, "epochs": 4}
    assert found["seed"] == 7
    found["optimizer"]["lr"] = 1
    assert with_paper_settings(given)["optimizer"]["lr"] == 5e-4


def test_a_method_without_a_paper_of_its_own() -> None:
    with pytest.raises(ConfigError, match=r"no settings are known for method\.name=baseline; there are some for crcl"):
        with_paper_settings({})


def test_the_command_takes_them(scored: Path, tmp_path: Path) -> None:
    done = called(
        "train", "--paper", "--method", "crcl", "--table", scored / "tables", "--shards", scored / "noisy" / "*.tar",
        "--batch-size", 32, "--device", "cpu", "--out", tmp_path / "runs", "--json", "--quiet", "--set",
        "loop.evaluate_every=0", "--set", f"target={json.dumps(TARGET)}", "--set", "loop.max_steps=1", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    recorded = yaml.safe_load((tmp_path / "runs" / "001-crcl" / "config.yaml").read_text())
    assert recorded["optimizer"]["lr"] == 5e-4
    assert recorded["schedule"]["every"] == 15
    assert recorded["data"]["batch_size"] == 32
    assert recorded["method"]["pieces"] == [5, 5, 5, 30]
