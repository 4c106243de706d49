"""`method.networks`: networks that are trained apart in one run, and measured together."""

from pathlib import Path

import pytest

from noisegate import train
from noisegate.trainers.config import TrainConfig, build_method
from noisegate.trainers.evaluate import evaluate_model
from tests.errors import refused
from tests.trainers.runs import same_weights, settings


@pytest.mark.parametrize("name", ["baseline", "select", "osa"])
def test_the_first_of_two_networks_learns_as_if_alone(scored: Path, tmp_path: Path, name: str) -> None:
    """To the bit; the second starts from other weights, and the run's figures are those of both together."""
    alone = train(settings(scored, tmp_path / "alone", name), quiet=True)
    both = train(settings(scored, tmp_path / "both", method={"name": name, "networks": 2}), quiet=True)
    first, second = (both.folder / file for file in ("last.safetensors", "last-1.safetensors"))
    assert same_weights(first, alone.folder / "last.safetensors")
    assert not same_weights(first, second)
    together = evaluate_model([first, second], device="cpu").figures
    assert together["rsum"] == pytest.approx(both.last["rsum"])


def test_two_networks_need_not_both_learn_in_a_step() -> None:
    """Batches of one network may have no weight; DDP must then look for the parameters that got no gradient."""
    for networks, all_learn in ((None, True), (1, True), (2, False)):
        config = TrainConfig.parse({"method": {"name": "osa", "networks": networks}})
        assert build_method(config).uses_all_parameters() == all_learn


def test_no_network_is_refused(scored: Path, tmp_path: Path) -> None:
    with refused(setting="method.networks", value=0):
        train(settings(scored, tmp_path, method={"name": "osa", "networks": 0}), quiet=True)
