"""Two processes with half of each batch are one process with the whole of it."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from noisegate import train
from tests.commands import run_noisegate
from tests.trainers.runs import curve, settings, weights


@pytest.mark.usefixtures("one_thread")
def test_two_processes_give_the_loss_of_one(scored: Path, tmp_path: Path) -> None:
    """OSA with weights that differ between the halves; the gradients of both towers and of the scale are averaged."""
    config = settings(scored, tmp_path / "two", loop__epochs=1)
    alone = train({**config, "out": str(tmp_path / "one")}, quiet=True)
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    done = run_noisegate("train", "--config", file, "--set", "loop.devices=2", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1, "only the first process prints"
    two = tmp_path / "two" / "001-osa"
    assert [path.name for path in (tmp_path / "two").iterdir()] == ["001-osa"]
    expected = np.array(curve(alone.folder, "loss", "grad_norm", "weighted_share"))
    found = np.array(curve(two, "loss", "grad_norm", "weighted_share"))
    assert len(found) == 5
    np.testing.assert_allclose(found, expected, rtol=2e-5)
    ours, theirs = weights(alone.folder / "last.safetensors"), weights(two / "last.safetensors")
    for name in ours:
        np.testing.assert_allclose(theirs[name].numpy(), ours[name].numpy(), atol=2e-5, err_msg=name)
