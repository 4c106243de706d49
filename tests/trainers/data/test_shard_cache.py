"""Indexes, copies of remote and compressed shards, and temporary folders of processes that are gone."""

import gzip
import os
import signal
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest

from noisegate.pipeline.errors import ShardError
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.random_access import PARTS
from noisegate.pipeline.shards.read import ShardReader
from noisegate.trainers.data.shard_cache import ScratchFolder, ShardCache, clear_abandoned
from tests.fakes import pairs, tar_bytes, write_tar
from tests.trainers.scored_shards import open_tars

HOLD = """
import sys
from pathlib import Path
from noisegate.trainers.data.shard_cache import ScratchFolder
folder = ScratchFolder("data", Path(sys.argv[1]))
(folder.path / "shard.tar").write_bytes(b"copy")
print(folder.path, flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_left_goes_with_the_next_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        assert left.parent == tmp_path and left.name.startswith("noisegate-data-")
        clear_abandoned(tmp_path)
        assert (left / "shard.tar").exists(), "its process lives"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert left.exists()
    own = ScratchFolder("data", tmp_path)
    assert sorted(tmp_path.iterdir()) == [own.path]


def test_a_folder_goes_with_its_object(tmp_path: Path) -> None:
    one, other = ScratchFolder("bench", tmp_path), ScratchFolder("data", tmp_path)
    one.remove()
    assert sorted(tmp_path.iterdir()) == [other.path]
    del other
    assert not list(tmp_path.iterdir())


def test_what_is_not_known_to_be_abandoned_stays(tmp_path: Path) -> None:
    places = tmp_path / "temporary", tmp_path / "home"
    for place in places:
        place.mkdir()
    (places[1] / "_lock").write_text("process 1 on here\n")
    (places[0] / "noisegate-link").symlink_to(places[1])
    (places[0] / "noisegate-without-lock").mkdir()
    (places[0] / "noisegate-just-made").mkdir()
    (places[0] / "noisegate-just-made" / "_lock").touch()
    (places[0] / "noisegate-file").touch()
    before = sorted(places[0].iterdir())
    clear_abandoned(places[0])
    assert sorted(places[0].iterdir()) == before
    assert (places[1] / "_lock").exists()


FILES = [*pairs(5), ("00009.npy", b"not really"), ("00009.seg.png", b"unknown part"), ("00009.txt", b"last")]


def contents(cache: ShardCache, shard: Shard) -> list[tuple[str, dict[str, bytes]]]:
    samples = cache.open(shard)
    try:
        return [(samples.key(i), samples.read(i, PARTS)) for i in range(len(samples))]
    finally:
        samples.close()


def expected(path: Path) -> list[tuple[str, dict[str, bytes]]]:
    read = ShardReader(Shard(str(path)), all_parts=True)
    return [(raw.key, {part: data for part, data in raw.parts.items() if part in PARTS}) for raw in read]


def test_samples_are_those_of_the_reader_in_any_order(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", FILES)
    cache = ShardCache(tmp_path / "cache")
    assert contents(cache, Shard(str(path))) == expected(path)
    samples = cache.open(Shard(str(path)))
    assert samples.read(3, ("txt",)) == {"txt": b"number 3 is green"}
    assert samples.read(0, ("txt", "cls")) == {"txt": b"number 0 is red"}
    assert samples.having(("npy",)).tolist() == [False] * 5 + [True]
    assert not list((tmp_path / "cache").glob("*.tar"))  # a plain local tar is read where it is
    samples.close()


def test_compressed_and_remote_shards_are_copied(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", FILES)
    packed = tmp_path / "y.tar.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with fsspec.open("memory://bucket/z.tar", "wb") as file:
        file.write(path.read_bytes())
    cache = ShardCache(tmp_path / "cache")
    assert contents(cache, Shard(str(packed))) == expected(path)
    assert contents(cache, Shard("memory://bucket/z.tar")) == expected(path)
    assert len(list((tmp_path / "cache").glob("*.tar"))) == 2


def test_copies_are_bounded_and_the_ones_used_last(tmp_path: Path) -> None:
    shards = []
    for i in range(5):
        path = tmp_path / f"{i}.tar.gz"
        path.write_bytes(gzip.compress(tar_bytes(pairs(2, i))))
        shards.append(Shard(str(path)))
    cache = ShardCache(tmp_path / "cache", copies=2)
    kept_open = cache.open(shards[0])
    for shard in shards:
        contents(cache, shard)
    assert sorted(path.name[0] for path in (tmp_path / "cache").glob("*.tar")) == ["3", "4"]
    assert kept_open.read(1, ("txt",)) == {"txt": b"number 1 is orange"}  # deleted, but still open here
    kept_open.close()
    assert contents(cache, shards[0])[0][0] == "00000"


def test_a_changed_shard_is_indexed_again(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", pairs(2))
    cache = ShardCache(tmp_path / "cache")
    assert len(contents(cache, Shard(str(path)))) == 2
    write_tar(path, pairs(30))
    assert contents(cache, Shard(str(path))) == expected(path)


def test_no_file_stays_open(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", pairs(2))
    cache = ShardCache(tmp_path / "cache")
    contents(cache, Shard(str(path)))
    before = open_tars(tmp_path)
    opened = [cache.open(Shard(str(path))) for _ in range(10)]
    assert open_tars(tmp_path) == before + 10
    for samples in opened[:5]:
        samples.close()
    assert open_tars(tmp_path) == before + 5
    del samples, opened  # nobody closes these
    assert open_tars(tmp_path) == before


class TestDamage:
    def test_a_tar_that_breaks_off_gives_its_whole_samples(self, tmp_path: Path) -> None:
        path = tmp_path / "x.tar"
        path.write_bytes(tar_bytes(pairs(5))[:-11_000])
        samples = ShardCache(tmp_path / "cache").open(Shard(str(path)))
        assert samples.damage is not None and "breaks off" in samples.damage
        assert samples.whole.tolist() == [True] * (len(samples) - 1) + [False]
        samples.close()

    def test_a_gzip_stream_that_breaks_off_too(self, tmp_path: Path) -> None:
        packed = gzip.compress(tar_bytes(pairs(40)))
        path = tmp_path / "x.tar.gz"
        path.write_bytes(packed[: len(packed) * 3 // 4])
        samples = ShardCache(tmp_path / "cache").open(Shard(str(path)))
        assert samples.damage is not None and "breaks off" in samples.damage
        assert 1 < len(samples) < 40 and samples.whole[0]
        samples.close()

    def test_one_that_becomes_shorter_is_said(self, tmp_path: Path) -> None:
        path = write_tar(tmp_path / "x.tar", pairs(5))
        samples = ShardCache(tmp_path / "cache").open(Shard(str(path)))
        os.truncate(path, 1100)
        with pytest.raises(ShardError, match=r"x\.tar breaks off in sample 00004 at byte"):
            samples.read(4, ("png",))
        samples.close()

    def test_what_is_no_tar_and_what_is_not_there(self, tmp_path: Path) -> None:
        (tmp_path / "x.tar").write_bytes(b"hello " * 500)
        cache = ShardCache(tmp_path / "cache")
        with pytest.raises(ShardError, match="is not a tar or"):
            cache.open(Shard(str(tmp_path / "x.tar")))
        with pytest.raises(ShardError, match=r"y\.tar cannot be opened: No such file"):
            cache.open(Shard(str(tmp_path / "y.tar")))
