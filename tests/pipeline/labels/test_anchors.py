"""Text anchors: of a model or of arrays, kept whole beside the tables, refused where they cannot judge."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from noisegate.pipeline.errors import TableError
from noisegate.pipeline.estimators.base import normalise
from noisegate.pipeline.labels.anchors import Anchors, embed_anchors, read_anchors
from noisegate.pipeline.labels.classes import ClassSet
from tests.embeddings import saved
from tests.errors import refused
from tests.fakes import NOT_FINITE, ZERO, estimator

CLASSES = ClassSet(("red", "Größe"), (("a red thing.", "it is red."), ("a green thing.",)))


def test_every_prompt_is_an_anchor_of_its_class() -> None:
    anchors = embed_anchors(estimator(), CLASSES)
    assert anchors.names == ("red", "Größe")
    assert anchors.labels.tolist() == [0, 0, 1]
    wanted = normalise(estimator().encode_texts(["a red thing.", "it is red.", "a green thing."]))
    assert anchors.embeddings.tolist() == wanted.tolist()


@pytest.mark.parametrize("prompt", [NOT_FINITE, ZERO])
def test_a_prompt_without_an_embedding_is_named(prompt: str) -> None:
    with refused("classes", prompt):
        embed_anchors(estimator(), ClassSet(("red", "none"), (("a red thing.",), (prompt,))))


def test_a_file_keeps_all_of_them(tmp_path: Path) -> None:
    anchors = embed_anchors(estimator(), CLASSES)
    anchors.save(tmp_path / "a.safetensors")
    again = Anchors.load(tmp_path / "a.safetensors")
    assert again.names == anchors.names
    assert again.embeddings.tolist() == anchors.embeddings.tolist()
    assert again.labels.tolist() == anchors.labels.tolist()
    assert again.digest == anchors.digest
    whole = (tmp_path / "a.safetensors").read_bytes()
    for data in (b"", whole[:-5], b"\0" * len(whole)):
        (tmp_path / "a.safetensors").write_bytes(data)
        with refused("anchors", tmp_path / "a.safetensors", TableError):
            Anchors.load(tmp_path / "a.safetensors")


def test_the_digest_knows_every_part() -> None:
    rows, labels = np.eye(3, dtype=np.float32), np.array([0, 1, 1])
    variants = [
        Anchors(("a", "b"), rows, labels),
        Anchors(("a", "c"), rows, labels),
        Anchors(("a", "b"), -rows, labels),
        Anchors(("a", "b"), rows, 1 - labels),
    ]
    assert len({anchors.digest for anchors in variants}) == 4
    assert Anchors(("a", "b"), rows.copy(), labels.copy()).digest == variants[0].digest


def test_arrays_of_any_length_become_unit_anchors(tmp_path: Path) -> None:
    files = saved(
        tmp_path, v=np.array([[3.0, 4.0], [0.0, 9.0], [2.0, 0.0]], np.float16), c=np.array([1, 0, 1], np.uint8)
    )
    anchors = read_anchors(files["v"], files["c"])
    assert anchors.embeddings == pytest.approx(np.array([[0.6, 0.8], [0, 1], [1, 0]]))
    assert (anchors.names, anchors.labels.tolist(), anchors.labels.dtype) == (("0", "1"), [1, 0, 1], np.int64)
    assert read_anchors(files["v"], files["c"], ("cat", "dog")).names == ("cat", "dog")


@pytest.mark.parametrize(
    ("vectors", "labels", "setting", "value"),
    [
        (np.eye(3), np.arange(2), "anchors", ((3, 3), (2,))),
        (np.eye(3), np.array([0, -1, 1]), "anchor_labels", (-1, 1)),
        (np.eye(3), np.array([0, 0, 2]), "anchors", [1]),
        (np.eye(3), np.array([0, 0, 10**9]), "anchor_labels", 10**9),
        (np.diag([1, 0, 1]), np.arange(3), "anchors", 1),
        (np.diag([1, 1, np.nan]), np.arange(3), "anchors", 2),
        (np.zeros((0, 3)), np.zeros(0, int), "anchors", []),
    ],
)
def test_anchors_that_do_not_fit_are_refused(
    vectors: Any, labels: Any, setting: str, value: object, tmp_path: Path
) -> None:
    files = saved(tmp_path, v=vectors, c=labels)
    with refused(setting, value):
        read_anchors(files["v"], files["c"])


@pytest.mark.parametrize(
    ("vectors", "labels", "setting", "file"),
    [
        (np.eye(3), np.ones(3), "anchor_labels", "c.npy"),
        (np.eye(3), np.arange(3)[None], "anchor_labels", "c.npy"),
        (np.ones(3), np.arange(3), "anchors", "v.npy"),
        (np.array([[object()]]), np.arange(1), "anchors", "v.npy"),
        (None, np.arange(1), "anchors", "v.npy"),
    ],
)
def test_files_that_hold_no_such_array_are_refused(
    vectors: Any, labels: Any, setting: str, file: str, tmp_path: Path
) -> None:
    if vectors is not None:
        np.save(tmp_path / "v.npy", vectors, allow_pickle=True)
    np.save(tmp_path / "c.npy", labels)
    with refused(setting, tmp_path / file):
        read_anchors(tmp_path / "v.npy", tmp_path / "c.npy")
