"""The loops of the training guide run as they stand, but for the model's name, and learn."""

import re
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import webdataset  # noqa: F401 - before a test runs a command, which turns local files off in it (WDS_SECURE)
from torch import nn

from noisegate import WeightedShards, read_table
from noisegate.pipeline.estimators.loading import allow_torchvision
from noisegate.trainers.targets import build_target, resolve_target
from tests.trainers.runs import TARGET

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "train.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


class Net(nn.Module):
    """Somebody's own network: any pictures and tokens to a (B, B) matrix of logits."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.LazyLinear(4), nn.Embedding(49408, 4)

    def forward(self, pictures: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.image(pictures.flatten(1).float() / 255) @ self.text(tokens).mean(1).T
        return logits


def numbered(data: WeightedShards) -> list[tuple[torch.Tensor, Any, Any]]:
    return [(batch.rows, batch.images, batch.texts) for batch in data.view(sampler="sequential")]


def test_each_loop_is_changed_in_few_lines() -> None:
    assert len(BLOCKS) == 5
    for block in BLOCKS:
        ours = re.compile(r"trainers|noisegate|dataset\.map|weight|mean\b|data\.|info_nce|is (not )?None")
        added = [line for line in block.splitlines() if ours.search(line)]
        assert 3 <= len(added) < 10


def test_the_loops_learn(scored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allow_torchvision()  # open_clip beside a torch for CPUs only
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tiny = {**TARGET, "vocabulary": {"kind": "full"}}
        build_target(resolve_target(tiny)).export(tmp_path / "tiny")  # type: ignore[operator]
        (tmp_path / "data").symlink_to(scored / "noisy")
        (tmp_path / "tables").symlink_to(scored / "tables")
        monkeypatch.chdir(tmp_path)
        names: dict[str, Any] = {}
        first, stage, mapped, plain, fabric = (
            re.sub(r'"ViT-B-32"(, pretrained="openai")?', '"local-dir:tiny"', block) for block in BLOCKS
        )
        exec(compile(first.replace("for batch in data:", "start = [p.clone() for p in model.parameters()]\nfor batch in data:"),
                     "train.md", "exec"), names)  # fmt: skip
        assert float(names["loss"].detach()) > 0
        assert any(not torch.equal(a, b) for a, b in zip(names["start"], names["model"].parameters(), strict=True))
        assert names["mean"] > 0

        exec(compile(stage, "train.md", "exec"), names)
        table = {row["key"]: row for row in read_table("tables").to_pylist()}
        assert any(names["weight"] == pytest.approx(row["osa_weight"]) for row in table.values())
        assert isinstance(names["caption"], str)

        names["dataset"] = datasets.Dataset.from_dict({"key": sorted(table)})
        exec(compile(mapped, "train.md", "exec"), names)
        assert names["dataset"]["osa_weight"] == [row["osa_weight"] for _, row in sorted(table.items())]

        names |= {"net": Net(), "loader": numbered(names["data"])}
        exec(compile(plain, "train.md", "exec"), names)
        assert names["net"].text.weight.grad.abs().sum() > 0
        assert len(names["rows"]) == 32
        assert names["weight"].shape == (160,)

        before = [p.clone() for p in names["model"].parameters()]
        exec(compile(fabric, "train.md", "exec"), names)
        assert any(not torch.equal(a, b) for a, b in zip(before, names["model"].parameters(), strict=True))
