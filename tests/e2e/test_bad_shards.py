"""A folder with everything that goes wrong in the wild: the job ends, and every sample has a row that says how it went."""

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image

from noisegate import read_table
from tests.commands import FAKE, called, run_noisegate
from tests.fakes import pairs, picture, tar_bytes, write_tar

RED = (222, 36, 36)


def saved(image: Image.Image, kind: str = "PNG", **how: Any) -> bytes:
    data = io.BytesIO()
    image.save(data, kind, **how)
    return data.getvalue()


def animated(kind: str) -> bytes:
    frames = [Image.new("RGB", (12, 12), colour) for colour in ("red", "blue", "green")]
    return saved(frames[0], kind, save_all=True, append_images=frames[1:], duration=50)


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return saved(Image.new("RGB", (20, 10), RED), "JPEG", exif=exif)


PICTURES: dict[str, tuple[str, bytes, str]] = {  # key: part, bytes, status
    "broken-jpeg": ("jpg", picture(RED, (64, 64), "JPEG")[:300], "bad_image"),
    "broken-png": ("png", picture(RED, (64, 64))[:60], "bad_image"),
    "empty-file": ("png", b"", "bad_image"),
    "not-a-picture": ("jpg", b"<html>404</html>", "bad_image"),
    "other-format": ("png", saved(Image.new("RGB", (4, 4)), "BMP"), "bad_image"),
    "bomb": ("png", saved(Image.new("1", (12_000, 10_000))), "too_large"),
    "one-pixel": ("png", picture(RED, (1, 1)), "ok"),
    "thin": ("png", picture(RED, (60, 1)), "ok"),
    "cmyk": ("jpg", saved(Image.new("CMYK", (16, 16), (0, 200, 200, 20)), "JPEG"), "ok"),
    "sixteen-bit": ("png", saved(Image.new("I;16", (16, 16), 40_000)), "ok"),
    "grey": ("jpeg", saved(Image.new("L", (16, 16), 99), "JPEG"), "ok"),
    "grey-alpha": ("png", saved(Image.new("LA", (16, 16), (99, 9))), "ok"),
    "palette": ("png", saved(Image.new("RGB", (16, 16), RED).convert("P")), "ok"),
    "palette-transparent": ("png", saved(Image.new("P", (16, 16), 3), transparency=3), "ok"),
    "one-bit": ("png", saved(Image.new("1", (16, 16), 1)), "ok"),
    "rgba": ("webp", saved(Image.new("RGBA", (16, 16), (*RED, 128)), "WEBP"), "ok"),
    "animated-png": ("png", animated("PNG"), "ok"),
    "animated-webp": ("webp", animated("WEBP"), "ok"),
    "gif-called-jpg": ("jpg", animated("GIF"), "ok"),
    "turned": ("JPG", turned(), "ok"),
}
CAPTIONS: dict[str, tuple[str, bytes, str]] = {
    "empty-caption": ("txt", b"", "no_text"),
    "blank-caption": ("txt", b" \n\t", "no_text"),
    "long-caption": ("txt", b"red " * 25_000, "too_large"),
    "latin-1": ("txt", "rouge foncé".encode("latin-1"), "bad_text"),
    "utf-16": ("txt", "red".encode("utf-16"), "bad_text"),
    "emoji": ("txt", "🔴 is red".encode(), "ok"),
    "byte-order-mark": ("txt", b"\xef\xbb\xbfred", "ok"),
    "caption-in-json": ("json", b'{"caption": "red"}', "ok"),
    "text-in-json": ("json", b'{"caption": null, "text": "red"}', "ok"),
    "broken-json": ("json", b'{"caption": "red"', "bad_text"),
    "json-list": ("json", b'["red"]', "bad_text"),
    "number-as-caption": ("json", b'{"caption": 7}', "bad_text"),
    "half-a-character": ("json", b'{"caption": "\\ud83d"}', "bad_text"),
}


def members() -> list[tuple[str, bytes, str]]:
    """Name, bytes and the status that the sample must get."""
    found = []
    for key, (part, data, status) in PICTURES.items():
        found += [(f"{key}.{part}", data, status), (f"{key}.txt", b"red", status)]
    for key, (part, data, status) in CAPTIONS.items():
        found += [(f"{key}.png", picture(RED), status), (f"{key}.{part}", data, status)]
    found += [("no-picture.txt", b"red", "no_image"), ("no-caption.png", picture(), "no_text")]
    found += [("neither.npy", b"123", "no_image")]
    for _ in range(3):
        found += [("same-key.png", picture(RED), "ok"), ("same-key.txt", b"red", "ok")]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    write_tar(folder / "a-bad.tar", [(name, data) for name, data, _ in members()])
    whole = tar_bytes(pairs(10))
    (folder / "b-cut.tar").write_bytes(whole[: whole.index(b"00006.png") + 600])
    (folder / "c-empty.tar").write_bytes(b"")
    write_tar(folder / "d-no-members.tar", [])
    write_tar(folder / "e-good.tar", pairs(5))
    return folder


