"""Embeddings beside the tables: what is stored, and how damage shows."""

import errno
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from noisegate.pipeline.errors import TableError
from noisegate.pipeline.runs.embeddings import (
    create_tensors,
    embeddings_match,
    map_tensors,
    read_embeddings,
    reserve,
    write_embeddings,
)
from tests.errors import refused


def test_what_the_library_wrote_is_mapped(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.float16).reshape(4, 3)
    save_file({"image": rows, "text": np.zeros((4, 0), np.float16)}, tmp_path / "a", metadata={"shard": "{}"})
    tensors, metadata = map_tensors(tmp_path / "a")
    assert isinstance(tensors["image"], np.memmap)
    assert tensors["image"].tolist() == rows.tolist()
    assert tensors["text"].shape == (4, 0)
    assert metadata == {"shard": "{}"}


def test_what_is_filled_through_maps_the_library_reads(tmp_path: Path) -> None:
    tensors = create_tensors(tmp_path / "a", {"b": ((2, 2), np.int32), "a": ((3,), np.float32)}, {"name": "ä"})
    tensors["b"][...], tensors["a"][1] = [[1, 2], [3, 4]], 0.5
    del tensors
    with safe_open(tmp_path / "a", framework="numpy") as file:
        assert file.metadata() == {"name": "ä"}
        assert file.get_tensor("b").tolist() == [[1, 2], [3, 4]]
        assert file.get_tensor("a").tolist() == [0, 0.5, 0]


def test_a_file_to_be_filled_has_its_disk_from_the_start(tmp_path: Path) -> None:
    create_tensors(tmp_path / "a", {"b": ((300_000,), np.int64)}, {})
    found = (tmp_path / "a").stat()
    assert found.st_blocks * 512 >= found.st_size > 2_400_000


def test_a_full_disk_is_said_and_a_file_system_that_cannot_reserve_is_none(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")

    def refuse(code: int) -> Callable[[int, int, int], None]:
        def allocate(descriptor: int, start: int, size: int) -> None:
            assert (start, size) == (0, 5)
            raise OSError(code, "refused")

        return allocate

    reserve(tmp_path / "a", refuse(errno.EOPNOTSUPP))
    with pytest.raises(OSError, match="refused") as raised:
        reserve(tmp_path / "a", refuse(errno.ENOSPC))
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(tmp_path / "a"))
    assert not (tmp_path / "a").exists()


def test_an_empty_file_needs_no_disk(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    reserve(tmp_path / "a")
    assert (tmp_path / "a").stat().st_size == 0


@pytest.mark.parametrize("data", [b"", b"\x00" * 20, b"\xff" * 20, b"\x02\x00\x00\x00\x00\x00\x00\x00[]"])
def test_what_is_no_such_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)
    with refused("file", tmp_path / "a", TableError):
        map_tensors(tmp_path / "a")


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    save_file({"image": np.zeros((4, 3))}, tmp_path / "a")
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:-1])
    with refused("file", tmp_path / "a", TableError):
        map_tensors(tmp_path / "a")


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
    with refused("embeddings", stored, TableError):
        read_embeddings(stored, "image")
