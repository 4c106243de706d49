"""What a picture will cost to decode, from its first bytes: pixels of all its scans, and memory. Nothing is decoded."""

import re
from dataclasses import dataclass

JPEG_BYTES, OTHER_BYTES = 13, 20  # of memory per pixel; measured: JPEG 4 to 12, PNG 4 to 19, WebP 16, GIF 5
MAX_SCANS = 1000  # are counted
_MARKER = re.compile(rb"\xff([\x02-\xcf\xd9-\xfe])")
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # of a JPEG: they hold its size
_PROGRESSIVE = frozenset((0xC2, 0xC6, 0xCA, 0xCE))


@dataclass(frozen=True)
class PictureCost:
    """`pixels` counts those of every scan, `memory` is in bytes; both are 0 for what no decoder will accept."""

    pixels: int
    memory: int


def picture_cost(data: bytes) -> PictureCost:
    """The cost of a JPEG, PNG, WebP or GIF file.

    >>> picture_cost(b"GIF89a" + (300).to_bytes(2, "little") + (200).to_bytes(2, "little"))
    PictureCost(pixels=60000, memory=1200000)
    """
    if data[:2] == b"\xff\xd8":
        pixels, scans = _read_jpeg(data)
        return PictureCost(pixels * scans, pixels * JPEG_BYTES)
    pixels = 0
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        pixels = int.from_bytes(data[16:20], "big") * int.from_bytes(data[20:24], "big")
    elif data[:4] == b"GIF8":
        pixels = int.from_bytes(data[6:8], "little") * int.from_bytes(data[8:10], "little")
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        pixels = _read_webp(data[12:16], data[20:30])
    return PictureCost(pixels, pixels * OTHER_BYTES)


def _read_webp(kind: bytes, head: bytes) -> int:
    if kind == b"VP8X":
        return (int.from_bytes(head[4:7], "little") + 1) * (int.from_bytes(head[7:10], "little") + 1)
    if kind == b"VP8L":
        bits = int.from_bytes(head[1:5], "little")
        return ((bits & 0x3FFF) + 1) * ((bits >> 14 & 0x3FFF) + 1)
    return (int.from_bytes(head[6:8], "little") & 0x3FFF) * (int.from_bytes(head[8:10], "little") & 0x3FFF)


def _read_jpeg(data: bytes) -> tuple[int, int]:
    """Pixels of the largest frame, and how often a decoder passes over them."""
    at, scans, pixels, progressive = 2, 0, 0, False
    while scans < MAX_SCANS and (marker := _MARKER.search(data, at)) and marker[1] != b"\xd9":
        kind, start = marker[1][0], marker.end()
        if kind in _FRAMES:
            height, width = int.from_bytes(data[start + 3 : start + 5], "big"), data[start + 5 : start + 7]
            pixels = max(pixels, height * int.from_bytes(width, "big"))
            progressive = progressive or kind in _PROGRESSIVE
        scans += kind == 0xDA
        at = start + int.from_bytes(data[start : start + 2], "big")
    return pixels, max(1, scans) if progressive else 1
