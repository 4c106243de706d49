"""Methods for classes on data where wrong labels can be known: they find them, and learn more than plain training."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from noisegate import TrainResult, train
from tests.fakes import tar_bytes

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = ("apple", "bus", "cat", "dog", "egg", "fox", "goat", "hat")
WIDTH = 32


def write_features(path: Path, count: int, noise: float, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Features around eight centres as part npy, and labels as part cls; the true and the given classes."""
    centres = np.random.default_rng(0).standard_normal((8, WIDTH))
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 8, count)
    wrong = rng.random(count) < noise
    given = np.where(wrong, (truth + rng.integers(1, 8, count)) % 8, truth)
    members = []
    for i, row in enumerate(centres[truth] + 1.5 * rng.standard_normal((count, WIDTH))):
        content = io.BytesIO()
        np.save(content, row.astype(np.float32))
        members += [(f"{i:05d}.npy", content.getvalue()), (f"{i:05d}.cls", str(given[i]).encode())]
    path.write_bytes(tar_bytes(members))
    return truth, given


def trained(folder: Path, out: Path, **method: Any) -> TrainResult:
    target = {
        "name": "dual", "features": WIDTH, "regions": 1, "width": 64, "word_width": 16, "image_mlp": True,
        "pooling": "mean", "vocabulary": {"kind": "hashing"}, "classes": NAMES, "prompts": ["{}"],
    }  # fmt: skip
    data = {
        "shards": [str(folder / "train.tar")], "eval_shards": [str(folder / "held.tar")], "batch_size": 32,
        "image_part": "npy",
    }  # fmt: skip
    config = {
        "data": data, "target": target, "method": method, "task": {"name": "classification"}, "out": str(out),
        "optimizer": {"lr": 5e-3, "weight_decay": 0.0}, "schedule": {"name": "constant"},
        "loop": {"epochs": 10, "device": "cpu", "evaluate_every": 10}, "logging": {"tensorboard": False},
    }  # fmt: skip
    return train(config, quiet=True)


def test_robust_methods_find_wrong_labels_and_beat_plain_training(tmp_path: Path) -> None:
    """Two labels in five are wrong, drawn evenly over the other classes."""
    truth, given = write_features(tmp_path / "train.tar", 640, 0.4, seed=1)
    write_features(tmp_path / "held.tar", 200, 0.0, seed=2)
    plain = trained(tmp_path, tmp_path / "runs", name="baseline").last["accuracy"]
    for name in ("ssr", "tango"):
        result = trained(tmp_path, tmp_path / "runs", name=name)
        clean, right = result.sample_columns["clean"], truth == given
        assert right[clean].mean() > 0.85, f"{name}: precision, where 0.6 are right"
        assert clean[right].mean() > 0.75, f"{name}: recall"
        assert result.last["accuracy"] > plain + 5, f"{name}: {result.last} over {plain}"
        if name == "tango":
            assert (result.sample_columns["refined_label"] == truth).mean() > 0.75, "of the given labels 0.6 are right"
