"""Two processes with half of each batch are one process with the whole of it."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.torch import load_file

from noisegate import train
from tests.commands import run_noisegate
from tests.trainers.runs import curve, settings

OWN_SETTINGS: dict[str, dict[str, object]] = {
    "osa": {"networks": 2},
    "npc": {"warmup": 0, "threshold": 0.5},
    "in2r": {"warmup": 1, "neighbours": 2},
}


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("name", "epochs", "logged"), [("osa", 1, "weighted_share"), ("npc", 1, "weight"), ("in2r", 2, "lr")]
)
def test_two_processes_give_the_loss_of_one(scored: Path, tmp_path: Path, name: str, epochs: int, logged: str) -> None:
    """OSA with weights that differ between the halves; NPC with its trial step; IN2R with modules that epoch 2 uses.

    The gradients of both towers, of the scale and of these modules are averaged.
    """
    config = settings(scored, tmp_path / "two", method={"name": name, **OWN_SETTINGS[name]}, loop__epochs=epochs)
    alone = train({**config, "out": str(tmp_path / "one")}, quiet=True)
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    done = run_noisegate("train", "--config", file, "--set", "loop.devices=2", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1, "only the first process prints"
    two = tmp_path / "two" / f"001-{name}"
    assert [path.name for path in (tmp_path / "two").iterdir()] == [two.name]
    expected = np.array(curve(alone.folder, "loss", "grad_norm", logged))
    found = np.array(curve(two, "loss", "grad_norm", logged))
    assert len(found) == 5 * epochs
    np.testing.assert_allclose(found, expected, rtol=2e-5)
    for weights in ("last", "state"):
        ours, theirs = (load_file(folder / f"{weights}.safetensors") for folder in (alone.folder, two))
        for tensor in ours:
            if not tensor.startswith("rng/"):
                np.testing.assert_allclose(theirs[tensor].numpy(), ours[tensor].numpy(), atol=2e-5, err_msg=tensor)
