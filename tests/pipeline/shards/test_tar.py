"""The tar writer: byte for byte what tarfile writes, whole or not at all, with the digest and size of the file."""

import hashlib
import tarfile
from pathlib import Path

import pytest

from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.read import ShardReader
from noisegate.pipeline.shards.tar import write_shard
from tests.pipeline.shards.tars import tar_bytes

SAMPLES = {
    "empty": [],
    "parts in their own order": [("0001", {"txt": b"a dog", "json": b"{}", "jpg": bytes(700)}), ("0002", {"txt": b""})],
    "odd names": [("größe/" + "x" * 300, {"png": b"1", "_meta": b"2", "": b"3"})],
    "a full record": [("0001", {"bin": bytes(10_240 - 3 * 512)})],
}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_bytes_are_those_of_tarfile(name: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.tar"
    with write_shard(path) as shard:
        for key, parts in SAMPLES[name]:
            shard.add(key, parts)
    data = path.read_bytes()
    files = [(f"{key}.{part}", content) for key, parts in SAMPLES[name] for part, content in parts.items()]
    assert data == tar_bytes(files, format=tarfile.PAX_FORMAT)
    assert (shard.samples, shard.size, shard.sha256) == (
        len(SAMPLES[name]),
        len(data),
        hashlib.sha256(data).hexdigest(),
    )
    assert [(raw.key, raw.parts) for raw in ShardReader(Shard(str(path)), all_parts=True)] == SAMPLES[name]


def test_after_an_error_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), write_shard(tmp_path / "x.tar") as shard:
        shard.add("0001", {"txt": b"a dog"})
        raise RuntimeError
    assert not list(tmp_path.iterdir())
