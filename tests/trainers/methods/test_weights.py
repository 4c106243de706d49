"""`method.weights`: a column of the table on the per-sample loss of every method."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from noisegate import train
from noisegate.trainers.checks import check_config
from noisegate.trainers.config import TrainConfig
from noisegate.trainers.methods import METHODS
from tests.errors import refused
from tests.trainers.methods.method_steps import describe, opened
from tests.trainers.runs import curve, settings


@pytest.mark.parametrize("epoch", [0, 2])
@pytest.mark.parametrize("name", METHODS)
def test_a_weight_multiplies_the_loss_of_each_sample(scored: Path, tmp_path: Path, name: str, epoch: int) -> None:
    """None at 0, nothing changed at 1, and the sum of two parts of the samples is the whole."""
    with opened(describe(scored, tmp_path, name)) as steps:
        steps.go_to(epoch)
        rows = steps.context.total_rows
        part = (np.random.default_rng(0).random(rows) < 0.5).astype(np.float32)
        plain, gradients = steps.step(None)
        none, no_gradients = steps.step(np.zeros(rows, np.float32))
        same, same_gradients = steps.step(np.ones(rows, np.float32))
        halves = [steps.step(weights)[0] for weights in (part, 1 - part)]
    assert plain > 0 and any(bool(gradient.any()) for gradient in gradients)
    assert none == 0 and not any(bool(gradient.any()) for gradient in no_gradients)
    assert same == pytest.approx(plain, rel=1e-6)
    for one, other in zip(same_gradients, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)
    if not (name == "dividemix" and epoch):  # its L_reg is of all samples together
        assert sum(halves) == pytest.approx(plain, rel=1e-5)
        assert min(halves) > 0


def test_plain_training_with_osa_weights_is_osa(scored: Path, tmp_path: Path) -> None:
    """The weights of Eq. 6 on the baseline, scaled to a mean of 1, are what `osa` does; in the words of the command."""
    osa = train(settings(scored, tmp_path, "osa", loop__epochs=1), quiet=True)
    weighted = settings(scored, tmp_path, "baseline", loop__epochs=1)
    weighted["method"]["weights"] = "osa_weight"
    found = train(weighted, quiet=True)
    np.testing.assert_allclose(curve(found.folder, "loss"), curve(osa.folder, "loss"), rtol=1e-5)


@pytest.mark.parametrize(
    ("how", "value"),
    [
        ({"weights": "key"}, "key"),
        ({"weights": "index"}, "index"),
        ({"weights": "label"}, "label"),
        ({"weights": "osa_weigth"}, "osa_weigth"),
        ({"weights": "lnc_label"}, "lnc_label"),  # empty in this table
        ({"name": "osa", "weights": "osa_weight"}, "osa_weight"),
    ],
)
def test_columns_that_are_no_weights_are_refused(scored: Path, tmp_path: Path, how: dict[str, Any], value: str) -> None:
    with refused("method.weights", value):
        check_config(TrainConfig.parse(settings(scored, tmp_path, method={"name": "baseline", **how})))


def test_weights_need_a_table(scored: Path, tmp_path: Path) -> None:
    tree = settings(scored, tmp_path, method={"name": "baseline", "weights": "osa_weight"}, data__table=None)
    with refused("data.table", None):
        check_config(TrainConfig.parse(tree))
