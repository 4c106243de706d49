import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from noisegate.pipeline.annotate import annotate
from noisegate.pipeline.errors import ConfigError
from noisegate.pipeline.estimators import load_estimator
from tests.errors import refused
from tests.pipeline.shards.tars import pairs, write_tar

MODULE = """
import numpy as np, torch

class Model:
    identity = "toy weights 1"
    calls = []
    def encode_images(self, images):
        self.calls.append(len(images))
        return [np.asarray(image, dtype=float).mean((0, 1)) for image in images]
    def encode_texts(self, texts):
        return torch.tensor([[len(t), t.count("a"), 1] for t in texts], dtype=torch.bfloat16, requires_grad=False)

def change(**parts):
    return type("Changed", (Model,), parts)()

make = Model
wide = lambda: change(encode_texts=lambda self, texts: np.ones((len(texts), 5)))
flat = lambda: change(encode_images=lambda self, images: np.ones(len(images)))
short = lambda: change(encode_images=lambda self, images: np.ones((1, 3)))
ragged = lambda: change(encode_images=lambda self, images: [[1, 2], [3]])
words = lambda: change(encode_texts=lambda self, texts: texts)
nameless = lambda: change(identity="")
numbered = lambda: change(identity=7)
gone = lambda: object()
def fails(): raise FileNotFoundError("no weights here")
def fails_later(): return change(encode_texts=lambda self, texts: 1 / 0)
constant = 5
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toy_models.py").write_text(MODULE)
    (tmp_path / "broken_models.py").write_text("import toy_models\nthis is no python")
    (tmp_path / "needy_models.py").write_text("import a_package_that_nobody_has")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("toy_models", "broken_models", "needy_models"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_pictures_and_texts_go_through_in_batches() -> None:
    estimator = load_estimator("python:toy_models:make", batch_size=2)
    images = [Image.new("RGB", (5, 4), (i, 2 * i, 7)) for i in range(5)]
    assert estimator.encode_images(images).tolist() == [[i, 2 * i, 7] for i in range(5)]
    assert estimator.encode_pixels([estimator.preprocess(i) for i in images]).dtype == np.float32
    assert sys.modules["toy_models"].Model.calls == [1, 2, 2, 1, 2, 2, 1]
    assert estimator.encode_texts(["a", "banana"]).tolist() == [[1, 1, 1], [6, 3, 1]]
    assert estimator.encode_texts([]).shape == estimator.encode_images([]).shape == (0, 3)


def test_pictures_arrive_whole_and_in_rgb() -> None:
    estimator = load_estimator("python:toy_models:make")
    assert estimator.preprocess(Image.new("L", (40, 30), 9)).shape == (30, 40, 3)


def test_identity_is_the_users() -> None:
    first, again = (load_estimator("python:toy_models:make").identity for _ in range(2))
    assert first == again and first.digest == again.digest
    assert (first.model, first.weights) == ("python:toy_models:make", "toy weights 1")
    sys.modules["toy_models"].Model.identity = "toy weights 2"
    other = load_estimator("python:toy_models:make").identity
    assert other.digest != first.digest
    assert first.differences(other) == ["weights: toy weights 1 there, toy weights 2 now"]


def test_noise_depends_on_the_generator_alone() -> None:
    estimator = load_estimator("python:toy_models:make")
    images, texts = estimator.encode_noise(3, np.random.default_rng(0))
    again = estimator.encode_noise(3, np.random.default_rng(0))
    assert images.shape == texts.shape == (3, 3)
    assert np.array_equal(images, again[0]) and np.array_equal(texts, again[1])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("python:", "must read python:MODULE:FACTORY, such as python:my_models:make_clip"),
        ("python:toy_models", "must read python:MODULE:FACTORY"),
        ("python:toy_models:make:x", "must read python:MODULE:FACTORY"),
        ("python:no_such_models:make", r"no_such_models.* is it here or on PYTHONPATH\?"),
        ("python:needy_models:make", "a_package_that_nobody_has"),
        ("python:broken_models:make", "cannot be imported: SyntaxError"),
        ("python:toy_models:nothing", "toy_models has no 'nothing'; name a function"),
        ("python:toy_models:constant", "has a 'constant' that cannot be called"),
        ("python:toy_models:fails", r"fails\(\) failed: FileNotFoundError: no weights here"),
        ("python:toy_models:gone", "made a object without encode_images, encode_texts, identity"),
        ("python:toy_models:nameless", "has identity ''; give a string"),
        ("python:toy_models:numbered", "has identity 7; give a string"),
        ("python:toy_models:wide", r"has widths \[3, 5\]"),
        ("python:toy_models:flat", r"encode_images of shape \(1,\); want \(1, d\)"),
        ("python:toy_models:ragged", "failed in encode_images: ValueError"),
        ("python:toy_models:words", "failed in encode_texts: ValueError"),
        ("python:toy_models:fails_later", "failed in encode_texts: ZeroDivisionError"),
    ],
)
def test_what_cannot_work_is_said_at_once(spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_estimator(spec)


def test_wrong_number_of_rows_is_noticed_later_too() -> None:
    estimator = load_estimator("python:toy_models:short")
    with refused("model", "python:toy_models:short"):
        estimator.encode_images([Image.new("RGB", (2, 2))] * 2)


@pytest.mark.parametrize(
    ("setting", "value"), [("device", "cpu"), ("dtype", "float16"), ("pretrained", "openai"), ("draft", True)]
)
def test_settings_that_would_do_nothing_are_refused(setting: str, value: Any) -> None:
    with refused(setting, value):
        load_estimator("python:toy_models:make", **{setting: value})


def test_tensors_of_any_kind_are_taken() -> None:
    estimator = load_estimator("python:toy_models:make")
    rows = torch.ones(2, 3, dtype=torch.float16, requires_grad=True)
    sys.modules["toy_models"].Model.encode_texts = lambda self, texts: rows  # still part of a graph
    assert estimator.encode_texts(["a", "b"]).tolist() == [[1, 1, 1]] * 2


def test_a_module_in_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "models_of_mine.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(folder)
    assert load_estimator("python:models_of_mine:make").identity.weights == "toy weights 1"
    assert sys.path[-1] == str(folder), "behind all else, so that it shadows nothing"
    del sys.modules["models_of_mine"]


def test_an_object_of_ones_own_needs_no_name(tmp_path: Path) -> None:
    kind = load_estimator("python:toy_models:make")._inner.__class__  # type: ignore[attr-defined]
    shard = write_tar(tmp_path / "x.tar", pairs(3))
    for number, given in enumerate((kind(), kind, lambda: kind(), load_estimator("python:toy_models:make"))):
        done = annotate(shard, tmp_path / f"t{number}", estimator=given, beta="fixed:0.1", workers=0)
        assert (done.samples, done.statuses) == (3, {"ok": 3})
        assert done.model.startswith("python:toy_models:")
    with refused("estimator", "ViT-B-32"):
        annotate(shard, tmp_path / "t", estimator="ViT-B-32", workers=0)  # type: ignore[arg-type]
