"""Two processes with half of each batch are one process with the whole of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from noisegate import train
from tests.commands import run_noisegate
from tests.trainers.runs import curve, settings, weights


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("method", "logged"),
    [({"name": "osa"}, "weighted_share"), ({"name": "npc", "warmup": 0, "threshold": 0.5}, "weight")],
)
def test_two_processes_give_the_loss_of_one(scored: Path, tmp_path: Path, method: dict[str, Any], logged: str) -> None:
    """OSA with weights that differ between the halves, and NPC with its trial step and bank, which each process reads.

    The gradients of both towers and of the scale are averaged.
    """
    config = settings(scored, tmp_path / "two", loop__epochs=1, method=method)
    alone = train({**config, "out": str(tmp_path / "one")}, quiet=True)
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    done = run_noisegate("train", "--config", file, "--set", "loop.devices=2", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1, "only the first process prints"
    run = f"001-{method['name']}"
    two = tmp_path / "two" / run
    assert [path.name for path in (tmp_path / "two").iterdir()] == [run]
    expected = np.array(curve(alone.folder, "loss", "grad_norm", logged))
    found = np.array(curve(two, "loss", "grad_norm", logged))
    assert len(found) == 5
    np.testing.assert_allclose(found, expected, rtol=2e-5)
    ours, theirs = weights(alone.folder / "last.safetensors"), weights(two / "last.safetensors")
    for name in ours:
        np.testing.assert_allclose(theirs[name].numpy(), ours[name].numpy(), atol=2e-5, err_msg=name)
