"""Runs that are measured together, against arithmetic on the average of their similarities."""

import io
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from noisegate import evaluate_model, load_target, train
from tests.fakes import tar_bytes

COUNT, REGIONS, WIDTH = 24, 5, 6
WORDS = ("red", "blue", "dog", "cat", "runs", "sleeps")

pytestmark = pytest.mark.usefixtures("one_thread")


def draw_pairs() -> tuple[np.ndarray[Any, Any], list[str]]:
    """Regions (24, 5, 6) float32, and a caption each."""
    rng = np.random.default_rng(3)
    captions = [" ".join(words) for words in permutations(WORDS, 2)][:COUNT]
    return rng.normal(size=(COUNT, REGIONS, WIDTH)).astype(np.float32), captions


def write_pairs(path: Path) -> None:
    """A shard of the drawn pairs."""
    members = []
    for number, (regions, caption) in enumerate(zip(*draw_pairs(), strict=True)):
        array = io.BytesIO()
        np.save(array, regions)
        members += [(f"{number:03d}.npy", array.getvalue()), (f"{number:03d}.txt", caption.encode())]
    path.write_bytes(tar_bytes(members))


def recalls(similarity: np.ndarray[Any, Any]) -> dict[str, float]:
    """Figures of a square table whose diagonal holds the pairs, by sorting."""
    found = {}
    for way, table in (("i2t", similarity), ("t2i", similarity.T)):
        ranks = [list(np.argsort(-row, kind="stable")).index(own) for own, row in enumerate(table)]
        found |= {f"{way}_r{k}": 100 * sum(rank < k for rank in ranks) / COUNT for k in (1, 5, 10)}
    return {**found, "rsum": sum(found.values())}


def test_runs_of_sgr_and_saf_are_measured_by_their_mean_similarity(tmp_path: Path) -> None:
    """SGRAF as published: two modules trained apart, averaged in the test."""
    write_pairs(shard := tmp_path / "pairs.tar")
    data = {"shards": [str(shard)], "eval_shards": [str(shard)], "image_part": "npy", "batch_size": 8}
    target = {
        "name": "sgraf",
        "features": WIDTH,
        "regions": REGIONS,
        "width": 8,
        "similarity_width": 4,
        "word_width": 4,
    }
    folders, tables = [], []
    for module in ("sgr", "saf"):
        config = {
            "data": data,
            "target": {**target, "module": module, "steps": 2, "vocabulary": {"min_count": 1}},
            "method": {"name": "baseline"},
            "optimizer": {"lr": 1e-2},
            "loop": {"epochs": 1, "device": "cpu"},
            "logging": {"tensorboard": False},
            "out": str(tmp_path / module),
        }
        folders.append(train(config, quiet=True).folder)
        model = load_target(folders[-1] / "best.safetensors").eval()
        regions, captions = draw_pairs()
        with torch.no_grad():
            sides = model(torch.from_numpy(regions), model.tokenize(captions))
            tables.append(model.similarity(*sides).double().numpy())
    together = evaluate_model(folders, device="cpu").figures
    expected = recalls((tables[0] + tables[1]) / 2)
    assert {name: together[name] for name in expected} == pytest.approx(expected)
    for folder, table in zip(folders, tables, strict=True):
        alone = evaluate_model(folder, device="cpu").figures
        assert {name: alone[name] for name in expected} == pytest.approx(recalls(table))
        assert recalls(table) != pytest.approx(expected)
