"""`method.weights`: a column of the table on the per-sample loss of every method."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner

from noisegate import train
from noisegate.pipeline.cli.commands import app
from noisegate.trainers.checks import check_config
from noisegate.trainers.config import TrainConfig
from noisegate.trainers.methods import METHODS
from tests.commands import FAKE, called
from tests.errors import refused
from tests.trainers.methods.method_steps import describe, opened
from tests.trainers.runs import TARGET, curve, settings

STEPS: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    *((name, (0, 2), {}) for name in METHODS),
    *((name, (2,), {"procedure": "paper"}) for name in ("ncr", "lnc", "gsl", "bicro", "in2r")),
    *((name, (2,), {"loss": "info_nce"}) for name in ("lnc", "gsl", "in2r", "decl")),
    *((name, (2,), {"networks": 2}) for name in ("baseline", "select", "osa")),
    ("crcl", (2,), {"preset": "code"}),
    ("npc", (2,), {"bank_loss": 0}),
    ("deft", (1,), {"detect": 2}),  # after its warm-up, before the clean samples are chosen
    ("label_match", (2,), {"guard": False}),
    ("dividemix", (2,), {"mixmatch": False}),
]


@pytest.mark.parametrize(("name", "epochs", "how"), STEPS)
def test_a_weight_multiplies_the_loss_of_each_sample(
    scored: Path, tmp_path: Path, name: str, epochs: tuple[int, ...], how: dict[str, Any]
) -> None:
    """None at 0, nothing changed at 1, and the sum of two parts of the samples is the whole."""
    with opened(describe(scored, tmp_path, name, **how)) as steps:
        rows = steps.context.total_rows
        part = (np.random.default_rng(0).random(rows) < 0.5).astype(np.float32)
        for epoch in epochs:
            steps.go_to(epoch)
            plain, gradients = steps.step(None)
            none, no_gradients = steps.step(np.zeros(rows, np.float32))
            same, same_gradients = steps.step(np.ones(rows, np.float32))
            halves = [steps.step(weights)[0] for weights in (part, 1 - part)]
            assert plain > 0 and any(bool(gradient.any()) for gradient in gradients)
            assert none == 0 and not any(bool(gradient.any()) for gradient in no_gradients)
            assert same == pytest.approx(plain, rel=1e-6)
            for one, other in zip(same_gradients, gradients, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)
            mixes = name == "dividemix" and epoch > 0 and how.get("mixmatch", True)
            if not mixes:  # L_reg of DivideMix is of all samples together
                assert sum(halves) == pytest.approx(plain, rel=1e-5)
                assert min(halves) > 0


def test_plain_training_with_osa_weights_is_osa(scored: Path, tmp_path: Path) -> None:
    """The weights of Eq. 6 on the baseline, scaled to a mean of 1, are what `osa` does; in the words of the command."""
    osa = train(settings(scored, tmp_path, "osa", loop__epochs=1), quiet=True)
    weighted = settings(scored, tmp_path, "baseline", loop__epochs=1)
    weighted["method"]["weights"] = "osa_weight"
    found = train(weighted, quiet=True)
    np.testing.assert_allclose(curve(found.folder, "loss"), curve(osa.folder, "loss"), rtol=1e-5)


def test_osa_does_not_weigh_twice_by_one_column(scored: Path, tmp_path: Path) -> None:
    plain = train(settings(scored, tmp_path, "osa", loop__epochs=1), quiet=True)
    again = train(
        settings(scored, tmp_path, method={"name": "osa", "weights": "osa_weight"}, loop__epochs=1), quiet=True
    )
    assert curve(again.folder) == curve(plain.folder)


@pytest.mark.parametrize("name", METHODS)
def test_the_command_takes_weights_for_every_method(scored: Path, tmp_path: Path, name: str) -> None:
    """Three epochs, so that warm-up, division and noisy half come."""
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(describe(scored, tmp_path, name)))
    words = [
        "--config",
        str(tmp_path / "config.yaml"),
        "--method",
        name,
        "--weights",
        "osa_weight",
        "--quiet",
        "--json",
    ]
    done = CliRunner().invoke(app, ["train", *words])
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert (result["method"], result["epochs"], result["skipped"]) == (name, 3, 0)
    assert np.isfinite(curve(Path(result["folder"]), "loss")).all()


@pytest.mark.parametrize(("task", "source"), [("classification", "prompts"), ("image_retrieval", "images")])
def test_osa_s_weight_of_labels_where_the_table_has_none_of_captions(
    scored: Path, tmp_path: Path, task: str, source: str
) -> None:
    """A table of labels alone: plain training with it is `osa`, which in turn does not weigh twice."""
    words = ["noisy/*.tar", "--out", str(tmp_path / "tables"), *FAKE, "--workers", 0, "--task", "labels", "--quiet"]
    done = called("annotate", *words, "--classes", "clean/classes.txt", cwd=scored)
    assert done.returncode == 0, done.stderr
    target = {**TARGET, "classes": str(scored / "clean" / "classes.txt")} if task == "classification" else TARGET
    runs = []
    for name, weights in (("baseline", "osa_weight"), ("osa", "osa_weight"), ("osa", None)):
        tree = settings(scored, tmp_path, target=target, task={"name": task}, loop__epochs=1)
        tree["data"]["table"] = str(tmp_path / "tables")
        tree["method"] = {"name": name, "weights": weights}
        runs.append(curve(train(tree, quiet=True).folder, "loss"))
    assert runs[1] == runs[2]
    np.testing.assert_allclose(runs[0], runs[2], rtol=1e-5)
    shutil.rmtree(tmp_path / "tables" / "embeddings")
    with refused("method.weights", "osa_weight") as caught:
        check_config(TrainConfig.parse({**tree, "method": {"name": "baseline", "weights": "osa_weight"}}))
    assert f"({source})" in str(caught.value)


@pytest.mark.parametrize(
    ("how", "value"),
    [
        ({"weights": "key"}, "key"),
        ({"weights": "index"}, "index"),
        ({"weights": "label"}, "label"),
        ({"weights": "osa_weigth"}, "osa_weigth"),
        ({"weights": "lnc_label"}, "lnc_label"),  # empty in this table
    ],
)
def test_columns_that_are_no_weights_are_refused(scored: Path, tmp_path: Path, how: dict[str, Any], value: str) -> None:
    with refused("method.weights", value):
        check_config(TrainConfig.parse(settings(scored, tmp_path, method={"name": "baseline", **how})))


def test_weights_need_a_table(scored: Path, tmp_path: Path) -> None:
    tree = settings(scored, tmp_path, method={"name": "baseline", "weights": "osa_weight"}, data__table=None)
    with refused("data.table", None):
        check_config(TrainConfig.parse(tree))
