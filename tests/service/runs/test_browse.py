"""Samples by position, against what a whole pass over the shard gives."""

import gzip
import io
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from noisegate import read_table
from noisegate.pipeline.settings import Limits
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.read import RawSample, ShardReader
from noisegate.service.runs.browse import (
    Browser,
    NoPicture,
    SampleGone,
    ShardSamples,
    caption_of,
    original,
    small_picture,
)
from noisegate.service.runs.tables import RunTables
from tests.fakes import pairs, picture, write_tar
from tests.jobs import score

READING = {"text_field": None, "limits": {}}


def scored(folder: Path, name: str = "x.tar") -> tuple[Path, list[dict[str, Any]]]:
    path = write_tar(folder / "shards" / name, pairs(12))
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    score([path], folder / "tables")
    return path, read_table(folder / "tables").to_pylist()


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
def test_every_position_gives_its_sample(tmp_path: Path, name: str) -> None:
    path, rows = scored(tmp_path, name)
    samples, whole = ShardSamples(Limits()), list(ShardReader(Shard(str(path))))
    for place in (11, 0, 5):
        raw = samples.read(tmp_path / "tables", str(path), rows[place])
        assert (raw.key, raw.parts) == (whole[place].key, whole[place].parts)
        assert (caption_of(raw, READING) or "").startswith(f"number {place} is ")


def test_captions_of_a_page_read_a_compressed_shard_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, rows = scored(tmp_path, "x.tar.gz")
    opened: list[str] = []
    open_shard = Shard.open
    monkeypatch.setattr(Shard, "open", lambda shard: opened.append(shard.url) or open_shard(shard))
    page = [rows[place] for place in (7, 2, 11, 0)] + [{**rows[5], "key": "another"}, {**rows[5], "shard": "gone"}]
    captions = Browser(Limits()).captions(RunTables(tmp_path / "tables"), page)
    assert [str(caption).split(" is ")[0] for caption in captions[:4]] == [f"number {i}" for i in (7, 2, 11, 0)]
    assert [type(caption) for caption in captions[4:]] == [SampleGone, SampleGone]
    assert len(opened) == 3  # two looks at its first bytes, and one reading


def test_a_relative_shard_is_found_beside_the_run(tmp_path: Path) -> None:
    _, rows = scored(tmp_path)
    assert ShardSamples(Limits()).read(tmp_path / "tables", "shards/x.tar", rows[3]).key == "00003"


def test_a_shard_that_is_gone_or_far_away(tmp_path: Path) -> None:
    path, rows = scored(tmp_path)
    path.unlink()
    for url in (str(path), "https://host/x.tar", "s3://bucket/x.tar"):
        with pytest.raises(SampleGone, match="shard x is not where it was") as raised:
            ShardSamples(Limits()).read(tmp_path / "tables", url, rows[0])
        assert not raised.value.changed and str(tmp_path) not in str(raised.value)


def test_a_shard_that_changed_shows_nothing_else(tmp_path: Path) -> None:
    path, rows = scored(tmp_path)
    samples = ShardSamples(Limits())
    samples.read(tmp_path / "tables", str(path), rows[3])
    write_tar(path, [(name, picture("blue") if name == "00003.png" else data) for name, data in pairs(9)])
    for place, why in ((3, "other bytes"), (10, "no such sample")):
        with pytest.raises(SampleGone) as raised:
            samples.read(tmp_path / "tables", str(path), rows[place])
        assert raised.value.changed, why
    assert samples.read(tmp_path / "tables", str(path), rows[4]).key == "00004"


def test_small_pictures_are_jpegs_of_the_size_asked_for() -> None:
    raw = RawSample("a", 0, {"png": picture("red", (400, 200))})
    shown = Image.open(io.BytesIO(small_picture(raw, Limits(), 100)))
    assert (shown.format, shown.size) == ("JPEG", (100, 50))
    assert np.abs(np.asarray(shown, int) - (255, 0, 0)).max() < 6
    assert Image.open(io.BytesIO(small_picture(raw, Limits(), 2000))).size == (400, 200)  # never made larger


@pytest.mark.parametrize(
    ("kind", "part", "media"),
    [("PNG", "jpg", "image/png"), ("JPEG", "png", "image/jpeg"), ("WEBP", "png", "image/webp")],
)
def test_an_original_has_the_type_of_its_bytes_and_not_of_its_name(kind: str, part: str, media: str) -> None:
    data = picture("red", kind=kind)
    assert original(RawSample("a", 0, {part: data}), Limits()) == (data, media)


@pytest.mark.parametrize(
    "data",
    [
        b"<html><script>alert(1)</script>",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"",
        picture("red", kind="TIFF"),
    ],
)
def test_what_is_no_picture_is_never_given_out(data: bytes) -> None:
    raw = RawSample("a", 0, {"png": data})
    for show in (lambda: original(raw, Limits()), lambda: small_picture(raw, Limits(), 100)):
        with pytest.raises(NoPicture):
            show()


def test_limits_hold_for_pictures_too() -> None:
    with pytest.raises(NoPicture, match="pixels"):
        small_picture(RawSample("a", 0, {"png": picture("red", (100, 100))}), Limits(max_pixels=9_999), 50)
    with pytest.raises(NoPicture, match="no picture"):
        original(RawSample("a", 0, {"txt": b"red"}), Limits())


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
def test_parts_beyond_the_limits_are_not_read(tmp_path: Path, name: str) -> None:
    """A shard of some kilobytes can hold pictures of hundreds of megabytes, and several clients may ask for them at once."""
    (tmp_path / "shards").mkdir()
    large = 32 << 20
    write_tar(tmp_path / "shards" / "x.tar", [("a.jpg", bytes(large)), ("a.txt", b"a dog"), *pairs(3)])
    path = tmp_path / "shards" / name
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress((tmp_path / "shards" / "x.tar").read_bytes()))
    score([path], tmp_path / "tables")
    tables, browser = RunTables(tmp_path / "tables"), Browser(Limits(max_image_bytes=1 << 20))
    row = read_table(tmp_path / "tables").to_pylist()[0]
    tracemalloc.start()
    try:
        for show in (lambda: browser.small(tables, row, 100), lambda: browser.original(tables, row)):
            with pytest.raises(NoPicture, match="no picture of at most 1,048,576 bytes"):
                show()
        assert browser.captions(tables, [row]) == ["a dog"]
        assert tracemalloc.get_traced_memory()[1] < large // 2
    finally:
        tracemalloc.stop()
