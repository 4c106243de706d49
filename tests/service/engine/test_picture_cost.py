"""The cost of a picture from its header, against what Pillow says of it."""

import io
from typing import Any

import pytest
from PIL import Image

from noisegate.service.engine.picture_cost import picture_cost
from tests.fakes import picture


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("JPEG", {}),
        ("JPEG", {"mode": "L"}),
        ("JPEG", {"progressive": True}),
        ("JPEG", {"exif": b"Exif\0\0" + b"\xff\xda" * 300}),  # no scans, though it looks like them
        ("PNG", {}),
        ("GIF", {}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"exif": b"Exif\0\0" + bytes(9)}),  # extended, with a canvas
    ],
)
def test_pixels_are_those_that_pillow_finds(kind: str, how: dict[str, Any]) -> None:
    colour = 3 if how.get("mode") == "L" else (3, 90, 200)
    data = picture(colour, (333, 257), kind, **how)
    width, height = Image.open(io.BytesIO(data)).size
    scans = data.count(b"\xff\xda") if how.get("progressive") else 1
    assert (scans > 5) == bool(how.get("progressive"))
    found = picture_cost(data, 50_000_000)
    assert found.pixels == width * height * scans
    assert found.memory >= 13 * width * height


@pytest.mark.parametrize("data", [b"", b"\xff\xd8", b"\x89PNG\r\n\x1a\n", b"RIFF1234WEBPVP8 ", b"GIF89a", b"<svg>"])
def test_what_is_no_picture_costs_nothing(data: bytes) -> None:
    assert picture_cost(data, 50_000_000).pixels == 0


def test_segments_without_end_are_not_all_read() -> None:
    data = picture("red", (333, 257), "JPEG")
    padded = data[:2] + b"\xff\xe1\x00\x02" * 1_000_000 + data[2:]
    assert picture_cost(data, 50_000_000).pixels == 333 * 257
    assert picture_cost(padded, 50_000_000).pixels == 0, "decoders refuse it"


def test_a_bomb_of_few_bytes_costs_all_its_pixels() -> None:
    data = picture(0, (8000, 5000), "WEBP", mode="L", lossless=True, quality=0, method=0)
    assert len(data) < 10_000
    assert picture_cost(data, 50_000_000).pixels == 40_000_000
    assert picture_cost(data, 39_999_999).pixels == 0, "the decoder refuses it"


def test_a_frame_after_the_scan_does_not_hide_the_picture() -> None:
    data = picture("red", (333, 257), "JPEG")
    larger = bytes.fromhex("ffc0 0011 08 ffff ffff 03 012200 021101 031101")
    hidden = data[:-2] + larger + data[-2:]
    assert Image.open(io.BytesIO(hidden)).size == (333, 257), "decoded to its last row before the frame is noticed"
    assert picture_cost(hidden, 50_000_000).pixels == 333 * 257