@pytest.fixture(scope="module")
def summary(folder: Path) -> dict[str, Any]:
    done = run_noisegate(
        "annotate", folder, "--out", folder / "out", *FAKE, "--beta", "fixed:0.4", "--workers", "1", "--json"
    )
    assert done.returncode == 1, done.stderr  # two shards are cut off, as by half a download
    assert "cut off: b-cut" in done.stderr and "Traceback" not in done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def table(folder: Path, summary: dict[str, Any]) -> pa.Table:
    return read_table(folder / "out")


def test_every_sample_has_its_row_and_every_bad_one_its_status(table: pa.Table) -> None:
    wanted: dict[str, str] = {}
    for name, _, status in members():
        wanted[name.split(".")[0]] = status
    rows = [row for row in table.to_pylist() if row["shard"] == "a-bad"]
    assert [row["key"] for row in rows] == [*wanted, "same-key", "same-key"]
    assert {row["key"]: row["status"] for row in rows} == wanted
    assert [row["index"] for row in rows] == list(range(len(rows)))


def test_the_fast_decoder_gives_the_same_statuses_and_reasons(folder: Path, table: pa.Table) -> None:
    columns = ["key", "index", "status", "error", "image_sha256", "text_sha256"]
    done = run_noisegate("annotate", folder, "--out", folder / "fast", "--beta", "fixed:0.4", "--workers", "1")
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    fast = read_table(folder / "fast", columns).to_pylist()
    slow = table.select(["shard", *columns]).to_pylist()
    invalid = {(row["shard"], row["index"]) for row in slow if row["status"] == "invalid"}  # the fake model's own
    assert len(fast) == len(slow) > len(invalid)
    assert [row for row in fast if (row["shard"], row["index"]) not in invalid] == [
        row for row in slow if (row["shard"], row["index"]) not in invalid
    ]


def test_a_row_has_scores_or_a_reason(table: pa.Table) -> None:
    for row in table.to_pylist():
        ok = row["status"] == "ok"
        assert (row["error"] is None) == ok, row
        for name in ("similarity", "osa_weight", "clean"):
            assert (row[name] is not None) == ok, (name, row)
        if ok:
            assert -1 <= row["similarity"] <= 1
            assert 0 <= row["osa_weight"] <= 4 / 27


def test_a_cut_tar_gives_all_that_is_whole_and_names_the_sample_it_cut(table: pa.Table) -> None:
    rows = [row for row in table.to_pylist() if row["shard"] == "b-cut"]
    assert [row["key"] for row in rows] == [f"{i:05d}" for i in range(7)]
    assert [row["status"] for row in rows] == ["ok"] * 6 + ["broken"]


def test_the_summary_counts_them(table: pa.Table, summary: dict[str, Any]) -> None:
    statuses = table["status"].to_pylist()
    assert summary["samples"] == len(table) == sum(summary["statuses"].values())
    assert summary["statuses"] == {status: statuses.count(status) for status in set(statuses)}
    assert set(statuses) == {"ok", "bad_image", "too_large", "no_text", "bad_text", "no_image", "broken"}
    assert summary["flags"]["duplicate_key"] == 2
    assert (summary["shards"], summary["failed_shards"]) == (5, {})
    assert set(summary["damaged_shards"]) == set(summary["cut_shards"]) == {"b-cut", "c-empty"}
    assert summary["scored"] == statuses.count("ok")


def test_pictures_of_every_kind_look_as_they_should(table: pa.Table) -> None:
    similarity = {row["key"]: row["similarity"] for row in table.to_pylist() if row["shard"] == "a-bad"}
    red = similarity["palette"]
    assert red > 0.7
    for key in ("one-pixel", "thin", "cmyk", "animated-png", "animated-webp", "gif-called-jpg", "turned"):
        assert similarity[key] == pytest.approx(red, abs=0.15), key
    for key in ("sixteen-bit", "grey", "one-bit"):
        assert similarity[key] < 0.5, key


def test_a_shard_that_cannot_be_read_at_all_is_named_and_ends_the_command_with_1(folder: Path, tmp_path: Path) -> None:
    junk = tmp_path / "junk" / "junk[b].tar"  # a name that a terminal's markup must not swallow
    junk.parent.mkdir()
    junk.write_bytes(b"no tar\n" * 300)
    shards = f"{folder / 'e-good.tar'}::{junk.parent}::{tmp_path / 'missing.tar'}"
    settings = (*FAKE, "--beta", "fixed:0.4", "--workers", "0")
    done = called("annotate", shards, "--out", tmp_path / "out", *settings, cwd=tmp_path)
    assert done.returncode == 1
    for said in (done.stderr, called("show", tmp_path / "out", cwd=tmp_path).stdout):
        assert "junk[b].tar is not a tar" in said
        assert "missing.tar" in said
    assert "Traceback" not in done.stderr
    assert len(read_table(tmp_path / "out")) == 5
    again = called("annotate", shards, "--out", tmp_path / "out", *settings, "--json", cwd=tmp_path)
    assert again.returncode == 1
    assert set(json.loads(again.stdout)["failed_shards"]) == {str(junk), str(tmp_path / "missing.tar")}
