"""Noise in shards: what the mask says is what a comparison of the captions finds."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from noisegate.pipeline.datasets.noise.shards import noise_captions
from noisegate.pipeline.shards.locate import Shard
from noisegate.pipeline.shards.read import RawSample, ShardReader
from tests.errors import refused
from tests.fakes import pairs, picture, write_tar
from tests.jobs import files_of


def samples_of(folder: Path) -> list[RawSample]:
    return [raw for path in sorted(folder.glob("*.tar*")) for raw in ShardReader(Shard(str(path)), all_parts=True)]


def caption_of(raw: RawSample) -> str | None:
    """Read here by other means than the package does."""
    if "txt" in raw.parts:
        return raw.parts["txt"].decode()
    record = json.loads(raw.parts.get("json", b"{}"))
    found: str | None = record.get("caption")
    return found


def record_of(raw: RawSample) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(raw.parts["json"])
    return found


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    """Two shards: captions in txt, in json, in both; equal captions; equal pictures; samples that lack something."""
    folder = tmp_path / "clean"
    write_tar(folder / "a.tar", pairs(20))
    shared = picture("green", (9, 9))
    members = [
        *[
            m
            for i in range(6)
            for m in ((f"j{i}.png", picture("red", (10 + i, 10))), (f"j{i}.json", b'{"caption": "j%d", "n": 1}' % i))
        ],
        *[m for i in range(4) for m in ((f"s{i}.png", shared), (f"s{i}.txt", b"shared %d" % i))],
        *[m for i in range(4) for m in ((f"e{i}.png", picture("blue", (10 + i, 9))), (f"e{i}.txt", b"all the same"))],
        *[("b.png", picture("blue")), ("b.txt", b"both"), ("b.json", b'{"caption": "both", "text": "both"}')],
        ("no-text.png", picture()),
        ("no-picture.txt", b"no picture"),
        *[("bad.png", picture()), ("bad.txt", b"\xff\xfe not utf-8"), ("bad.json", b"{broken")],
        *[
            ("more.png", picture("brown")),
            ("more.txt", b"with more parts"),
            ("more.npy", b"123"),
            ("more.seg.png", b"x"),
        ],
        *[("twice.png", picture("white")), ("twice.txt", b"first")],
        *[("twice.png", picture("black")), ("twice.txt", b"second")],
    ]
    write_tar(folder / "b.tar", members)
    return folder


@pytest.mark.parametrize("rate", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("derange", [False, True])
def test_the_mask_is_what_a_comparison_finds(clean: Path, tmp_path: Path, rate: float, derange: bool) -> None:
    report = noise_captions(sorted(clean.glob("*.tar")), tmp_path / "out", rate=rate, seed=3, derange=derange)
    before, after = samples_of(clean), samples_of(tmp_path / "out")
    assert [raw.key for raw in after] == [raw.key for raw in before]
    changed = [caption_of(old) != caption_of(new) for old, new in zip(before, after, strict=False) if old.key != "bad"]
    # a caption that moved among samples of one picture is not wrong: the four that share a picture
    shared = {f"shared {i}" for i in range(4)}
    wrong = [
        caption_of(old) != caption_of(new) and not {caption_of(old), caption_of(new)} <= shared
        for old, new in zip(before, after, strict=True)
        if old.key != "bad"
    ]
    assert [record_of(raw)["noisy"] for raw in after if raw.key != "bad"] == wrong
    assert report.noisy == sum(wrong) <= sum(changed)
    assert (report.samples, report.untouched) == (len(before), 2)
    if rate == 0:
        assert sum(changed) == 0
    if rate == 1:
        assert sum(wrong) > 25


def test_each_sample_tells_its_own_story(clean: Path, tmp_path: Path) -> None:
    report = noise_captions(str(clean), tmp_path / "out", rate=0.6, seed=3)
    before, after = samples_of(clean), samples_of(tmp_path / "out")
    moved = 0
    for old, new in zip(before, after, strict=True):
        record = record_of(new)
        assert record["noise_protocol"] == report.protocol
        assert ("original_caption" in record) == (old.key != "bad" and caption_of(old) != caption_of(new))
        if "original_caption" in record:
            moved += 1
            assert record["original_caption"] == caption_of(old)
            assert record.get("caption", caption_of(new)) == caption_of(new)
            assert record.get("text", caption_of(new)) == caption_of(new)
        kept = {name: data for name, data in old.parts.items() if name not in ("txt", "json")}
        assert {name: data for name, data in new.parts.items() if name not in ("txt", "json")} == kept
        assert ("txt" in new.parts) == ("txt" in old.parts)
    assert moved > 10
    by_key = {raw.key: raw for raw in after}
    assert by_key["bad"].parts["txt"] == b"\xff\xfe not utf-8"
    assert record_of(by_key["j0"])["n"] == 1
    assert record_of(by_key["no-text"]) == {"noisy": False, "noise_protocol": report.protocol}


def test_the_captions_are_those_there_were(clean: Path, tmp_path: Path) -> None:
    noise_captions(str(clean), tmp_path / "out", rate=1.0, seed=3)

    def good(folder: Path) -> list[str]:
        return sorted(caption_of(raw) or "" for raw in samples_of(folder) if raw.key != "bad")

    assert good(tmp_path / "out") == good(clean)


def test_the_file_of_truth_lists_every_sample(clean: Path, tmp_path: Path) -> None:
    report = noise_captions(str(clean), tmp_path / "out", rate=0.5, seed=3)
    truth = pq.read_table(tmp_path / "out" / "noise.parquet")
    after = samples_of(tmp_path / "out")
    assert truth["key"].to_pylist() == [raw.key for raw in after]
    assert truth["index"].to_pylist() == [raw.index for raw in after]
    assert truth["shard"].to_pylist() == ["a"] * 20 + ["b"] * (len(after) - 20)
    assert truth["noisy"].to_pylist() == [record_of(raw)["noisy"] for raw in after]
    assert truth.schema.metadata[b"noisegate.noise_protocol"].decode() == report.protocol
    assert report.shards == [str(tmp_path / "out" / "a.tar"), str(tmp_path / "out" / "b.tar")]
    assert report.rate == sum(truth["noisy"].to_pylist()) / len(after)


def test_the_same_seed_gives_the_same_bytes_and_another_one_does_not(clean: Path, tmp_path: Path) -> None:
    for name, seed in (("one", 3), ("two", 3), ("three", 4)):
        noise_captions(str(clean), tmp_path / name, rate=0.5, seed=seed)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    assert files_of(tmp_path / "one")["a.tar"] != files_of(tmp_path / "three")["a.tar"]


def test_pictures_move_with_all_their_captions(tmp_path: Path) -> None:
    members = []
    for i in range(8):
        for j in range(2):
            members += [(f"{i}-{j}.png", picture("red", (10 + i, 10))), (f"{i}-{j}.txt", f"picture {i}, {j}".encode())]
    write_tar(tmp_path / "clean" / "x.tar", members)
    noise_captions(str(tmp_path / "clean"), tmp_path / "out", protocol="shuffle-images", rate=1.0, seed=1, derange=True)
    after = samples_of(tmp_path / "out")
    came_from = [(caption_of(raw) or "").split(",")[0] for raw in after]
    assert came_from[::2] == came_from[1::2]
    assert all(record_of(raw)["noisy"] for raw in after)
    write_tar(tmp_path / "clean" / "x.tar", members[:-2])
    with refused("images"):
        noise_captions(str(tmp_path / "clean"), tmp_path / "out", protocol="shuffle-images", rate=1.0, seed=1)


def test_the_originals_stay(clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files_of(clean)
    other = write_tar(tmp_path / "elsewhere" / "first.tar", pairs(3))
    monkeypatch.chdir(tmp_path)
    for shards, out in (
        ([str(clean)], clean),
        ([other, *clean.glob("*.tar")], clean),
        (["clean/a.tar"], Path("./clean/../clean")),
    ):
        with refused("out", out):
            noise_captions(shards, out, rate=0.5, seed=1)
        assert files_of(clean) == before


def test_compressed_and_damaged_shards_are_written_whole(tmp_path: Path) -> None:
    folder = tmp_path / "clean"
    folder.mkdir()
    with tarfile.open(folder / "x.tar.gz", "w:gz") as tar:
        source = write_tar(tmp_path / "plain.tar", pairs(3))
        with tarfile.open(source) as plain:
            for member in plain:
                tar.addfile(member, plain.extractfile(member))
    cut = write_tar(folder / "y.tar", pairs(5)).read_bytes()
    (folder / "y.tar").write_bytes(cut[: len(cut) // 2])
    noise_captions(str(folder), tmp_path / "out", rate=0.5, seed=1)
    before, after = samples_of(folder), samples_of(tmp_path / "out")
    assert [raw.key for raw in before] == [raw.key for raw in after]
    reader = ShardReader(Shard(str(tmp_path / "out" / "y.tar")))
    assert len(list(reader)) >= 2
    assert reader.damage is None


@pytest.mark.parametrize(("setting", "value"), [("protocol", "symmetric"), ("rate", 1.5), ("seed", -1)])
def test_settings_that_cannot_work_are_named(clean: Path, tmp_path: Path, setting: str, value: Any) -> None:
    with refused(setting, value):
        noise_captions(str(clean), tmp_path / "out", **{"rate": 0.5, "seed": 1, setting: value})
    assert not (tmp_path / "out").exists()


def test_places_that_cannot_work_are_named(clean: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for out in (tmp_path / "file", Path("s3://bucket/x")):
        with refused("out", out):
            noise_captions(str(clean), out, rate=0.5, seed=1)
    write_tar(tmp_path / "empty.tar", [])
    with refused("shards"):
        noise_captions(str(tmp_path / "empty.tar"), tmp_path / "out", rate=0.5, seed=1)


def test_a_json_with_half_a_character_is_kept(tmp_path: Path) -> None:
    half = json.dumps({"note": "\ud800"}).encode()
    write_tar(tmp_path / "x.tar", [*pairs(2), ("a.png", picture()), ("a.txt", b"x"), ("a.json", half)])
    noise_captions(str(tmp_path / "x.tar"), tmp_path / "out", rate=1.0, seed=1)
    assert record_of(samples_of(tmp_path / "out")[-1])["note"] == "\ud800"


def test_captions_in_another_field_are_shuffled_there(tmp_path: Path) -> None:
    members = [
        part
        for i in range(10)
        for part in ((f"{i}.png", picture("red", (10 + i, 9))), (f"{i}.json", b'{"TEXT": "number %d", "n": 1}' % i))
    ]
    shard = write_tar(tmp_path / "clean" / "a.tar", members)
    with refused("text_field"):
        noise_captions(shard, tmp_path / "none", rate=0.5, seed=1)
    assert not (tmp_path / "none").exists()
    report = noise_captions(shard, tmp_path / "noisy", rate=0.5, seed=1, derange=True, text_field="TEXT")
    assert report.noisy == 5
    for i, raw in enumerate(samples_of(tmp_path / "noisy")):
        record = record_of(raw)
        assert record["noisy"] == (record["TEXT"] != f"number {i}")
        assert raw.names == ["png", "json"], "no txt appears, which annotate would read first"


@pytest.mark.parametrize("field", ["original_caption", "noisy", "noise_protocol"])
def test_captions_where_the_noise_writes_its_own_record_are_refused(field: str, tmp_path: Path) -> None:
    write_tar(tmp_path / "clean" / "a.tar", [("x.png", picture()), ("x.json", json.dumps({field: "a cat"}).encode())])
    with refused("text_field", field):
        noise_captions(tmp_path / "clean", tmp_path / "out", rate=0.4, seed=0, text_field=field)
    assert not (tmp_path / "out").exists()
