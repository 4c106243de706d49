"""Embeddings beside the tables: what is stored, and how damage shows."""

from pathlib import Path

import numpy as np
import pytest

from noisegate.pipeline.errors import TableError
from noisegate.pipeline.runs.embeddings import embeddings_match, read_embeddings, write_embeddings

IMAGES = np.array([[0.6, 0.8], [0.0, 0.0], [1.0, 0.0]], np.float32)
TEXTS = np.array([[0.8, 0.6], [0.0, 1.0], [0.0, 0.0]], np.float32)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "embeddings" / "x.safetensors"
    write_embeddings(path, IMAGES, TEXTS, {"shard": {"sha256": "abc", "rows": 3}})
    return path


def test_rows_come_back_in_half_precision(stored: Path) -> None:
    np.testing.assert_array_equal(read_embeddings(stored, "image"), IMAGES.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(read_embeddings(stored, "text", np.array([1, 0])), TEXTS[[1, 0]].astype(np.float16))
    assert read_embeddings(stored, "image").dtype == np.float32


@pytest.mark.parametrize("width", [0, 3])
@pytest.mark.parametrize("rows", [[], [7], [199, 0, 7], list(range(0, 200, 2))])
def test_named_rows_are_the_same_read_alone_or_with_all(tmp_path: Path, rows: list[int], width: int) -> None:
    kept = np.random.default_rng(0).standard_normal((200, width)).astype(np.float16)
    write_embeddings(tmp_path / "x.safetensors", kept, kept, {})
    found = read_embeddings(tmp_path / "x.safetensors", "text", np.array(rows, np.int64))
    assert (found.shape, found.dtype) == ((len(rows), width), np.float32)
    np.testing.assert_array_equal(found, kept[rows])


def test_the_same_rows_give_the_same_bytes(stored: Path, tmp_path: Path) -> None:
    other = tmp_path / "y.safetensors"
    write_embeddings(other, IMAGES, TEXTS, {"shard": {"rows": 3, "sha256": "abc"}})
    assert other.read_bytes() == stored.read_bytes()


@pytest.mark.parametrize("shape", [(0, 0), (3, 0)])
def test_a_shard_without_any_embedding_has_a_file_too(tmp_path: Path, shape: tuple[int, int]) -> None:
    path = tmp_path / "x.safetensors"
    nothing = np.zeros(shape, np.float32)
    write_embeddings(path, nothing, nothing, {"shard": {"sha256": "abc"}})
    assert embeddings_match(path, shape[0], "abc")
    assert read_embeddings(path, "text").shape == shape


def test_a_file_matches_its_own_shard_only(stored: Path) -> None:
    assert embeddings_match(stored, 3, "abc")
    assert not embeddings_match(stored, 4, "abc")
    assert not embeddings_match(stored, 3, "abd")
    assert not embeddings_match(stored.with_name("missing.safetensors"), 3, "abc")


@pytest.mark.parametrize("keep", [0, 5, 60, -1])
def test_a_damaged_file_is_seen_and_named(stored: Path, keep: int) -> None:
    stored.write_bytes(stored.read_bytes()[:keep])
    assert not embeddings_match(stored, 3, "abc")
    with pytest.raises(TableError, match=r"x\.safetensors cannot be read.*annotate command again"):
        read_embeddings(stored, "image")
