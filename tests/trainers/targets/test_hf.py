"""ALIGN and CLIP of transformers as targets, with tiny random weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from noisegate import train
from noisegate.pipeline.estimators import load_estimator
from noisegate.trainers.targets import build_target, load_target, save_target
from noisegate.trainers.targets.hf import Hf
from tests.errors import refused
from tests.pipeline.estimators.test_transformers_model import TEXTS, model, processor
from tests.trainers.runs import settings
from tests.trainers.small_targets import photo


@pytest.fixture(scope="module", params=["align", "clip", "siglip"])
def folder(request: Any, tmp_path_factory: Any) -> Path:
    """A model of transformers as save_pretrained writes it."""
    path: Path = tmp_path_factory.mktemp("hf") / request.param
    model(request.param).save_pretrained(path)
    processor(request.param).save_pretrained(path)
    return path


def test_vectors_are_those_of_the_estimator(folder: Path, tmp_path: Path) -> None:
    target = build_target({"name": "hf", "model": f"hf:{folder}"}).eval()
    assert isinstance(target, Hf) and not target.config.from_scratch
    estimator = load_estimator(f"hf:{folder}", device="cpu")
    pictures = [photo(seed) for seed in range(3)]
    images = torch.stack([target.image_transform(False)(picture) for picture in pictures])
    with torch.no_grad():
        found = target.encode_images(images)["vectors"], target.encode_texts(target.tokenize(TEXTS))["vectors"]
    expected = estimator.encode_images(pictures), estimator.encode_texts(TEXTS)
    for ours, theirs in zip(found, expected, strict=True):
        unit = theirs / np.linalg.norm(theirs, axis=1, keepdims=True)
        np.testing.assert_allclose(ours.numpy(), unit, atol=2e-5)
    file = tmp_path / "saved.safetensors"
    save_target(target, file)
    again = load_target(file).eval()
    with torch.no_grad():
        torch.testing.assert_close(again.encode_images(images)["vectors"], found[0])


def test_align_learns_its_temperature_within_bounds(folder: Path) -> None:
    if folder.name != "align":
        pytest.skip("the others have a logit scale")
    target = build_target({"name": "hf", "model": f"hf:{folder}", "train": "visual"})
    assert target.scale.item() == pytest.approx(1 / target.model.temperature.item())  # type: ignore[union-attr]
    names = set(target.trainable_parameters())
    assert "model.temperature" in names and not any("text_model" in name for name in names)
    assert any("vision_model" in name for name in names)
    with torch.no_grad():
        target.model.temperature.fill_(1e-9)  # type: ignore[union-attr]
    target.after_step()
    assert target.temperature.item() == pytest.approx(0.01)


def test_a_run_that_can_be_evaluated_and_exported(folder: Path, scored: Path, tmp_path: Path) -> None:
    if folder.name != "align":
        pytest.skip("one kind is enough")
    given = settings(scored, tmp_path, target={"name": "hf", "model": f"hf:{folder}"}, loop__max_steps=2)
    done = train(given, quiet=True)
    assert done.steps == 2 and 0 <= done.best["rsum"] <= 600
    load_estimator(f"hf:{done.folder / 'hf'}", device="cpu")


def test_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with refused("model", f"hf:{tmp_path}/none"):
        build_target({"name": "hf", "model": f"hf:{tmp_path}/none"})
