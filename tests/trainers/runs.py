"""Drawn scenes with wrong captions and labels, scored by the fake model, and the settings of a training of seconds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from noisegate.pipeline.datasets.scenes import write_scenes
from noisegate.trainers.loop.log import read_log
from tests.commands import FAKE, called

BATCH = 32
TARGET: dict[str, Any] = {
    "name": "clip",
    "architecture": {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 16, "layers": 1, "width": 16, "head_width": 8, "patch_size": 8},
        "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
    },
    "vocabulary": {"kind": "captions"},
}


def write_data(folder: Path) -> Path:
    """`clean`, `noisy` with 40 % of the captions on wrong pictures, its `tables` of pairs and labels, and `held`-out scenes."""
    write_scenes(folder / "clean", 160, 4, seed=5, size=16)
    write_scenes(folder / "held", 40, 1, seed=6, size=16)
    for words in (
        ("noise", "clean/*.tar", "--rate", 0.4, "--out", "noisy"),
        ("annotate", "noisy/*.tar", "--out", "tables", *FAKE, "--workers", 0, "--beta", "fixed:0.4", "--task",
         "pairs,labels", "--classes", "clean/classes.txt", "--quiet"),
    ):  # fmt: skip
        done = called(*words, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


def settings(data: Path, out: Path, method: str = "osa", /, **changes: Any) -> dict[str, Any]:
    """A tree of settings; `changes` are a.b=value with __ for the dot."""
    values: dict[str, Any] = {
        "data": {
            "shards": [str(data / "noisy" / "*.tar")],
            "table": str(data / "tables"),
            "eval_shards": [str(data / "held" / "*.tar")],
            "batch_size": BATCH,
        },
        "target": TARGET,
        "method": {"name": method},
        "optimizer": {"lr": 1e-3},
        "loop": {"epochs": 2, "device": "cpu"},
        "logging": {"every": 1, "tensorboard": False},
        "out": str(out),
    }
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            values[section] = {**values.get(section, {}), key: value}
        else:
            values[section] = value
    return values


def curve(folder: Path, *names: str) -> list[tuple[Any, ...]]:
    """What the log says of each update."""
    return [
        tuple(line[name] for name in names or ("step", "loss", "lr", "grad_norm"))
        for line in read_log(folder / "log.jsonl", "train")
    ]


def weights(path: Path) -> Mapping[str, torch.Tensor]:
    return load_file(path)


def same_weights(one: Path, other: Path) -> bool:
    """To the bit."""
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
