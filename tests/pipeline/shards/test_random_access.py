"""Samples by position: the same as in one pass over the shard, and no more of the file is read than needed."""

import gzip
import os
from pathlib import Path

import pytest

from noisegate.pipeline.errors import ShardError
from noisegate.pipeline.shards import random_access as shard_samples
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.random_access import TarSamples, index_samples, read_samples
from noisegate.pipeline.shards.read import ShardReader
from tests.errors import refused
from tests.pipeline.shards.tars import pairs, tar_bytes, write_tar

FILES = [*pairs(6), ("0009.seg.png", b"a mask"), ("0009.bin", b"never read"), ("0009.txt", b"last")]


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
@pytest.mark.parametrize("positions", [[0], [5, 1], [6], [2, 99], [99]])
def test_samples_are_those_of_a_whole_pass(name: str, positions: list[int], tmp_path: Path) -> None:
    path = write_tar(tmp_path / name, FILES)
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    expected = [(raw.key, raw.parts) for raw in ShardReader(Shard(str(path))) if raw.index in positions]
    assert [(raw.key, raw.parts) for raw in read_samples(Shard(str(path)), positions)] == expected


def test_damage_behind_the_last_position_is_not_met(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(tar_bytes(pairs(3)) + b"no tar" * 1000)
    assert [raw.key for raw in read_samples(Shard(str(path)), [1])] == ["0001"]


def test_what_is_no_tar(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"hello " * 500)
    with refused("shards", str(tmp_path / "x.tar"), ShardError):
        list(read_samples(Shard(str(tmp_path / "x.tar")), [0]))


def test_parts_beyond_a_size_are_left_out(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [("0.txt", b"short"), ("0.json", bytes(100))])
    samples = TarSamples(path, index_samples(path), "x.tar")
    assert samples.read(0, ("txt", "json"), max_bytes=99) == {"txt": b"short"}
    samples.close()
    with pytest.raises(ValueError, match=r"x\.tar is closed"):
        samples.read(0, ("txt",))


@pytest.mark.parametrize(("size", "offset"), [(10, 0), (1, 99), (50, 80), (5, 100), (0, 3)])
def test_seeking_reads_what_pread_reads(size: int, offset: int, tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(100)))
    file = os.open(path, os.O_RDONLY)
    try:
        assert shard_samples._seek_and_read(file, size, offset) == bytes(range(100))[offset : offset + size]
        assert shard_samples._read_at(file, size, offset) == bytes(range(100))[offset : offset + size]
    finally:
        os.close(file)
